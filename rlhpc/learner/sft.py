"""Supervised warm start: mean negative log-likelihood of the action tokens of reference trajectories."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence

import torch
from torch import Tensor

from rlhpc.errors import NothingToDoError
from rlhpc.learner.batch import Batch, TrainingSample, sample_of
from rlhpc.learner.megatron import Learner
from rlhpc.learner.progress import SftProgress
from rlhpc.learner.settings import LearnerSettings, SftSettings
from rlhpc.learner.update import update, warmed_up
from rlhpc.types import Trajectory

_NEWEST_WEIGHT = 0.1
"""Weight of the newest loss in the moving average that decides on stopping early."""


def supervised_steps(
    learner: Learner, samples: Sequence[TrainingSample], settings: LearnerSettings, progress: SftProgress
) -> Iterator[tuple[SftProgress, dict[str, float]]]:
    """Go on from ``progress`` until the stage is complete; yields progress and metrics after each update."""
    while not progress.complete:
        started = time.monotonic()
        indices = batch_indices(len(samples), settings.sft.batch_size, progress.steps, settings.seed)
        metrics = _supervised_update(learner, [samples[index] for index in indices], settings)
        progress = advanced(progress, metrics["sft_loss"], settings.sft)
        metrics["sft_loss_average"] = progress.average_loss or 0.0
        metrics["sft_tokens_per_second"] = metrics["sft_tokens"] / (time.monotonic() - started)
        yield progress, metrics


def supervised_samples(trajectories: Sequence[Trajectory]) -> list[TrainingSample]:
    """Samples of the trajectories that solve their task; there is nothing to learn from the others.

    Raises:
        NothingToDoError: none of them does.
    """
    solved = [trajectory for trajectory in trajectories if trajectory.solved]
    if not solved:
        raise NothingToDoError("no reference trajectory solves its task; look at the quality report")
    return [sample_of(trajectory, advantage=1.0) for trajectory in solved]


def advanced(progress: SftProgress, loss: float, settings: SftSettings) -> SftProgress:
    """Progress after one more update whose loss was ``loss``; complete at the last step or once the loss is low."""
    before = loss if progress.average_loss is None else progress.average_loss
    average = before + _NEWEST_WEIGHT * (loss - before)
    steps = progress.steps + 1
    complete = steps >= settings.steps or average < settings.stop_at_loss
    return SftProgress(steps=steps, average_loss=average, complete=complete)


def batch_indices(count: int, batch_size: int, step: int, seed: int) -> list[int]:
    """Indices of batch ``step``: passes over all ``count`` samples, each in a new order that ``seed`` decides.

    A function of its arguments alone, so a resumed stage sees the same batches.
    """
    positions = range(step * batch_size, (step + 1) * batch_size)
    orders = {epoch: _order(count, epoch, seed) for epoch in {position // count for position in positions}}
    return [orders[position // count][position % count] for position in positions]


def _order(count: int, epoch: int, seed: int) -> list[int]:
    generator = torch.Generator().manual_seed((seed << 20) + epoch)
    return torch.randperm(count, generator=generator).tolist()


def _supervised_update(
    learner: Learner, samples: Sequence[TrainingSample], settings: LearnerSettings
) -> dict[str, float]:
    """One update on the mean negative log-likelihood per action token of the batch."""
    action_tokens = sum(sum(sample.loss_mask) for sample in samples)

    def loss(batch: Batch, logprobs: Tensor, entropies: Tensor) -> tuple[Tensor, Mapping[str, float]]:
        value = -logprobs.sum() / action_tokens
        return value, {"loss": value.item(), "entropy": entropies.sum().item() / action_tokens}

    learning_rate = warmed_up(settings.sft.optimizer, learner.updates)
    done = update(
        learner,
        samples,
        loss,
        token_budget=settings.micro_batch_tokens,
        temperature=1.0,
        learning_rate=learning_rate,
    )
    return {
        "sft_loss": sum(part["loss"] for part in done.statistics),
        "sft_entropy": sum(part["entropy"] for part in done.statistics),
        "sft_gradient_norm": done.gradient_norm,
        "sft_learning_rate": learning_rate,
        "sft_tokens": float(sum(len(sample.token_ids) for sample in samples)),
    }
