"""Log-probabilities and gradients equal those that transformers and torch compute for the same weights."""

import math
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM

from rlhpc.learner.megatron import Learner, MicroBatch, log_probabilities
from rlhpc.learner.settings import OptimizerSettings

TOKENS = torch.randint(0, 256, (4, 24), generator=torch.Generator().manual_seed(0))
SELECTED = torch.tensor([3, 4, 5, 30, 31, 60, 80, 94])
TARGETS = TOKENS.flatten()[SELECTED + 1]
BATCH = MicroBatch(token_ids=TOKENS, selected=SELECTED, targets=TARGETS)


def negative_mean(index: int, logprobs: torch.Tensor, entropies: torch.Tensor) -> tuple[torch.Tensor, dict[str, float]]:
    return -logprobs.sum() / len(SELECTED), {"entropy": entropies.sum().item()}


def expected_loss(model: torch.nn.Module, temperature: float) -> torch.Tensor:
    logs = (model(TOKENS).logits.flatten(0, 1)[SELECTED] / temperature).log_softmax(-1)
    return -logs.gather(1, TARGETS[:, None]).mean()


@pytest.mark.parametrize("temperature", [1.0, 0.7])
def test_log_probabilities_are_of_the_distribution_that_was_sampled_from(
    make_learner: Callable[[], Learner], tiny_model: Path, temperature: float
) -> None:
    learner, reference = make_learner(), AutoModelForCausalLM.from_pretrained(tiny_model)
    with torch.no_grad():
        logits = learner.model(TOKENS, SELECTED)
        logprobs, entropies = log_probabilities(logits, TARGETS, temperature)
        scaled = reference(TOKENS).logits.flatten(0, 1)[SELECTED] / temperature
    torch.testing.assert_close(logprobs, scaled.log_softmax(-1).gather(1, TARGETS[:, None])[:, 0], atol=1e-5, rtol=0)
    torch.testing.assert_close(entropies, torch.distributions.Categorical(logits=scaled).entropy(), atol=1e-5, rtol=0)


def test_one_step_is_that_of_clipped_adamw_in_torch(make_learner: Callable[[], Learner], tiny_model: Path) -> None:
    learner = make_learner()
    learner.accumulate([BATCH], negative_mean, temperature=1.0)
    norm = learner.apply(1e-2)

    reference = AutoModelForCausalLM.from_pretrained(tiny_model)
    optimizer = torch.optim.AdamW(reference.parameters(), lr=1e-2, betas=(0.9, 0.95), weight_decay=0.0)
    expected_loss(reference, 1.0).backward()
    expected_norm = torch.nn.utils.clip_grad_norm_(reference.parameters(), 1.0).item()
    optimizer.step()

    assert norm == pytest.approx(expected_norm, rel=1e-5)
    weights = learner.hugging_face_weights()
    for name, parameter in reference.named_parameters():
        torch.testing.assert_close(weights[name], parameter.detach(), atol=1e-4, rtol=0)


def test_splitting_into_micro_batches_changes_nothing(make_learner: Callable[[], Learner]) -> None:
    whole, split = make_learner(), make_learner()
    whole.accumulate([BATCH], negative_mean, temperature=1.0)
    rows = [
        MicroBatch(
            token_ids=TOKENS[row : row + 1],
            selected=SELECTED[SELECTED // 24 == row] % 24,
            targets=TARGETS[SELECTED // 24 == row],
        )
        for row in range(4)
    ]
    split.accumulate(rows, negative_mean, temperature=1.0)
    assert split.apply(1e-2) == pytest.approx(whole.apply(1e-2), rel=1e-5)


def test_gradients_that_are_not_finite_leave_the_weights_alone(make_learner: Callable[[], Learner]) -> None:
    learner = make_learner()
    before = learner.hugging_face_weights()
    learner.accumulate([BATCH], lambda *arguments: (negative_mean(*arguments)[0] * math.nan, {}), temperature=1.0)
    assert math.isnan(learner.apply(1e-2))
    after = learner.hugging_face_weights()
    assert all(torch.equal(before[name], after[name]) for name in before)
    assert learner.updates == 0


def test_forgetting_the_optimizer_keeps_the_weights(make_learner: Callable[[], Learner]) -> None:
    learner = make_learner()
    learner.accumulate([BATCH], negative_mean, temperature=1.0)
    learner.apply(1e-2)
    before = learner.hugging_face_weights()
    learner.reset_optimizer(OptimizerSettings(learning_rate=0.5))
    assert learner.updates == 0 and learner.optimizer.param_groups[0]["lr"] == 0.5
    after = learner.hugging_face_weights()
    assert all(torch.equal(before[name], after[name]) for name in before)
