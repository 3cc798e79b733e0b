"""Drawing tokens: temperature, nucleus, inverse cumulative distribution. Batched, without a Python loop over rows."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from rlhpc.types import SamplingParameters


def uniform_numbers(seeds: Sequence[int], count: int) -> Tensor:
    """Numbers in [0, 1): f64[rows, count]. Row i depends on ``seeds[i]`` alone."""
    rows = [
        torch.rand(count, generator=torch.Generator().manual_seed(seed), dtype=torch.float64) for seed in seeds
    ]
    return torch.stack(rows)


def sample(logits: Tensor, uniforms: Tensor, sampling: SamplingParameters) -> tuple[Tensor, Tensor]:
    """Draw one token per row.

    Args:
        logits: f32[rows, vocabulary].
        uniforms: f64[rows], one number in [0, 1) per row.
        sampling: Temperature 0 takes the most probable token, which then has probability 1.

    Returns:
        Token ids i64[rows] and their natural log-probabilities f32[rows] under the distribution drawn from.
    """
    if sampling.temperature == 0.0:
        return logits.argmax(-1), torch.zeros(len(logits))
    logprobs = torch.log_softmax(logits / sampling.temperature, -1)
    if sampling.top_p < 1.0:
        logprobs = torch.log_softmax(_nucleus(logprobs, sampling.top_p), -1)
    cumulative = logprobs.double().exp().cumsum(-1)
    # scaled by the last entry, because rounding leaves it a little off 1; the first entry above has probability > 0
    thresholds = (uniforms * cumulative[:, -1]).unsqueeze(-1)
    tokens = torch.searchsorted(cumulative, thresholds, right=True).clamp_(max=logits.shape[-1] - 1)
    return tokens.squeeze(-1), logprobs.gather(-1, tokens).squeeze(-1)


def _nucleus(logprobs: Tensor, top_p: float) -> Tensor:
    """Keep the smallest set of most probable tokens with probability >= top_p (Holtzman et al. 2020, eq. 2)."""
    ordered, indices = torch.sort(logprobs, dim=-1, descending=True, stable=True)
    probability_before = ordered.exp().cumsum(-1) - ordered.exp()
    kept = torch.where(probability_before < top_p, ordered, -torch.inf)
    return torch.empty_like(logprobs).scatter_(-1, indices, kept)
