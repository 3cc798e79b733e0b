"""Asking Slurm, with one bounded query for all jobs. That Slurm does not answer says nothing about its jobs."""

from __future__ import annotations

import getpass
import subprocess
from collections.abc import Collection, Sequence
from dataclasses import dataclass

from hpc.errors import LaunchError, SlurmUnavailableError

QUERY_SECONDS = 20.0


@dataclass(frozen=True, slots=True, kw_only=True)
class QueuedJob:
    """A job that Slurm has not finished with."""

    job_id: str
    """``123``, or ``123_4`` for an array element."""
    state: str
    """Such as PENDING, RUNNING, COMPLETING, REQUEUED."""
    comment: str


def queued_jobs() -> list[QueuedJob]:
    """All jobs of this user that are waiting or running.

    Raises:
        SlurmUnavailableError: squeue failed or took too long.
    """
    output = _query(["squeue", "--noheader", "--array", f"--user={getpass.getuser()}", "--format=%i|%T|%k"])
    return [_job_of_line(line) for line in output.splitlines() if line]


def cancel_jobs(job_ids: Collection[str]) -> None:
    """Cancel jobs; ones that have ended already are no error.

    Raises:
        SlurmUnavailableError: scancel failed or took too long.
    """
    if job_ids:
        _query(["scancel", "--quiet", *sorted(job_ids)])


def _job_of_line(line: str) -> QueuedJob:
    job_id, state, comment = line.split("|", 2)
    return QueuedJob(job_id=job_id, state=state, comment=comment)


def _query(command: Sequence[str]) -> str:
    try:
        return subprocess.run(command, capture_output=True, text=True, check=True, timeout=QUERY_SECONDS).stdout
    except FileNotFoundError as error:
        raise LaunchError(f"{command[0]} is not on PATH: load Slurm's module, or use the local executor") from error
    except subprocess.TimeoutExpired as error:
        raise SlurmUnavailableError(f"{command[0]} gave no answer in {QUERY_SECONDS:.0f} s") from error
    except subprocess.CalledProcessError as error:
        raise SlurmUnavailableError(f"{command[0]} ended with {error.returncode}: {error.stderr.strip()}") from error
