"""Files and folders that are seen whole or not at all, and outlive a crash once the call has returned.

The pattern is always: write beside, fsync, rename or link, fsync the folder. Needs no flock. What a killed process
leaves beside begins with a dot and ends with ``.tmp``; nothing reads it.
"""

from __future__ import annotations

import contextlib
import json
import os
import secrets
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from hpc.errors import CorruptFileError, StorageError


def write_atomic(path: Path, data: bytes) -> None:
    """Create or replace a file; its folder is made if needed.

    Raises:
        OSError: the file system refused (full, read-only); the old file is untouched.
    """
    with atomic_path(path) as beside:
        beside.write_bytes(data)


def write_text(path: Path, text: str) -> None:
    """Create or replace a UTF-8 text file, like ``write_atomic``."""
    write_atomic(path, text.encode())


def write_json_atomic(path: Path, value: Any) -> None:
    """Create or replace a JSON file, like ``write_atomic``."""
    write_text(path, json.dumps(value, indent=1) + "\n")


@contextlib.contextmanager
def atomic_path(path: Path) -> Iterator[Path]:
    """A path beside ``path`` for a file that takes its place when the block ends; an exception leaves no trace."""
    with _beside(path) as beside:
        yield beside
        fsync(beside)
        os.replace(beside, path)
    fsync(path.parent)


def create_exclusive(path: Path, data: bytes) -> bool:
    """Create a file with its content in one step; of several callers exactly one gets True.

    A reader never sees it empty or half-written, as it would with O_EXCL alone.
    """
    with _beside(path) as beside:
        beside.write_bytes(data)
        fsync(beside)
        try:
            os.link(beside, path)
        except FileExistsError:
            return False
    fsync(path.parent)
    return True


def publish_folder(temporary: Path, target: Path) -> None:
    """Give a finished folder its name, durably, with everything in it.

    Raises:
        StorageError: ``target`` exists and is not empty.
    """
    for folder, _, files in os.walk(temporary):
        for name in files:
            fsync(Path(folder, name))
        fsync(Path(folder))
    try:
        os.rename(temporary, target)
    except OSError as error:
        if target.exists():
            raise StorageError(f"{target} exists already; {temporary} stays where it is") from error
        raise
    fsync(target.parent)


def read_json(path: Path) -> Any:
    """Value of a JSON file.

    Raises:
        CorruptFileError: it is not JSON.
        FileNotFoundError: it does not exist.
    """
    try:
        return json.loads(path.read_bytes())
    except ValueError as error:
        raise CorruptFileError(f"{path} is not valid JSON ({error}); restore it or move it away") from error


def fsync(path: Path) -> None:
    """Flush a file, or a folder's list of names, to the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


@contextlib.contextmanager
def _beside(path: Path) -> Iterator[Path]:
    """A name in the folder of ``path`` that is gone afterwards."""
    path.parent.mkdir(parents=True, exist_ok=True)
    beside = path.with_name(f".{path.name}.{secrets.token_hex(4)}.tmp")
    try:
        yield beside
    finally:
        beside.unlink(missing_ok=True)
