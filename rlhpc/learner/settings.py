"""Values that say how the learner learns. The objective's settings are in losses.py."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True, kw_only=True)
class ParallelSettings:
    """How the model is laid out over ranks; what tensor and pipeline do not use is data parallel."""

    tensor: int = 1
    pipeline: int = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class OptimizerSettings:
    """AdamW with linear warm-up."""

    learning_rate: float = 1e-5
    weight_decay: float = 0.0
    betas: tuple[float, float] = (0.9, 0.95)
    clip_grad: float = 1.0
    """Largest global gradient norm; 0 does not clip."""
    warmup_steps: int = 0
    """Updates over which the learning rate rises linearly to its value."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SftSettings:
    """Supervised warm start on reference trajectories."""

    steps: int = 0
    """Most updates; 0 means no supervised stage."""
    batch_size: int = 16
    """Trajectories per update."""
    stop_at_loss: float = 0.0
    """Stop once the moving average of the loss (nats per action token) is below this; 0 never stops early."""
    optimizer: OptimizerSettings = field(default_factory=lambda: OptimizerSettings(learning_rate=1e-3, warmup_steps=10))
    checkpoint_every: int = 50
    """Updates between checkpoints."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LearnerSettings:
    """Everything of the learner but the objective."""

    parallel: ParallelSettings = ParallelSettings()
    optimizer: OptimizerSettings = OptimizerSettings()
    sft: SftSettings = field(default_factory=SftSettings)
    micro_batch_tokens: int = 4096
    """Most tokens, padding included, of one micro-batch. On CPUs larger ones are not faster and need more memory."""
    updates_per_wave: int = 1
    """Optimiser updates (mini-batches) that one wave is split into."""
    checkpoint_keep: int = 2
    """Checkpoints kept; at least 2, so that a damaged newest one has a predecessor."""
    threads: int = 2
    """Threads of one rank on the CPU. Another number changes the last bits of results."""
    seed: int = 0
