"""The folders of the host that belong to one sandbox, and the removal of those whose owner is dead.

A sandbox is the folder ``<base>/<host>.<pid namespace>.<owner pid>.<owner start time>.<random>`` with

- ``workspace/``: appears as /workspace
- ``read_only/<n>/``: copies of the extra read-only folders
- ``writable/<n>/``: the extra writable folders
- ``snapshots/``: unless they are kept elsewhere
- ``etc/``: passwd and group with one user
- ``container.log``: what the container program and the server complain about
"""

from __future__ import annotations

import os
import shutil
import socket
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from hpc.sandbox import tree

SERVER_MOUNT = "/run/command-server"
"""Where the code of the command server is found inside."""
SERVER_SOURCE = Path(__file__).parent / "inside"
FIRST_USER = 1_000_000_000
"""Users of sandboxes count from here, far above those of people and services."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Mount:
    """A file or folder of the host and where it appears inside."""

    source: Path
    target: str
    writable: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class SandboxFolders:
    """Everything of one sandbox on the host."""

    root: Path
    read_only_targets: tuple[str, ...]
    writable_targets: tuple[str, ...]

    @property
    def workspace(self) -> Path:
        """Appears as /workspace."""
        return self.root / "workspace"

    @property
    def snapshots(self) -> Path:
        """Snapshots, unless the caller keeps them elsewhere."""
        return self.root / "snapshots"

    @property
    def log(self) -> Path:
        """Complaints of the container program and of the command server."""
        return self.root / "container.log"

    @property
    def user(self) -> int:
        """A user of its own for this sandbox, so that limits and files are apart from every other's."""
        return FIRST_USER + self.root.stat().st_ino % FIRST_USER

    def read_only(self, target: str) -> Path:
        """Copy that appears read-only at ``target``."""
        return self.root / "read_only" / str(self.read_only_targets.index(target))

    def writable(self, target: str) -> Path:
        """Folder that appears at ``target``."""
        return self.root / "writable" / str(self.writable_targets.index(target))

    def mounts(self) -> list[Mount]:
        """What every backend mounts."""
        return [
            Mount(source=self.workspace, target="/workspace", writable=True),
            *(Mount(source=self.read_only(target), target=target) for target in self.read_only_targets),
            *(Mount(source=self.writable(target), target=target, writable=True) for target in self.writable_targets),
            Mount(source=self.root / "etc" / "passwd", target="/etc/passwd"),
            Mount(source=self.root / "etc" / "group", target="/etc/group"),
            Mount(source=SERVER_SOURCE, target=f"{SERVER_MOUNT}/hpc/sandbox/inside"),
        ]

    def remove(self) -> None:
        """Delete all of it, whatever the sandbox made of its folders."""
        tree.remove(self.root)


def create_folders(
    base: Path, read_only: Sequence[str], writable: Sequence[str], *, own_user: bool
) -> SandboxFolders:
    """Make the folders of a new sandbox below ``base``.

    Args:
        base: Node-local folder that all sandboxes of a user on this node may share.
        read_only: Absolute paths inside that get read-only folders.
        writable: Absolute paths inside that get writable folders.
        own_user: Whether the sandbox runs as a user of its own (only root can give files away).
    """
    base.mkdir(parents=True, exist_ok=True, mode=0o700)
    root = Path(tempfile.mkdtemp(prefix=f"{_place()}.{os.getpid()}.{_start_time(os.getpid())}.", dir=base))
    folders = SandboxFolders(root=root, read_only_targets=tuple(read_only), writable_targets=tuple(writable))
    user = folders.user if own_user else os.getuid()
    for path in (folders.workspace, *map(folders.writable, writable)):
        _make(path, 0o755, user if own_user else None)
    for path in map(folders.read_only, read_only):
        _make(path, 0o755, None)
    _make(root / "etc", 0o755, None)
    _write_readable(root / "etc" / "passwd", f"root:x:0:0:root:/:/bin/sh\nagent:x:{user}:{user}::/workspace:/bin/sh\n")
    _write_readable(root / "etc" / "group", f"root:x:0:\nagent:x:{user}:\n")
    return folders


def reap(base: Path) -> list[Path]:
    """Remove the folders of owners that have died on this node; returns what was removed."""
    removed = []
    for root in base.glob(f"{_place()}.*") if base.is_dir() else ():
        process, started = root.name.removeprefix(f"{_place()}.").split(".")[:2]
        if _start_time(int(process)) != started:
            tree.remove(root)
            removed.append(root)
    return removed


def _place() -> str:
    """Process numbers mean something only on one host and in one PID namespace."""
    return f"{socket.gethostname().replace('.', '-')}.{os.stat('/proc/self/ns/pid').st_ino}"


def _start_time(process: int) -> str:
    """Start time of a process in clock ticks since boot; empty if there is none. Together with its number unique."""
    try:
        return Path(f"/proc/{process}/stat").read_text(errors="replace").rpartition(")")[2].split()[19]
    except OSError:
        return ""


def _make(path: Path, mode: int, owner: int | None) -> None:
    path.mkdir(parents=True)
    path.chmod(mode)  # whatever the umask
    if owner is not None:
        os.chown(path, owner, owner)


def _write_readable(path: Path, text: str) -> None:
    path.write_text(text)
    path.chmod(0o644)


def fill(target: Path, source: Path, owner: int | None) -> None:
    """Copy the content of ``source`` into ``target``, links as links, readable for the sandbox's user."""
    shutil.copytree(source, target, symlinks=True, dirs_exist_ok=True)
    give(target, owner)  # copytree gave it the source's mode
    for folder, folders, files in os.walk(target):
        for name in (*folders, *files):
            give(Path(folder, name), owner)


def give(path: Path, owner: int | None) -> None:
    """Make one file or folder readable for all, and the property of ``owner`` if there is one."""
    if owner is not None:
        os.chown(path, owner, owner, follow_symlinks=False)
    if not path.is_symlink():
        mode = path.stat().st_mode
        path.chmod(mode | (0o755 if path.is_dir() else 0o644 | (mode & 0o100 and 0o111)))
