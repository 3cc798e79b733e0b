"""One reinforcement-learning step: the trajectories of a wave -> one or more optimiser updates, and metrics."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from statistics import fmean

import torch
from torch import Tensor

from rlhpc.learner.batch import Batch, TrainingSample, training_samples
from rlhpc.learner.losses import AlgorithmSettings, policy_loss
from rlhpc.learner.megatron import Learner
from rlhpc.learner.settings import LearnerSettings
from rlhpc.learner.update import Update, update, warmed_up
from rlhpc.types import Trajectory, TrajectoryStatus


def train_on_wave(
    learner: Learner,
    trajectories: Sequence[Trajectory],
    *,
    algorithm: AlgorithmSettings,
    settings: LearnerSettings,
    temperature: float,
    seed: int,
) -> dict[str, float]:
    """Learn from one wave and return its metrics.

    Advantages come from the whole wave, before it is split into ``updates_per_wave`` mini-batches. A wave without any
    signal (all advantages zero, or nothing valid) leaves the learner as it is.

    Args:
        learner: Changed in place.
        trajectories: All of the wave, in a fixed order.
        algorithm: The objective.
        settings: Batching and optimizer.
        temperature: Temperature that the wave was sampled with.
        seed: Decides how the wave is split.
    """
    started = time.monotonic()
    samples = training_samples(trajectories, algorithm)
    updates = [
        _policy_update(learner, mini_batch, algorithm, settings, temperature)
        for mini_batch in _mini_batches(samples, settings.updates_per_wave, seed)
    ]
    seconds = time.monotonic() - started
    tokens = float(sum(len(sample.token_ids) for sample in samples))
    speed = {"tokens": tokens, "tokens_per_second": tokens / seconds, "learn_seconds": seconds}
    return _outcomes(trajectories) | (_learning(updates) if updates else {}) | speed


def _policy_update(
    learner: Learner,
    samples: Sequence[TrainingSample],
    algorithm: AlgorithmSettings,
    settings: LearnerSettings,
    temperature: float,
) -> Update:
    denominator = loss_denominator(samples, algorithm.aggregation)

    def loss(batch: Batch, logprobs: Tensor, entropies: Tensor) -> tuple[Tensor, Mapping[str, float]]:
        behaviour, mask = batch.behaviour_logprobs.to(logprobs), batch.loss_mask.to(logprobs)
        value, statistics = policy_loss(
            logprobs, behaviour, batch.advantages.to(logprobs), mask, algorithm, denominator
        )
        gap = ((logprobs.detach() - behaviour).abs() * mask).sum().item()
        sums = {"loss": value.item(), "entropy": entropies.sum().item(), "logprob_gap": gap}
        return value, {**statistics, **sums, "action_tokens": mask.sum().item()}

    return update(
        learner,
        samples,
        loss,
        token_budget=settings.micro_batch_tokens,
        temperature=temperature,
        learning_rate=warmed_up(settings.optimizer, learner.updates),
    )


def loss_denominator(samples: Sequence[TrainingSample], aggregation: str) -> float:
    """What the summed loss of a mini-batch is divided by: its action tokens, or its sequences ("sequence").

    Counted over the whole mini-batch, so that micro-batches and ranks add up to the same loss.
    """
    return float(len(samples) if aggregation == "sequence" else sum(sum(sample.loss_mask) for sample in samples))


def _mini_batches(samples: Sequence[TrainingSample], count: int, seed: int) -> list[list[TrainingSample]]:
    """Split into at most ``count`` parts of equal size (give or take one), in an order that ``seed`` decides."""
    if count == 1:
        return [list(samples)] if samples else []
    order = torch.randperm(len(samples), generator=torch.Generator().manual_seed(seed)).tolist()
    parts = [[samples[index] for index in order[first::count]] for first in range(count)]
    return [part for part in parts if part]


def _outcomes(trajectories: Sequence[Trajectory]) -> dict[str, float]:
    """How the wave went, over trajectories that count."""
    complete = [trajectory for trajectory in trajectories if trajectory.status is TrajectoryStatus.COMPLETE]
    invalid = float(len(trajectories) - len(complete))
    if not complete:
        return {"invalid_trajectories": invalid}
    return {
        "reward_mean": fmean(trajectory.reward for trajectory in complete),
        "solve_rate": fmean(trajectory.solved for trajectory in complete),
        "rounds_mean": fmean(len(trajectory.rounds) for trajectory in complete),
        "invalid_trajectories": invalid,
    }


def _learning(updates: Sequence[Update]) -> dict[str, float]:
    """Means over the action tokens of all updates, and maxima over all of them.

    ``logprob_gap`` (mean absolute difference of learner and behaviour) is that of the first update alone, before any
    weight of this wave has changed: it shows how well learner and rollout agree.
    """
    parts = [part for update in updates for part in update.statistics]
    first = updates[0].statistics
    return {
        "loss": sum(part["loss"] for part in parts) / len(updates),
        "entropy": _per_action_token(parts, "entropy"),
        "approx_kl": _per_action_token(parts, "approx_kl"),
        "clip_fraction": _per_action_token(parts, "clip_fraction"),
        "ratio_max": max(part["ratio_max"] for part in parts),
        "logprob_gap": _per_action_token(first, "logprob_gap"),
        "gradient_norm": fmean(update.gradient_norm for update in updates),
        "action_tokens": sum(part["action_tokens"] for part in parts),
    }


def _per_action_token(parts: Sequence[Mapping[str, float]], name: str) -> float:
    return sum(part[name] for part in parts) / sum(part["action_tokens"] for part in parts)
