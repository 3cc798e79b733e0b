"""Checkpoint folders: written beside, hashed, renamed; verified before use; damaged ones moved out of the way.

What is inside is the caller's: this module sees files. ``checkpoints/step-000012/`` holds the state's files,
``progress.json`` and ``manifest.json`` with the size and SHA-256 of every other file.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rlhpc.errors import CheckpointError

logger = logging.getLogger(__name__)

_MANIFEST = "manifest.json"
_PROGRESS = "progress.json"
_UNFINISHED = ".unfinished-"


@dataclass(frozen=True, slots=True, kw_only=True)
class Checkpoint:
    """One verified checkpoint."""

    path: Path
    number: int
    progress: Mapping[str, Any]
    """What ``finish_checkpoint`` was given."""


def begin_checkpoint(folder: Path, number: int) -> Path:
    """An empty folder that nobody takes for a checkpoint yet; leftovers of a killed process are removed."""
    folder.mkdir(parents=True, exist_ok=True)
    for leftover in folder.glob(f"{_UNFINISHED}*"):
        shutil.rmtree(leftover)
    unfinished = folder / f"{_UNFINISHED}{_name(number)}"
    unfinished.mkdir()
    return unfinished


def finish_checkpoint(unfinished: Path, progress: Mapping[str, Any], *, keep: int) -> Path:
    """Hash and flush what was written, give it its final name and drop all but the newest ``keep`` checkpoints.

    Args:
        unfinished: The folder from ``begin_checkpoint``, with the state's files in it.
        progress: JSON-able facts that belong to the state.
        keep: How many checkpoints stay.
    """
    (unfinished / _PROGRESS).write_text(json.dumps(progress, indent=1))
    files = {file.name: _fingerprint(file) for file in sorted(unfinished.iterdir())}
    (unfinished / _MANIFEST).write_text(json.dumps({"format": 1, "files": files}, indent=1))
    for file in unfinished.iterdir():
        flush(file)
    flush(unfinished)
    final = unfinished.with_name(unfinished.name.removeprefix(_UNFINISHED))
    if final.exists():  # the same step written again after an older checkpoint had to be used
        shutil.rmtree(final)
    os.rename(unfinished, final)
    flush(final.parent)
    for old in _checkpoints(final.parent)[keep:]:
        shutil.rmtree(old)
    return final


def latest_valid_checkpoint(folder: Path, set_aside: Path) -> Checkpoint | None:
    """The newest checkpoint whose files all match their manifest; None if there is none.

    Damaged ones on the way are moved to ``set_aside`` with the reason in a text file beside them.
    """
    for path in _checkpoints(folder):
        try:
            return verify_checkpoint(path)
        except CheckpointError as damage:
            logger.warning("%s; falling back to the previous checkpoint", damage)
            _move_aside(path, set_aside, str(damage))
    return None


def verify_checkpoint(path: Path) -> Checkpoint:
    """Read one checkpoint's progress after comparing every file with the manifest.

    Raises:
        CheckpointError: a file is missing, unreadable or differs from its fingerprint.
    """
    try:
        files = json.loads((path / _MANIFEST).read_text())["files"]
        damaged = [name for name, fingerprint in files.items() if _fingerprint(path / name) != fingerprint]
        if damaged:
            raise CheckpointError(f"checkpoint {path}: {', '.join(damaged)} differs from the manifest")
        progress = json.loads((path / _PROGRESS).read_text())
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise CheckpointError(f"checkpoint {path} cannot be read: {error!r}") from error
    return Checkpoint(path=path, number=_number(path), progress=progress)


def _name(number: int) -> str:
    return f"step-{number:06d}"


def _number(path: Path) -> int:
    return int(path.name.removeprefix("step-"))


def _checkpoints(folder: Path) -> list[Path]:
    """Finished checkpoints, newest first."""
    return sorted((path for path in folder.glob("step-*") if path.is_dir()), key=_number, reverse=True)


def _fingerprint(file: Path) -> dict[str, Any]:
    with file.open("rb") as stream:
        return {"sha256": hashlib.file_digest(stream, "sha256").hexdigest(), "bytes": file.stat().st_size}


def flush(path: Path) -> None:
    """Wait until a file or folder is on disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _move_aside(path: Path, set_aside: Path, reason: str) -> None:
    set_aside.mkdir(parents=True, exist_ok=True)
    target = set_aside / f"checkpoint-{path.name}"
    if target.exists():
        shutil.rmtree(target)
    shutil.move(path, target)
    target.with_suffix(".reason.txt").write_text(reason + "\n")
