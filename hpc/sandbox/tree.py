"""Walking, copying and deleting folders that hostile code has filled.

No link is followed, named pipes are not opened, and folders without permissions are opened for the owner. All of it
expects that nothing changes the folder meanwhile: sandboxes keep no process alive between commands.
"""

from __future__ import annotations

import os
import shutil
import stat
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from hpc.errors import SandboxError

DEEPEST = 200
"""Folders within folders; deeper trees exceed PATH_MAX sooner or later and are made only out of malice."""


def walk(root: bytes) -> Iterator[tuple[bytes, os.stat_result]]:
    """Relative path and status of everything below ``root``, parents before children, in order of their names.

    Raises SandboxError for a tree too deep to handle.
    """
    yield from _walk_below(root, b"", 0)


def _walk_below(root: bytes, prefix: bytes, depth: int) -> Iterator[tuple[bytes, os.stat_result]]:
    if depth > DEEPEST:
        raise SandboxError(f"the workspace nests folders deeper than {DEEPEST}; it can't be saved")
    with _unlocked(os.path.join(root, prefix)) as folder:
        for name in sorted(os.listdir(folder)):
            relative = os.path.join(prefix, name)
            status = os.lstat(os.path.join(root, relative))
            yield relative, status
            if stat.S_ISDIR(status.st_mode):
                yield from _walk_below(root, relative, depth + 1)


@contextmanager
def _unlocked(folder: bytes) -> Iterator[bytes]:
    """The folder, open to us while it is looked into, although its owner may have locked it."""
    mode = stat.S_IMODE(os.lstat(folder).st_mode)
    locked = mode & 0o700 != 0o700
    if locked:
        os.chmod(folder, 0o700)
    try:
        yield folder
    finally:
        if locked:
            os.chmod(folder, mode)


def unlock(root: bytes) -> None:
    """Open every folder below ``root``, so that entries can be put into it and deleted."""
    for relative, status in list(walk(root)):
        if stat.S_ISDIR(status.st_mode):
            os.chmod(os.path.join(root, relative), 0o700)


@contextmanager
def open_regular(path: bytes) -> Iterator[int]:
    """Descriptor of a regular file for reading, also of one whose owner forbade reading. Follows no link."""
    flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK
    try:
        descriptor = os.open(path, flags)
    except PermissionError:
        mode = stat.S_IMODE(os.lstat(path).st_mode)
        os.chmod(path, 0o600)
        descriptor = os.open(path, flags)
        os.fchmod(descriptor, mode)
    try:
        yield descriptor
    finally:
        os.close(descriptor)


def copy(source: Path, target: Path) -> None:
    """Copy a tree into the new folder ``target``: links as links; pipes, sockets and devices left out.

    Raises SandboxError for a tree too deep to handle, OSError if the target can't be written.
    """
    target.mkdir(parents=True)
    origin, destination = os.fsencode(source), os.fsencode(target)
    for relative, status in walk(origin):
        there = os.path.join(destination, relative)
        if stat.S_ISDIR(status.st_mode):
            os.mkdir(there, 0o755)
        elif stat.S_ISLNK(status.st_mode):
            os.symlink(os.readlink(os.path.join(origin, relative)), there)
        elif stat.S_ISREG(status.st_mode):
            with open_regular(os.path.join(origin, relative)) as reader, open(there, "xb") as writer:
                shutil.copyfileobj(open(reader, "rb", closefd=False), writer)
            os.chmod(there, stat.S_IMODE(status.st_mode) & 0o777 | 0o400)
            os.utime(there, ns=(status.st_mtime_ns, status.st_mtime_ns))


def remove(root: Path) -> None:
    """Delete a tree, also one with locked folders or too deep to name. Raises OSError if something stays."""
    try:
        shutil.rmtree(root)
    except FileNotFoundError:
        return
    except (OSError, RecursionError):
        # unlock what a normal user may not enter; find and rm don't mind any depth
        subprocess.run(["find", root, "-type", "d", "-exec", "chmod", "u+rwx", "{}", ";"],
                       stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, check=False)  # fmt: skip
        subprocess.run(["rm", "-rf", "--", root], stderr=subprocess.DEVNULL, check=False)
        if root.exists():
            raise
