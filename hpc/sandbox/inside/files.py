"""Writes and reads files for the owner without following a link that a command may have planted."""

from __future__ import annotations

import os
import stat

LARGEST_READ = 256 << 20


def write_file(path: bytes, content: bytes) -> None:
    """Create or replace a file and its parent folders. Raises OSError where a link stands in the way."""
    folder, name = _open_parent(path, create=True)
    try:
        mode = _remove_old(folder, name)
        descriptor = os.open(name, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o644, dir_fd=folder)
        with open(descriptor, "wb") as file:
            file.write(content)
            os.fchmod(descriptor, mode)
    finally:
        os.close(folder)


def read_file(path: bytes) -> bytes | None:
    """Content of a regular file; None for anything else, for links, and where nothing is."""
    try:
        folder, name = _open_parent(path, create=False)
    except OSError:
        return None
    try:
        # not blocking: a command may have put a named pipe here
        descriptor = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK, dir_fd=folder)
    except OSError:
        return None
    finally:
        os.close(folder)
    status = os.fstat(descriptor)
    if not stat.S_ISREG(status.st_mode):
        os.close(descriptor)
        return None
    with open(descriptor, "rb") as file:
        if status.st_size > LARGEST_READ:
            raise OSError(f"{os.fsdecode(path)} has {status.st_size} bytes; at most {LARGEST_READ} can be read")
        return file.read()


def _remove_old(folder: int, name: bytes) -> int:
    """Unlink what has that name; the mode that its successor gets."""
    try:
        status = os.lstat(name, dir_fd=folder)
    except FileNotFoundError:
        return 0o644
    os.unlink(name, dir_fd=folder)
    return stat.S_IMODE(status.st_mode) & 0o777 if stat.S_ISREG(status.st_mode) else 0o644


def _open_parent(path: bytes, create: bool) -> tuple[int, bytes]:
    """(descriptor of the folder that holds ``path``, its last name); no step of the way may be a link or ``..``."""
    parts = [part for part in path.split(b"/") if part not in (b"", b".")]
    if not parts or b".." in parts:
        raise OSError(f"{os.fsdecode(path)!r} is no path of a file")
    folder = os.open(b"/" if path.startswith(b"/") else b".", os.O_RDONLY | os.O_DIRECTORY)
    for part in parts[:-1]:
        try:
            inner = _open_folder(folder, part, create)
        finally:
            os.close(folder)
        folder = inner
    return folder, parts[-1]


def _open_folder(parent: int, name: bytes, create: bool) -> int:
    flags = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW
    try:
        return os.open(name, flags, dir_fd=parent)
    except FileNotFoundError:
        if not create:
            raise
        os.mkdir(name, 0o755, dir_fd=parent)
        return os.open(name, flags, dir_fd=parent)
