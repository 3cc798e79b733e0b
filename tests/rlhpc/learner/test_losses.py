"""Objectives: small cases by hand, an independent per-token implementation, and what must not change the result."""

import math

import pytest
import torch
from torch import Tensor

from rlhpc.errors import ConfigError
from rlhpc.learner.losses import ALGORITHMS, AlgorithmSettings, aggregate, clipped_loss, kl_estimate, policy_loss

ROWS, LENGTH = 5, 9


@pytest.fixture
def data() -> dict[str, Tensor]:
    source = torch.Generator().manual_seed(3)
    mask = (torch.rand(ROWS, LENGTH, generator=source) < 0.6).float()
    mask[:, 0] = 1.0
    behaviour = -2 * torch.rand(ROWS, LENGTH, generator=source) * mask
    logprobs = (behaviour + 0.5 * torch.randn(ROWS, LENGTH, generator=source)) * mask
    advantages = torch.randn(ROWS, 1, generator=source) * mask
    return {"logprobs": logprobs, "behaviour_logprobs": behaviour, "advantages": advantages, "mask": mask}


def naive_token_loss(name: str, ratio: float, sequence_ratio: float, logprob: float, advantage: float) -> float:
    """One token's loss in plain arithmetic, with clip range [0.8, 1.3] and importance cap 2."""

    def clip(value: float) -> float:
        return min(max(value, 0.8), 1.3)

    if name == "rloo":
        return -min(ratio, 2.0) * advantage * logprob
    if name == "cispo":
        return -clip(ratio) * advantage * logprob
    if name == "gspo":
        ratio = sequence_ratio
    objective = min(ratio * advantage, clip(ratio) * advantage)
    if advantage < 0:
        objective = max(objective, 2.0 * advantage)
    return -objective


def naive_loss(name: str, aggregation: str, data: dict[str, Tensor]) -> float:
    """Sum over rows and tokens, in Python loops."""
    rows = {key: value.tolist() for key, value in data.items()}
    total = 0.0
    for row in range(ROWS):
        chosen = [t for t in range(LENGTH) if rows["mask"][row][t]]
        gaps = [rows["logprobs"][row][t] - rows["behaviour_logprobs"][row][t] for t in chosen]
        sequence_ratio = math.exp(sum(gaps) / len(gaps))
        losses = [
            naive_token_loss(name, math.exp(gap), sequence_ratio, rows["logprobs"][row][t], rows["advantages"][row][t])
            for t, gap in zip(chosen, gaps, strict=True)
        ]
        total += sum(losses) / (len(losses) if aggregation == "sequence" else 1)
    return total


@pytest.mark.parametrize("aggregation", ["token", "sequence"])
@pytest.mark.parametrize("name", ALGORITHMS)
def test_agrees_with_an_independent_implementation(name: str, aggregation: str, data: dict[str, Tensor]) -> None:
    settings = AlgorithmSettings(name=name, clip_low=0.2, clip_high=0.3, aggregation=aggregation)
    loss, _ = policy_loss(**data, settings=settings, denominator=7.0)
    assert loss.item() == pytest.approx(naive_loss(name, aggregation, data) / 7.0, rel=1e-5)


@pytest.mark.parametrize("aggregation", ["token", "sequence"])
@pytest.mark.parametrize("name", ALGORITHMS)
def test_micro_batches_add_up(name: str, aggregation: str, data: dict[str, Tensor]) -> None:
    settings = AlgorithmSettings(name=name, aggregation=aggregation, kl_coefficient=0.1)
    whole, whole_statistics = policy_loss(**data, settings=settings, denominator=11.0)
    parts = [
        policy_loss(**{key: value[rows] for key, value in data.items()}, settings=settings, denominator=11.0)
        for rows in (slice(0, 2), slice(2, 3), slice(3, ROWS))
    ]
    assert sum(loss.item() for loss, _ in parts) == pytest.approx(whole.item(), rel=1e-5)
    for statistic in ("approx_kl", "clip_fraction"):
        total = sum(statistics[statistic] for _, statistics in parts)
        assert total == pytest.approx(whole_statistics[statistic], rel=1e-5)
    assert max(statistics["ratio_max"] for _, statistics in parts) == whole_statistics["ratio_max"]


@pytest.mark.parametrize("name", ALGORITHMS)
def test_padding_changes_nothing(name: str, data: dict[str, Tensor]) -> None:
    settings = AlgorithmSettings(name=name, aggregation="sequence")
    padded = {key: torch.nn.functional.pad(value, (0, 4)) for key, value in data.items()}
    loss, _ = policy_loss(**data, settings=settings, denominator=1.0)
    assert policy_loss(**padded, settings=settings, denominator=1.0)[0].item() == pytest.approx(loss.item(), rel=1e-6)


