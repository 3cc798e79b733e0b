"""Starting, finding, watching and ending jobs, as local processes or under Slurm, both through submitit.

Every submission has a folder of its own, ``<root>/<name>-<number>``, with submitit's scripts, logs and results. The
folder is made before anything starts, and each job names it, so that a submitter that was killed at any instant finds
its jobs again when it is started anew, and never doubles them.
"""

from __future__ import annotations

import shlex
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Protocol

import submitit
from submitit.slurm.slurm import _make_sbatch_string

from hpc import local_jobs, slurm
from hpc.command_job import CommandJob
from hpc.errors import LaunchError, SlurmUnavailableError
from hpc.job import ARRAY_INDEX_VARIABLE, JobHandle, JobSpec, JobState, JobStatus
from hpc.process_identity import this_process
from hpc.submission import new_folder, next_folder, outcome, read_record, submissions, write_record

_UNLIMITED = 10**6  # submitit gives up after three requeues by default


class Launcher(Protocol):
    """Runs jobs somewhere."""

    def submit(self, spec: JobSpec) -> tuple[JobHandle, ...]:
        """Start all elements of a job array.

        Raises:
            LaunchError: it cannot be submitted.
        """
        ...

    def running(self) -> tuple[JobHandle, ...]:
        """All jobs that wait or run, those of an earlier submitter included.

        Raises:
            SlurmUnavailableError: the scheduler does not answer.
        """
        ...

    def poll(self, handles: Sequence[JobHandle]) -> dict[JobHandle, JobStatus]:
        """Where jobs stand; UNKNOWN while the scheduler does not answer."""
        ...

    def cancel(self, handles: Sequence[JobHandle]) -> None:
        """Tell jobs to save their state and end; does not wait for that.

        Raises:
            SlurmUnavailableError: the scheduler does not answer.
        """
        ...

    def render(self, spec: JobSpec) -> str:
        """What ``submit`` would run, as text."""
        ...


def open_launcher(executor: str, root: Path) -> Launcher:
    """The launcher for ``executor``, "slurm" or "local"; submissions get their folders in ``root``."""
    return SlurmLauncher(root) if executor == "slurm" else LocalLauncher(root)


class LocalLauncher:
    """Jobs are processes of this machine, all elements of an array at once. They end when their submitter is gone."""

    def __init__(self, root: Path) -> None:
        self._root = root.absolute()
        self._children: list[submitit.Job[int]] = []

    def submit(self, spec: JobSpec) -> tuple[JobHandle, ...]:
        """See ``Launcher``."""
        folder, resources = new_folder(self._root, spec.name), spec.resources
        executor = submitit.LocalExecutor(folder, max_num_timeout=_UNLIMITED)
        executor.update_parameters(
            timeout_min=resources.time_minutes,
            tasks_per_node=_processes(spec),
            gpus_per_node=resources.gpus_per_node,
            signal_delay_s=resources.signal_seconds,
        )
        with local_jobs.terminal_interrupts_ignored():
            jobs = executor.submit_array([_command_job(spec, index, local=True) for index in range(spec.array)])
        self._children += jobs
        handles = tuple(
            local_jobs.handle(folder, spec.name, index, int(job.job_id), _processes(spec))
            for index, job in enumerate(jobs)
        )
        write_record(handles)
        return handles

    def running(self) -> tuple[JobHandle, ...]:
        """See ``Launcher``."""
        known = [handle for folder in submissions(self._root) for handle in read_record(folder)]
        unrecorded = [folder for folder in submissions(self._root) if not read_record(folder)]
        return tuple(filter(local_jobs.is_alive, [*known, *local_jobs.find(unrecorded)]))

    def poll(self, handles: Sequence[JobHandle]) -> dict[JobHandle, JobStatus]:
        """See ``Launcher``."""
        self._children = [job for job in self._children if not job.done()]  # fetches their exit status
        running = {handle for handle in handles if local_jobs.is_alive(handle)}  # before looking at results
        return {handle: _RUNNING if handle in running else outcome(handle) for handle in handles}

    def cancel(self, handles: Sequence[JobHandle]) -> None:
        """See ``Launcher``."""
        for handle in handles:
            local_jobs.terminate(handle)

    def render(self, spec: JobSpec) -> str:
        """The command of each process."""
        jobs = [_command_job(spec, index, local=True) for index in range(spec.array)]
        commands = [shlex.join(["env", *_assignments(job), *job.command]) for job in jobs]
        return "\n".join(command for command in commands for _ in range(_processes(spec))) + "\n"


