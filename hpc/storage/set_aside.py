"""Damaged files are moved out of the way, never deleted, each with the reason in a text file beside it."""

from __future__ import annotations

import contextlib
import secrets
from pathlib import Path

from hpc.storage.atomic import write_text


def move_aside(path: Path, folder: Path, reason: str) -> None:
    """Move a file to ``folder`` as ``<its folder>-<its name>.<random>``; one that is gone already is no fault.

    Args:
        path: The damaged file.
        folder: On the same file system; made if needed.
        reason: For people.
    """
    folder.mkdir(parents=True, exist_ok=True)
    target = folder / f"{path.parent.name}-{path.name}.{secrets.token_hex(2)}"
    write_text(target.with_name(f"{target.name}.reason.txt"), f"{path}: {reason}\n")
    with contextlib.suppress(FileNotFoundError):  # another reader was faster
        path.rename(target)
