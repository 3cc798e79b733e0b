"""What a job is: what it runs, what it asks for, what became of it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path

from hpc.process_identity import ProcessIdentity

PREEMPTED_EXIT_CODE = 75
"""A command that was told to stop and has saved its state ends with it, to be run again (EX_TEMPFAIL of sysexits.h)."""

ARRAY_INDEX_VARIABLE = "HPC_ARRAY_INDEX"
"""Environment variable of the command: which element of the job array it is, from 0."""

ENDS_AT_VARIABLE = "HPC_ENDS_AT"
"""Environment variable of the command: when its allocation ends, seconds since the epoch."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Resources:
    """What one kind of job asks for. A local job heeds time, tasks, GPUs, setup and environment only."""

    partition: str | None = None
    account: str | None = None
    qos: str | None = None
    constraint: str | None = None
    time_minutes: int = 60
    nodes: int = 1
    tasks_per_node: int = 1
    gpus_per_node: int = 0
    cpus_per_task: int = 1
    memory_mib: int = 2048
    """Memory of one node."""
    array_parallelism: int = 256
    """Most elements of a job array that Slurm runs at once."""
    requeue: bool = True
    """Whether a job that was told to stop goes on under the same id."""
    signal_seconds: int = 60
    """How long before the end of its time a job is told to stop; also how long it may take for that."""
    setup: tuple[str, ...] = ()
    """Shell lines before the command, such as ``module load``."""
    environment: Mapping[str, str] = field(default_factory=dict)
    srun_arguments: tuple[str, ...] = ()
    additional_parameters: Mapping[str, str | int | bool] = field(default_factory=dict)
    """Further options of sbatch; True gives an option without value."""


@dataclass(frozen=True, slots=True, kw_only=True)
class JobSpec:
    """A command to run as a job array of ``array`` elements, each with its own ``HPC_ARRAY_INDEX``."""

    name: str
    command: tuple[str, ...]
    array: int = 1
    resources: Resources = Resources()


@dataclass(frozen=True, slots=True, kw_only=True)
class JobHandle:
    """One element of a submitted job; survives its submitter through the record in ``folder``."""

    name: str
    index: int
    job_id: str
    folder: Path
    """Scripts, logs and results of the submission."""
    tasks: int = 1
    """Processes of the job."""
    process: ProcessIdentity | None = None
    """The local process that runs it; None under Slurm."""


class JobState(StrEnum):
    """Where a job stands."""

    PENDING = "pending"
    RUNNING = "running"
    SUCCEEDED = "succeeded"
    FAILED = "failed"
    PREEMPTED = "preempted"
    """It has saved its state and ended; submit it again."""
    LOST = "lost"
    """It ended without a word: killed, node lost, cancelled."""
    UNKNOWN = "unknown"
    """Slurm does not answer; nothing may be concluded."""


@dataclass(frozen=True, slots=True, kw_only=True)
class JobStatus:
    """Where a job stands, and why if it failed."""

    state: JobState
    detail: str = ""

    @property
    def finished(self) -> bool:
        """Whether the job is over, for good or ill."""
        return self.state not in (JobState.PENDING, JobState.RUNNING, JobState.UNKNOWN)
