"""What a sandbox is: the protocol that every backend fulfils and the values that cross it."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Protocol


class Limit(StrEnum):
    """A limit that a command ran into."""

    WALL_TIME = "wall_time"
    MEMORY = "memory"
    PROCESSES = "processes"
    FILE_SIZE = "file_size"
    DISK = "disk"
    OUTPUT = "output"


@dataclass(frozen=True, slots=True, kw_only=True)
class SandboxLimits:
    """What a sandbox may use at most."""

    memory_mib: int = 1024
    processes: int = 128
    file_size_mib: int = 64
    disk_mib: int = 1024
    output_bytes: int = 64 * 1024
    """Bytes kept of each of stdout and stderr; head and tail are kept."""
    shared_memory_mib: int = 64


@dataclass(frozen=True, slots=True, kw_only=True)
class SandboxSpec:
    """What to start: an image, a workspace, extra read-only folders."""

    image: Path | None = None
    """Root file system (folder or .sif); None means the host's own system folders, read-only."""
    files: Mapping[str, bytes] | None = None
    """Initial workspace: path relative to /workspace -> content."""
    source: Path | None = None
    """Folder copied into /workspace at start (without following symlinks); combined with ``files``."""
    read_only: Mapping[str, Path] | None = None
    """Extra read-only mounts: absolute path inside -> folder of the host."""
    writable: Sequence[str] = ()
    """Extra empty writable folders inside, absolute (for example /logs/verifier)."""
    environment: Mapping[str, str] | None = None
    limits: SandboxLimits = SandboxLimits()


def shape_of(spec: SandboxSpec) -> Hashable:
    """What has to be known when a container starts; the rest of a spec can be filled in later."""
    return spec.image, tuple(sorted(spec.read_only or ())), tuple(spec.writable), spec.limits


@dataclass(frozen=True, slots=True, kw_only=True)
class ExecResult:
    """Outcome of one command. A failing, timed-out or killed command is a value, not an exception."""

    exit_code: int
    """Exit status; 128 + signal when killed by one."""
    stdout: str
    stderr: str
    duration: float
    """Seconds."""
    peak_memory: float
    """MiB, largest resident set of the command and its children."""
    truncated: bool
    timed_out: bool
    limit: Limit | None = None
    """Which limit ended the command, if one did."""


class Sandbox(Protocol):
    """One isolated place where commands run. Working directory of commands: /workspace."""

    def start(self) -> None:
        """Start the container and fill it with the spec it was made for. Raises SandboxStartError."""

    def launch(self) -> None:
        """Begin to start, without waiting and without filling; ``fill`` comes later. Raises SandboxStartError."""

    def fill(self, spec: SandboxSpec) -> None:
        """Put files, read-only folders and environment of a spec of the same shape into a launched sandbox."""

    def execute(self, command: str, timeout: float) -> ExecResult:
        """Run ``command`` with ``sh -c`` for at most ``timeout`` seconds. Raises SandboxDiedError."""

    def write_files(self, files: Mapping[str, bytes]) -> None:
        """Write files; absolute paths, or relative to /workspace. Raises SandboxDiedError."""

    def read_files(self, paths: Sequence[str]) -> dict[str, bytes | None]:
        """Read files without following links out; None for a file that is not there."""

    def snapshot(self) -> str:
        """Save the workspace; returns an opaque identifier, equal for equal workspaces (content hash)."""

    def restore(self, snapshot: str) -> None:
        """Put the workspace back to ``snapshot``; works also after the container died (starts it again)."""

    def export_workspace(self, target: Path) -> None:
        """Copy the workspace into the new folder ``target`` of the host, links copied as links."""

    def close(self) -> None:
        """End all processes and remove every trace. Idempotent."""


SandboxFactory = Callable[[SandboxSpec], Sandbox]
"""Makes a sandbox that is not started yet."""
