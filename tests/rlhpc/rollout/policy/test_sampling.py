from __future__ import annotations

import pytest
import torch

from rlhpc.rollout.policy.sampling import sample, uniform_numbers
from rlhpc.types import SamplingParameters

PROBABILITIES = torch.tensor([0.1, 0.4, 0.0, 0.3, 0.2])


def test_frequencies_follow_the_distribution() -> None:
    uniforms = (torch.arange(1000, dtype=torch.float64) + 0.5) / 1000
    tokens, logprobs = sample(PROBABILITIES.log().expand(1000, -1), uniforms, SamplingParameters())
    assert torch.bincount(tokens, minlength=5).tolist() == [100, 400, 0, 300, 200]
    assert torch.allclose(logprobs, PROBABILITIES.log()[tokens])


@pytest.mark.parametrize("uniform", [0.0, 0.5, 1.0 - 2.0**-53])
def test_impossible_tokens_are_never_drawn(uniform: float) -> None:
    logits = torch.tensor([[-torch.inf, 0.0, -torch.inf]])
    assert sample(logits, torch.tensor([uniform], dtype=torch.float64), SamplingParameters())[0].tolist() == [1]


def test_temperature_scales_logits_and_logprobs() -> None:
    _, logprobs = sample(
        torch.tensor([[0.0, 2.0]]), torch.tensor([0.99], dtype=torch.float64), SamplingParameters(temperature=2.0)
    )
    assert logprobs.item() == pytest.approx(1.0 - torch.tensor([0.0, 1.0]).logsumexp(0).item())


def test_nucleus_keeps_the_fewest_tokens_and_renormalises() -> None:
    uniforms = (torch.arange(70, dtype=torch.float64) + 0.5) / 70
    tokens, logprobs = sample(PROBABILITIES.log().expand(70, -1), uniforms, SamplingParameters(top_p=0.65))
    assert torch.bincount(tokens, minlength=5).tolist() == [0, 40, 0, 30, 0]
    assert logprobs[tokens == 1].exp().tolist() == pytest.approx([4 / 7] * 40)


def test_temperature_zero_is_greedy_and_certain() -> None:
    tokens, logprobs = sample(
        PROBABILITIES.log()[None], torch.tensor([0.99], dtype=torch.float64), SamplingParameters(temperature=0.0)
    )
    assert (tokens.item(), logprobs.item()) == (1, 0.0)


def test_a_row_of_random_numbers_depends_on_its_seed_alone() -> None:
    assert torch.equal(uniform_numbers([1, 2, 3], 4)[2], uniform_numbers([3], 4)[0])
    assert torch.equal(uniform_numbers([2**63 - 1], 8)[0, :4], uniform_numbers([2**63 - 1], 4)[0])