@pytest.mark.parametrize("name", ALGORITHMS)
def test_on_policy_the_gradient_is_that_of_reinforce(name: str, data: dict[str, Tensor]) -> None:
    """At ratio 1 every objective's gradient is -advantage per token (GSPO: with sequence means on both sides)."""
    logprobs = data["behaviour_logprobs"].clone().requires_grad_()
    settings = AlgorithmSettings(name=name, aggregation="sequence")
    policy_loss(**(data | {"logprobs": logprobs}), settings=settings, denominator=1.0)[0].backward()
    expected = -data["advantages"] / data["mask"].sum(-1, keepdim=True)
    assert torch.allclose(logprobs.grad, expected, atol=1e-6)


@pytest.mark.parametrize(
    ("ratio", "advantage", "loss"),
    [
        (1.5, 1.0, -1.2),  # better than expected and already likelier: clipped
        (0.5, 1.0, -0.5),
        (0.5, -1.0, 0.8),  # worse than expected and already less likely: clipped
        (1.5, -1.0, 1.5),
        (9.0, -1.0, 3.0),  # far off: capped
    ],
)
def test_clipping_by_hand(ratio: float, advantage: float, loss: float) -> None:
    result = clipped_loss(torch.tensor(ratio), torch.tensor(advantage), low=0.8, high=1.2, cap=3.0)
    assert result.item() == pytest.approx(loss)


def test_aggregation_by_hand() -> None:
    losses, mask = torch.tensor([[1.0, 2.0, 3.0], [4.0, 9.0, 9.0]]), torch.tensor([[1.0, 1.0, 1.0], [1.0, 0.0, 0.0]])
    assert aggregate(losses, mask, "token").item() == 10.0
    assert aggregate(losses, mask, "sequence").item() == 6.0


def test_kl_estimators_by_hand() -> None:
    policy, reference = torch.tensor(math.log(0.5)), torch.tensor(math.log(0.25))
    assert kl_estimate(policy, reference, "k1").item() == pytest.approx(math.log(2))
    assert kl_estimate(policy, reference, "k2").item() == pytest.approx(math.log(2) ** 2 / 2)
    assert kl_estimate(policy, reference, "k3").item() == pytest.approx(0.5 - 1 + math.log(2))


@pytest.mark.parametrize("estimator", ["k1", "k3"])
def test_kl_estimators_are_unbiased(estimator: str) -> None:
    policy, reference = torch.tensor([0.7, 0.2, 0.1]), torch.tensor([0.4, 0.4, 0.2])
    exact = (policy * (policy / reference).log()).sum()
    assert (policy * kl_estimate(policy.log(), reference.log(), estimator)).sum().item() == pytest.approx(exact.item())


def test_mismatch_of_rollout_and_learner_is_weighted_and_truncated() -> None:
    """Ratio 1 against the old learner; the behaviour policy was off by factors 1.5 and 8 (capped at 2)."""
    old = torch.log(torch.tensor([[0.6, 0.8]]))
    behaviour = torch.log(torch.tensor([[0.4, 0.1]]))
    ones = torch.ones(1, 2)
    loss, _ = policy_loss(old, behaviour, ones, ones, AlgorithmSettings(importance_cap=2.0), 1.0, old_logprobs=old)
    assert loss.item() == pytest.approx(-(1.5 + 2.0))


def test_kl_penalty_pulls_towards_the_reference() -> None:
    logprobs, zero, one = torch.tensor([[math.log(0.5)]]), torch.zeros(1, 1), torch.ones(1, 1)
    settings = AlgorithmSettings(kl_coefficient=10.0, kl_estimator="k1")
    loss, _ = policy_loss(logprobs, logprobs, zero, one, settings, 1.0, reference_logprobs=logprobs - 0.1)
    assert loss.item() == pytest.approx(1.0, rel=1e-5)
    assert policy_loss(logprobs, logprobs, zero, one, settings, 1.0)[0].item() == 0.0


def test_statistics_by_hand() -> None:
    behaviour = torch.zeros(1, 3)
    logprobs = torch.log(torch.tensor([[1.5, 1.0, 5.0]]))
    mask = torch.tensor([[1.0, 1.0, 0.0]])
    _, statistics = policy_loss(logprobs, behaviour, mask, mask, AlgorithmSettings(), 1.0)
    assert statistics["clip_fraction"] == 1.0
    assert statistics["ratio_max"] == pytest.approx(1.5)
    assert statistics["approx_kl"] == pytest.approx(1.5 - 1 - math.log(1.5))


def test_unknown_names_are_refused() -> None:
    with pytest.raises(ConfigError, match="algorithm.name='ppo' is unknown; choose one of grpo"):
        AlgorithmSettings(name="ppo")
    with pytest.raises(ConfigError, match="algorithm.aggregation"):
        AlgorithmSettings(aggregation="mean")
