"""Policy-gradient objectives as pure functions of log-probabilities, advantages and masks.

All tensors are f32[B, T] and aligned: position t holds what belongs to token t + 1, which position t predicts.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from rlhpc.errors import ConfigError

ALGORITHMS = ("grpo", "dr_grpo", "dapo", "gspo", "cispo", "rloo", "reinforce_plus_plus")
AGGREGATIONS = ("token", "sequence")
KL_ESTIMATORS = ("k1", "k2", "k3")


@dataclass(frozen=True, slots=True, kw_only=True)
class AlgorithmSettings:
    """The objective. Raises ConfigError for an unknown name."""

    name: str = "grpo"
    """One of ALGORITHMS; decides the advantage estimator (advantages.py) and the surrogate (``policy_loss``)."""
    clip_low: float = 0.2
    clip_high: float = 0.2
    """Ratios are clipped to [1 - clip_low, 1 + clip_high]; a larger clip_high is DAPO's clip-higher."""
    kl_coefficient: float = 0.0
    """Weight of the KL penalty towards the reference policy."""
    kl_estimator: str = "k3"
    importance_cap: float = 2.0
    """Upper bound of importance weights between the learner and the policy that acted."""
    normalize_by_std: bool = True
    """Whether group advantages are divided by the group's standard deviation; dr_grpo and rloo never do."""
    aggregation: str = "token"
    """``token``: all tokens weigh the same (DAPO; Dr. GRPO up to a constant). ``sequence``: all trajectories (GRPO)."""

    def __post_init__(self) -> None:
        _require("algorithm.name", self.name, ALGORITHMS)
        _require("algorithm.aggregation", self.aggregation, AGGREGATIONS)
        _require("algorithm.kl_estimator", self.kl_estimator, KL_ESTIMATORS)


def policy_loss(
    logprobs: Tensor,
    behaviour_logprobs: Tensor,
    advantages: Tensor,
    mask: Tensor,
    settings: AlgorithmSettings,
    denominator: float,
    *,
    old_logprobs: Tensor | None = None,
    reference_logprobs: Tensor | None = None,
) -> tuple[Tensor, dict[str, float]]:
    """Loss of one micro-batch as a sum over ``denominator``, so that micro-batches and ranks simply add up.

    Args:
        logprobs: Of the learner, with gradient.
        behaviour_logprobs: Of the policy that acted, as recorded at rollout.
        advantages: Of each token.
        mask: 1.0 where the policy chose the token, else 0.0.
        settings: The objective.
        denominator: Of the whole mini-batch: its action tokens (aggregation ``token``) or sequences (``sequence``).
        old_logprobs: Of the learner before the wave's first update. If given, ratios are against it, and the truncated
            importance weight min(old / behaviour, importance_cap) corrects the rollout/learner mismatch (Yao et al.
            2025, "Your efficient RL framework secretly brings you off-policy RL training"). Else ratios are against
            the behaviour policy itself, which needs no correction.
        reference_logprobs: What the KL penalty pulls towards; the behaviour policy if not given, which makes it the
            proximal penalty of PPO (Schulman et al. 2017, arXiv:1707.06347, eq. 8).

    Returns:
        The scalar loss, and sums over action tokens: ``approx_kl`` (k3 of KL(behaviour, learner)), ``clip_fraction``
        (of tokens whose ratio left the clip range); and ``ratio_max``.
    """
    anchor = behaviour_logprobs if old_logprobs is None else old_logprobs
    log_ratio = (logprobs - anchor) * mask
    token_losses = _surrogate(logprobs, log_ratio, advantages, mask, settings)
    if old_logprobs is not None:
        token_losses = token_losses * _importance(old_logprobs - behaviour_logprobs, settings.importance_cap)
    if settings.kl_coefficient:
        reference = behaviour_logprobs if reference_logprobs is None else reference_logprobs
        token_losses = token_losses + settings.kl_coefficient * kl_estimate(logprobs, reference, settings.kl_estimator)
    loss = aggregate(token_losses, mask, settings.aggregation) / denominator
    return loss, _statistics(logprobs.detach(), behaviour_logprobs, log_ratio.detach(), mask, settings)


