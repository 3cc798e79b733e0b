"""Advantages: how much better a trajectory did than its baseline. Pure functions of rewards."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import fmean, pstdev

from rlhpc.learner.losses import AlgorithmSettings


def advantages_of(
    rewards_by_group: Mapping[str, Sequence[float]], settings: AlgorithmSettings
) -> dict[str, list[float]]:
    """One advantage per trajectory, in the order of the rewards.

    Args:
        rewards_by_group: Rewards of each group's valid trajectories; what was lost to infrastructure is left out by
            the caller, so that it is in no baseline.
        settings: ``name`` and ``normalize_by_std`` decide the estimator.
    """
    if settings.name == "reinforce_plus_plus":
        return batch_normalized(rewards_by_group)
    if settings.name == "rloo":
        return {group: leave_one_out(rewards) for group, rewards in rewards_by_group.items()}
    by_std = settings.normalize_by_std and settings.name != "dr_grpo"
    return {group: group_relative(rewards, by_std=by_std) for group, rewards in rewards_by_group.items()}


def group_relative(rewards: Sequence[float], *, by_std: bool) -> list[float]:
    """Reward minus the group's mean, divided by its standard deviation if ``by_std``.

    With division GRPO (Shao et al. 2024, arXiv:2402.03300), without Dr. GRPO (Liu et al. 2025,
    arXiv:2503.20783). A group of equal rewards says nothing: exactly zero.
    """
    if _all_equal(rewards):
        return [0.0] * len(rewards)
    mean = fmean(rewards)
    scale = pstdev(rewards, mean) if by_std else 1.0
    return [(reward - mean) / scale for reward in rewards]


def leave_one_out(rewards: Sequence[float]) -> list[float]:
    """Reward minus the mean of the group's other rewards: RLOO (Ahmadian et al. 2024, arXiv:2402.14740)."""
    if _all_equal(rewards):
        return [0.0] * len(rewards)
    total, others = sum(rewards), len(rewards) - 1
    return [reward - (total - reward) / others for reward in rewards]


def batch_normalized(rewards_by_group: Mapping[str, Sequence[float]]) -> dict[str, list[float]]:
    """Rewards normalised over the whole batch: REINFORCE++ (Hu et al. 2025, arXiv:2501.03262)."""
    everything = [reward for rewards in rewards_by_group.values() for reward in rewards]
    normalized = iter(group_relative(everything, by_std=True))
    return {group: [next(normalized) for _ in rewards] for group, rewards in rewards_by_group.items()}


def _all_equal(rewards: Sequence[float]) -> bool:
    return not rewards or min(rewards) == max(rewards)
