"""What the gate says of a task, and its form on disk."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any


@dataclass(frozen=True, slots=True, kw_only=True)
class Check:
    """One thing that was tried."""

    name: str
    passed: bool
    evidence: str
    """What was seen; for a failed check, why the task was rejected."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """The outcome of all checks of one task; the first that fails is the last."""

    task_id: str
    path: Path
    """The task folder."""
    content_hash: str
    """Of the folder that was judged; empty if it could not be read as a task."""
    checks: tuple[Check, ...]

    @property
    def accepted(self) -> bool:
        """Whether every check passed."""
        return all(check.passed for check in self.checks)

    @property
    def reason(self) -> str:
        """Name and evidence of the failed check; empty if the task is accepted."""
        return "; ".join(f"{check.name}: {check.evidence}" for check in self.checks if not check.passed)


def verdict_to_json(verdict: Verdict) -> dict[str, Any]:
    """A JSON object."""
    return asdict(verdict) | {"path": str(verdict.path), "accepted": verdict.accepted}


def verdict_from_json(values: dict[str, Any]) -> Verdict:
    """The inverse of ``verdict_to_json``. Raises KeyError or TypeError for anything else."""
    return Verdict(
        task_id=values["task_id"],
        path=Path(values["path"]),
        content_hash=values["content_hash"],
        checks=tuple(Check(**check) for check in values["checks"]),
    )


def read_verdicts(files: Iterable[Path]) -> Iterator[Verdict]:
    """All verdicts of append-only files; a torn line (its writer was killed) is passed over."""
    for file in files:
        for line in file.read_text(errors="replace").splitlines():
            try:
                yield verdict_from_json(json.loads(line))
            except (ValueError, KeyError, TypeError):
                continue
