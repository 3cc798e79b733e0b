"""Trajectories -> training samples -> micro-batches -> padded tensors."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from rlhpc.learner.advantages import advantages_of
from rlhpc.learner.losses import AlgorithmSettings
from rlhpc.types import Trajectory, TrajectoryStatus

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingSample:
    """One trajectory as the learner sees it; the sequences have one entry per token."""

    group_id: str
    sample_index: int
    token_ids: tuple[int, ...]
    loss_mask: tuple[int, ...]
    """1 where the policy chose the token, 0 where the environment wrote it."""
    behaviour_logprobs: tuple[float, ...]
    """0.0 where the environment wrote the token."""
    advantage: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Batch:
    """Samples padded on the right. All but ``token_ids`` are shifted: position t describes token t + 1."""

    token_ids: Tensor
    """i64[B, T]; 0 where padded."""
    loss_mask: Tensor
    """f32[B, T]; 0 at the last position and where padded."""
    behaviour_logprobs: Tensor
    """f32[B, T]."""
    advantages: Tensor
    """f32[B, T]; constant along a row's action tokens, 0 elsewhere."""


def training_samples(trajectories: Sequence[Trajectory], settings: AlgorithmSettings) -> list[TrainingSample]:
    """Samples of a wave, in the order of the trajectories.

    Invalid trajectories are in no sample and in no baseline. Groups without signal (every advantage zero) are left
    out, also from denominators: the filter of DAPO's dynamic sampling (Yu et al. 2025, arXiv:2503.14476, eq. 11).
    """
    valid = [trajectory for trajectory in trajectories if trajectory.status is TrajectoryStatus.COMPLETE]
    rewards: dict[str, list[float]] = {}
    for trajectory in valid:
        rewards.setdefault(trajectory.group_id, []).append(trajectory.reward)
    advantages = advantages_of(rewards, settings)
    silent = {group for group, values in advantages.items() if not any(values)}
    logger.info("%d trajectories, %d invalid", len(trajectories), len(trajectories) - len(valid))
    logger.info("%d groups, %d without signal", len(rewards), len(silent))
    remaining = {group: iter(values) for group, values in advantages.items()}
    samples = [sample_of(trajectory, next(remaining[trajectory.group_id])) for trajectory in valid]
    return [sample for sample in samples if sample.group_id not in silent]


def sample_of(trajectory: Trajectory, advantage: float) -> TrainingSample:
    """The trajectory's tokens with masks and log-probabilities: exactly the ids that were generated."""
    mask: list[int] = []
    logprobs: list[float] = []
    for played in trajectory.rounds:
        context, action = len(played.context_token_ids), len(played.action_token_ids)
        mask += [0] * context + [1] * action
        logprobs += [0.0] * context + list(played.behaviour_logprobs)
    return TrainingSample(
        group_id=trajectory.group_id,
        sample_index=trajectory.sample_index,
        token_ids=trajectory.token_ids,
        loss_mask=tuple(mask),
        behaviour_logprobs=tuple(logprobs),
        advantage=advantage,
    )


def micro_batches(samples: Iterable[TrainingSample], token_budget: int) -> list[list[TrainingSample]]:
    """Split so that no micro-batch has more than ``token_budget`` tokens, padding included.

    Longest first, so that rows of like length share a batch; a sample longer than the budget is a batch of its own.
    The result depends on the samples alone, not on their order.
    """
    batches: list[list[TrainingSample]] = []
    longest = 0
    for sample in sorted(samples, key=lambda sample: (-len(sample.token_ids), sample.group_id, sample.sample_index)):
        if not batches or longest * (len(batches[-1]) + 1) > token_budget:
            batches.append([])
            longest = len(sample.token_ids)
        batches[-1].append(sample)
    return batches


def pad_batch(samples: Sequence[TrainingSample]) -> Batch:
    """The samples as tensors; T is the longest sample's length."""
    shape = len(samples), max(len(sample.token_ids) for sample in samples)
    token_ids = torch.zeros(shape, dtype=torch.int64)
    mask, logprobs, advantages = torch.zeros(shape), torch.zeros(shape), torch.zeros(shape)
    for row, sample in enumerate(samples):
        length = len(sample.token_ids)
        token_ids[row, :length] = torch.tensor(sample.token_ids)
        mask[row, : length - 1] = torch.tensor(sample.loss_mask[1:], dtype=torch.float32)
        logprobs[row, : length - 1] = torch.tensor(sample.behaviour_logprobs[1:], dtype=torch.float32)
        advantages[row] = sample.advantage * mask[row]
    return Batch(token_ids=token_ids, loss_mask=mask, behaviour_logprobs=logprobs, advantages=advantages)