class SlurmLauncher:
    """Jobs are Slurm jobs; an array is a Slurm job array."""

    def __init__(self, root: Path) -> None:
        self._root = root.absolute()

    def submit(self, spec: JobSpec) -> tuple[JobHandle, ...]:
        """See ``Launcher``."""
        folder = new_folder(self._root, spec.name)
        try:
            executor = submitit.SlurmExecutor(folder, max_num_timeout=_UNLIMITED)
            executor.update_parameters(**_sbatch_parameters(spec, folder))
            jobs = executor.submit_array([_command_job(spec, index, local=False) for index in range(spec.array)])
        except (RuntimeError, ValueError) as error:  # submitit's errors, sbatch's message among them
            raise LaunchError(f"{spec.name} cannot be submitted to Slurm: {error}") from error
        handles = tuple(_slurm_handle(folder, index, job.job_id, spec) for index, job in enumerate(jobs))
        write_record(handles)
        return handles

    def running(self) -> tuple[JobHandle, ...]:
        """See ``Launcher``."""
        queued = slurm.queued_jobs()
        found: list[JobHandle] = []
        for folder in submissions(self._root):
            known = {handle.job_id: handle for handle in read_record(folder)}
            ids = [job.job_id for job in queued if job.comment == str(folder)]
            found += [known.get(job_id) or _unrecorded(folder, job_id) for job_id in ids]
        return tuple(found)

    def poll(self, handles: Sequence[JobHandle]) -> dict[JobHandle, JobStatus]:
        """See ``Launcher``."""
        try:
            queued = {job.job_id: job.state for job in slurm.queued_jobs()}
        except SlurmUnavailableError as error:
            return {handle: JobStatus(state=JobState.UNKNOWN, detail=str(error)) for handle in handles}
        return {handle: _queue_status(queued.get(handle.job_id)) or outcome(handle) for handle in handles}

    def cancel(self, handles: Sequence[JobHandle]) -> None:
        """See ``Launcher``."""
        slurm.cancel_jobs({handle.job_id for handle in handles})

    def render(self, spec: JobSpec) -> str:
        """The sbatch script, byte for byte what submitit writes for the next submission."""
        folder = next_folder(self._root, spec.name)
        command = shlex.join([sys.executable, "-u", "-m", "submitit.core._submit", str(folder)])
        array = {"map_count": spec.array} if spec.array > 1 else {}
        script: str = _make_sbatch_string(command=command, folder=folder, **_sbatch_parameters(spec, folder), **array)
        return script


_RUNNING = JobStatus(state=JobState.RUNNING)


def _command_job(spec: JobSpec, index: int, *, local: bool) -> CommandJob:
    """What element ``index`` runs. Under Slurm the sbatch script itself has the set-up lines."""
    resources = spec.resources
    return CommandJob(
        command=_after(resources.setup, spec.command) if local else spec.command,
        environment={**resources.environment, ARRAY_INDEX_VARIABLE: str(index)},
        time_seconds=60.0 * resources.time_minutes,
        grace_seconds=float(resources.signal_seconds),
        requeue=resources.requeue,
        owner=this_process() if local else None,
    )


def _after(setup: Sequence[str], command: tuple[str, ...]) -> tuple[str, ...]:
    """The command behind shell lines, each of which must succeed."""
    return ("bash", "-c", "\n".join(("set -e", *setup, 'exec "$@"')), "bash", *command) if setup else command


def _assignments(job: CommandJob) -> list[str]:
    return [f"{name}={value}" for name, value in job.environment.items()]


def _processes(spec: JobSpec) -> int:
    return spec.resources.nodes * spec.resources.tasks_per_node


def _sbatch_parameters(spec: JobSpec, folder: Path) -> dict[str, Any]:
    """Arguments of submitit's function that writes the sbatch script."""
    resources = spec.resources
    asked = {
        "partition": resources.partition,
        "account": resources.account,
        "qos": resources.qos,
        "constraint": resources.constraint,
        "gpus_per_node": resources.gpus_per_node or None,  # 0 is refused where no GPUs are configured
        "setup": list(resources.setup) or None,
    }
    return {name: value for name, value in asked.items() if value is not None} | {
        "job_name": spec.name,
        "comment": str(folder),  # by which a job is found whose submitter was killed
        "time": resources.time_minutes,
        "nodes": resources.nodes,
        "ntasks_per_node": resources.tasks_per_node,
        "cpus_per_task": resources.cpus_per_task,
        "mem": f"{resources.memory_mib}M",
        "signal_delay_s": resources.signal_seconds,
        "array_parallelism": resources.array_parallelism,
        "srun_args": list(resources.srun_arguments),
        "additional_parameters": {
            "requeue" if resources.requeue else "no-requeue": True,
            **resources.additional_parameters,
        },
    }


def _slurm_handle(folder: Path, index: int, job_id: str, spec: JobSpec) -> JobHandle:
    return JobHandle(name=spec.name, index=index, job_id=job_id, folder=folder, tasks=_processes(spec))


def _unrecorded(folder: Path, job_id: str) -> JobHandle:
    """A job whose submitter was killed right after sbatch; how many processes it has is not known."""
    name, index = folder.name.rpartition("-")[0], job_id.partition("_")[2]
    return JobHandle(name=name, index=int(index or 0), job_id=job_id, folder=folder)


def _queue_status(state: str | None) -> JobStatus | None:
    """None if the queue does not hold the job."""
    if state is None:
        return None
    waits = state in ("PENDING", "REQUEUED", "REQUEUE_HOLD", "REQUEUE_FED", "SPECIAL_EXIT")
    return JobStatus(state=JobState.PENDING if waits else JobState.RUNNING, detail=state)