def aggregate(token_losses: Tensor, mask: Tensor, aggregation: str) -> Tensor:
    """Sum over tokens, or sum over sequences of the mean over each sequence's tokens."""
    per_sequence = (token_losses * mask).sum(-1)
    if aggregation == "sequence":
        per_sequence = per_sequence / mask.sum(-1).clamp(min=1.0)
    return per_sequence.sum()


def kl_estimate(logprobs: Tensor, reference_logprobs: Tensor, estimator: str) -> Tensor:
    """Per-token estimate of KL(policy, reference) from tokens sampled by the policy (Schulman 2020).

    http://joschu.net/blog/kl-approx.html: k1 unbiased with high variance, k2 biased with low variance, k3 unbiased,
    non-negative and of low variance (also GRPO, arXiv:2402.03300, eq. 4).
    """
    log_ratio = reference_logprobs - logprobs
    if estimator == "k1":
        return -log_ratio
    if estimator == "k2":
        return log_ratio.square() / 2
    return log_ratio.exp() - 1 - log_ratio


def _surrogate(
    logprobs: Tensor, log_ratio: Tensor, advantages: Tensor, mask: Tensor, settings: AlgorithmSettings
) -> Tensor:
    """Per-token loss, f32[B, T]."""
    low, high = 1 - settings.clip_low, 1 + settings.clip_high
    match settings.name:
        case "rloo":  # REINFORCE as in RLOO (Ahmadian et al. 2024, arXiv:2402.14740), importance weights truncated
            return -_importance(log_ratio, settings.importance_cap) * advantages * logprobs
        case "cispo":  # MiniMax-M1 (2025, arXiv:2506.13585), eqs. 4 and 5: clip the weight, keep every gradient
            return -log_ratio.detach().exp().clamp(low, high) * advantages * logprobs
        case "gspo":  # GSPO (Zheng et al. 2025, arXiv:2507.18071), eqs. 5 and 7: one ratio for the whole sequence
            per_sequence = log_ratio.sum(-1, keepdim=True) / mask.sum(-1, keepdim=True).clamp(min=1.0)
            return clipped_loss(per_sequence.exp(), advantages, low, high, settings.importance_cap)
        case _:
            return clipped_loss(log_ratio.exp(), advantages, low, high, settings.importance_cap)


def clipped_loss(ratio: Tensor, advantages: Tensor, low: float, high: float, cap: float) -> Tensor:
    """Per-token clipped surrogate: GRPO (Shao et al. 2024, arXiv:2402.03300, eq. 3), DAPO (arXiv:2503.14476, eq. 8).

    For negative advantages the minimum alone has no bound; there the ratio is capped (dual-clip PPO, Ye et al. 2020,
    arXiv:1912.09729), at ``cap`` or at ``high`` if that is more.
    """
    bounded = ratio.clamp(max=max(cap, high))
    return -torch.minimum(bounded * advantages, ratio.clamp(low, high) * advantages)


def _importance(log_ratio: Tensor, cap: float) -> Tensor:
    """Truncated importance weight without gradient."""
    return log_ratio.detach().exp().clamp(max=cap)


def _statistics(
    logprobs: Tensor, behaviour: Tensor, log_ratio: Tensor, mask: Tensor, settings: AlgorithmSettings
) -> dict[str, float]:
    ratio = log_ratio.exp()
    outside = (ratio < 1 - settings.clip_low) | (ratio > 1 + settings.clip_high)
    return {
        "approx_kl": (kl_estimate(behaviour, logprobs, "k3") * mask).sum().item(),
        "clip_fraction": (outside * mask).sum().item(),
        "ratio_max": ratio.max().item(),
    }


def _require(key: str, value: str, allowed: tuple[str, ...]) -> None:
    if value not in allowed:
        raise ConfigError(f"{key}={value!r} is unknown; choose one of {', '.join(allowed)}")
