"""How far the learner is: the part of a checkpoint that is not tensors."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any


@dataclass(frozen=True, slots=True, kw_only=True)
class SftProgress:
    """How far the supervised stage is."""

    steps: int = 0
    average_loss: float | None = None
    """Exponential moving average, nats per action token; None before the first step."""
    complete: bool = False
    """Nothing is left to do in this stage; version 0 is the policy that it ended with."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Progress:
    """How far the learner is; saved with every checkpoint."""

    sft: SftProgress = SftProgress()
    step: int = 0
    """Optimisation steps done; also the version of the policy that they made."""
    consumed_waves: tuple[int, ...] = ()
    """Waves learned from. A group's id begins with its wave, so these are also the groups consumed."""

    @property
    def checkpoint_number(self) -> int:
        """Rises with every update of either stage."""
        return self.sft.steps + self.step

    def to_json(self) -> dict[str, Any]:
        """As JSON-able values."""
        return asdict(self)


def progress_from_json(values: Mapping[str, Any]) -> Progress:
    """Undo ``Progress.to_json``.

    Raises:
        KeyError, TypeError: the values are of another format.
    """
    return Progress(
        sft=SftProgress(**values["sft"]), step=values["step"], consumed_waves=tuple(values["consumed_waves"])
    )
