"""One optimiser update: samples -> micro-batches by token budget -> summed gradients -> clipped AdamW step."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from rlhpc.learner.batch import Batch, TrainingSample, micro_batches, pad_batch
from rlhpc.learner.megatron import Learner, MicroBatch, data_parallel_place
from rlhpc.learner.settings import OptimizerSettings

BatchLoss = Callable[[Batch, Tensor, Tensor], tuple[Tensor, Mapping[str, float]]]
"""(batch, log-probabilities f32[B, T], entropies f32[B, T]) -> (scalar loss, named statistics).

Losses of all micro-batches add up to the loss of the update; both tensors are 0 where the loss mask is 0.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Update:
    """What one update did."""

    gradient_norm: float
    """Before clipping. Not finite: the update was left out."""
    statistics: tuple[Mapping[str, float], ...]
    """What the loss returned for each micro-batch, of all ranks."""


def update(
    learner: Learner,
    samples: Sequence[TrainingSample],
    loss: BatchLoss,
    *,
    token_budget: int,
    temperature: float,
    learning_rate: float,
) -> Update:
    """Take one optimiser step on ``samples``; every rank is given all of them and works on its share.

    Args:
        learner: Changed in place.
        samples: The whole mini-batch, not empty.
        loss: Its denominator must be that of the whole mini-batch.
        token_budget: Most tokens, padding included, of a micro-batch.
        temperature: Temperature that the samples were generated with.
        learning_rate: Of this step.
    """
    rank, ranks = data_parallel_place()
    batches = [pad_batch(part) for part in micro_batches(samples, token_budget)][rank::ranks]
    batches = batches or [_without_loss(pad_batch(samples[:1]))]  # every rank takes part in the gradient sum

    def loss_of(index: int, logprobs: Tensor, entropies: Tensor) -> tuple[Tensor, Mapping[str, float]]:
        batch = batches[index]
        if not len(logprobs):
            return logprobs.sum(), {}
        return loss(batch, _placed(logprobs, batch), _placed(entropies, batch))

    statistics = learner.accumulate([_for_model(batch) for batch in batches], loss_of, temperature=temperature)
    gradient_norm = learner.apply(learning_rate)
    return Update(gradient_norm=gradient_norm, statistics=tuple(sums for sums in statistics if sums))


def warmed_up(settings: OptimizerSettings, updates: int) -> float:
    """Learning rate of the update after ``updates`` others: rises linearly over ``warmup_steps``, then constant."""
    if updates >= settings.warmup_steps:
        return settings.learning_rate
    return settings.learning_rate * (updates + 1) / settings.warmup_steps


def _positions(batch: Batch) -> Tensor:
    """i64[N]: positions ``b * T + t`` with loss."""
    return batch.loss_mask.flatten().nonzero().squeeze(1)


def _for_model(batch: Batch) -> MicroBatch:
    selected = _positions(batch)
    # Position t predicts token t + 1. The last position of a row has no loss, so + 1 never leaves the row.
    return MicroBatch(token_ids=batch.token_ids, selected=selected, targets=batch.token_ids.flatten()[selected + 1])


def _placed(values: Tensor, batch: Batch) -> Tensor:
    """Bring one value per selected position back into the shape [B, T]."""
    grid = torch.zeros(batch.loss_mask.numel(), dtype=values.dtype, device=values.device)
    return grid.index_copy(0, _positions(batch).to(values.device), values).view_as(batch.loss_mask)


def _without_loss(batch: Batch) -> Batch:
    return Batch(
        token_ids=batch.token_ids,
        loss_mask=torch.zeros_like(batch.loss_mask),
        behaviour_logprobs=batch.behaviour_logprobs,
        advantages=batch.advantages,
    )
