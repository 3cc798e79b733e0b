"""Which process of which machine wrote something, and whether it certainly lives no more."""

from __future__ import annotations

import os
import socket
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessIdentity:
    """Tells a process from all others, also after its process id was given to another one."""

    host: str
    boot: str
    """Boot id and process id namespace: process ids mean something only within one."""
    pid: int
    started: int
    """Clock ticks after the boot."""


def this_process() -> ProcessIdentity:
    """Identity of the calling process."""
    pid = os.getpid()
    return ProcessIdentity(host=socket.gethostname(), boot=_boot(), pid=pid, started=_started(pid) or 0)


def process_identity(pid: int) -> ProcessIdentity | None:
    """Identity of a living process of this machine; None if there is none."""
    started = _started(pid)
    if started is None:
        return None
    return ProcessIdentity(host=socket.gethostname(), boot=_boot(), pid=pid, started=started)


def is_dead(process: ProcessIdentity) -> bool:
    """Whether the process certainly lives no more; False for one on another machine, of which nothing is known."""
    return process.boot == _boot() and _started(process.pid) != process.started


def _boot() -> str:
    return Path("/proc/sys/kernel/random/boot_id").read_text().strip() + os.readlink("/proc/self/ns/pid")


def _started(pid: int) -> int | None:
    """Start of a living process; None if there is none, or only its exit status waits to be fetched."""
    try:
        status = Path(f"/proc/{pid}/stat").read_text(errors="replace")
    except (FileNotFoundError, ProcessLookupError):
        return None
    fields = status.rpartition(")")[2].split()  # the name before it may hold anything
    return None if fields[0] in "ZX" else int(fields[19])
