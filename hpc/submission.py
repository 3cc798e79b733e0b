"""The folder of one submission: who runs it (``job.json``), and what submitit says became of it."""

from __future__ import annotations

import itertools
import pickle
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

from submitit.core.utils import JobPaths

from hpc.errors import LaunchError
from hpc.job import PREEMPTED_EXIT_CODE, JobHandle, JobState, JobStatus
from hpc.process_identity import ProcessIdentity
from hpc.storage.atomic import fsync, read_json, write_json_atomic

_RECORD = "job.json"


def new_folder(root: Path, name: str) -> Path:
    """Make the folder ``<root>/<name>-<number>`` of a new submission; durable before anything starts in it."""
    root.mkdir(parents=True, exist_ok=True)
    while True:
        folder = next_folder(root, name)
        try:
            folder.mkdir()
        except FileExistsError:
            continue  # another submitter was faster
        fsync(root)
        return folder


def next_folder(root: Path, name: str) -> Path:
    """The folder that the next submission of this name gets."""
    if "/" in name or "%" in name:
        raise LaunchError(f"job name {name!r} may hold neither '/' nor '%', which have a meaning in paths of logs")
    return next(folder for n in itertools.count(1) if not (folder := root / f"{name}-{n:04d}").exists())


def submissions(root: Path) -> list[Path]:
    """Folders of all submissions so far."""
    return sorted(folder for folder in root.glob("*-[0-9][0-9][0-9][0-9]*") if folder.is_dir())


def write_record(handles: Sequence[JobHandle]) -> None:
    """Remember who runs a submission. All handles are of one folder."""
    records = [asdict(handle) | {"folder": None} for handle in handles]  # a run directory may be moved
    write_json_atomic(handles[0].folder / _RECORD, records)


def read_record(folder: Path) -> tuple[JobHandle, ...]:
    """Who runs a submission; empty if its submitter was killed before it could write that."""
    if not (folder / _RECORD).exists():
        return ()
    return tuple(_handle(folder, values) for values in read_json(folder / _RECORD))


def outcome(handle: JobHandle) -> JobStatus:
    """What became of a job that does not run any more, by the results that its processes left."""
    results = [_result(handle, task) for task in range(handle.tasks)]
    errors = [value for kind, value in filter(None, results) if kind == "error"]
    if errors:
        return JobStatus(state=JobState.FAILED, detail=str(errors[0]).strip().splitlines()[-1])
    if None in results:
        return JobStatus(state=JobState.LOST, detail=f"{handle.name} {handle.job_id} ended without a result")
    if ("success", PREEMPTED_EXIT_CODE) in results:
        return JobStatus(state=JobState.PREEMPTED)
    return JobStatus(state=JobState.SUCCEEDED)


def log_files(handle: JobHandle) -> list[Path]:
    """Standard output and error of each process of a job."""
    paths = [JobPaths(handle.folder, handle.job_id, task) for task in range(handle.tasks)]
    return [file for path in paths for file in (path.stdout, path.stderr)]


def _result(handle: JobHandle, task: int) -> tuple[str, object] | None:
    """``("success", exit code)`` or ``("error", traceback)``; None if the process left nothing."""
    try:
        kind, value = pickle.loads(JobPaths(handle.folder, handle.job_id, task).result_pickle.read_bytes())
    except FileNotFoundError:
        return None
    return kind, value


def _handle(folder: Path, values: dict[str, object]) -> JobHandle:
    process = values["process"]
    known = {**values, "folder": folder, "process": ProcessIdentity(**process) if isinstance(process, dict) else None}
    return JobHandle(**known)  # type: ignore[arg-type]  # what asdict made of a JobHandle
