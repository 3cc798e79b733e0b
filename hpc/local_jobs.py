"""Jobs that are processes of this machine."""

from __future__ import annotations

import contextlib
import os
import signal
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path

import psutil

from hpc.job import JobHandle
from hpc.process_identity import ProcessIdentity, process_identity


def handle(folder: Path, name: str, index: int, pid: int, tasks: int = 1) -> JobHandle:
    """Handle of the job that process ``pid``, submitit's local controller, runs."""
    process = process_identity(pid) or ProcessIdentity(host="", boot="", pid=pid, started=0)  # it has ended already
    return JobHandle(name=name, index=index, job_id=str(pid), folder=folder, tasks=tasks, process=process)


def is_alive(job: JobHandle) -> bool:
    """Whether the process of a job lives, on this machine and in this boot of it."""
    living = process_identity(int(job.job_id))
    return living is not None and living == job.process


def find(folders: Sequence[Path]) -> list[JobHandle]:
    """Jobs whose submitter was killed before it could record them; their folder is submitit's argument."""
    wanted = {str(folder): folder for folder in folders}
    if not wanted:
        return []
    found: list[JobHandle] = []
    for process in psutil.process_iter(["cmdline"]):
        arguments = process.info["cmdline"] or []
        if "submitit.local._local" in arguments and arguments[-1] in wanted:
            folder = wanted[arguments[-1]]
            found.append(handle(folder, folder.name.rpartition("-")[0], len(found), process.pid))
    return found


def terminate(job: JobHandle) -> None:
    """Send SIGTERM to a job, which hands it on to its command; one that has ended is no error."""
    if is_alive(job):
        with contextlib.suppress(ProcessLookupError):
            os.kill(int(job.job_id), signal.SIGTERM)


@contextlib.contextmanager
def terminal_interrupts_ignored() -> Iterator[None]:
    """Processes started in the block do not hear Ctrl-C: their submitter hears it, and ends them in order."""
    if threading.current_thread() is not threading.main_thread():
        yield  # only the main thread may set handlers
        return
    previous = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, previous)
