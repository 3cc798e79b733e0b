"""Judging tasks: each once, in parallel, resumable after a kill at any point."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import replace
from pathlib import Path

from hpc.errors import SandboxError, SandboxStartError
from rlhpc.errors import PreemptedError, TaskError
from rlhpc.paths import RunPaths
from rlhpc.quality.execute import (
    OpenSandbox,
    check_empty_change_fails,
    check_initial_fails,
    check_reference_passes,
    grade_initial,
)
from rlhpc.quality.static import check_schema
from rlhpc.quality.verdict import Check, Verdict, read_verdicts, verdict_to_json
from rlhpc.tasks.harbor import load_task
from rlhpc.types import Task

logger = logging.getLogger(__name__)


def run_gate(
    folders: Sequence[Path],
    paths: RunPaths,
    open_sandbox: OpenSandbox,
    *,
    parallel: int,
    worker: str = "0",
    should_stop: Callable[[], bool] = lambda: False,
) -> list[Verdict]:
    """Judge the tasks in ``folders`` that were not judged before with the same content.

    Args:
        folders: Task folders; several workers take disjoint parts.
        paths: The run; verdicts are appended as they come, to a file of this worker alone.
        open_sandbox: Gives a started sandbox.
        parallel: Tasks judged at once.
        worker: Unique among living workers.
        should_stop: The scheduler takes the machine away.

    Returns:
        One verdict for each folder, in the same order.

    Raises:
        PreemptedError: ``should_stop`` said so; what was judged stays judged.
        SandboxStartError: no sandbox can be started on this machine.
    """
    paths.quality.mkdir(parents=True, exist_ok=True)
    known = {(v.task_id, v.content_hash): v for v in read_verdicts(paths.verdict_files())}

    def judge(folder: Path) -> tuple[Verdict, bool]:
        if should_stop():
            raise PreemptedError("preempted while judging tasks; run again to go on")
        try:
            task = load_task(folder)
        except TaskError as error:
            return _unreadable(folder, error), True
        before = known.get((task.task_id, task.content_hash))
        return (gate_task(task, open_sandbox), True) if before is None else (replace(before, path=folder), False)

    verdicts: dict[Path, Verdict] = {}
    with ThreadPoolExecutor(parallel) as executor, paths.verdicts(worker).open("a") as file:
        file.write("\n")  # ends a line that a kill has torn; empty lines are passed over
        futures = {executor.submit(judge, folder): folder for folder in folders}
        try:
            for future in as_completed(futures):
                verdict, new = future.result()
                verdicts[futures[future]] = verdict
                if new:
                    file.write(json.dumps(verdict_to_json(verdict)) + "\n")
                    file.flush()
                if not verdict.accepted:
                    logger.warning("task %s is rejected: %s", verdict.task_id, verdict.reason)
        finally:
            executor.shutdown(cancel_futures=True)
    return [verdicts[folder] for folder in folders]


def gate_task(task: Task, open_sandbox: OpenSandbox, *, attempts: int = 3) -> Verdict:
    """Check one task; the first check that fails ends it.

    Args:
        task: The task.
        open_sandbox: Gives a started sandbox.
        attempts: How often it is tried when a sandbox dies; then the task itself is taken as the cause.

    Raises:
        SandboxStartError: no sandbox can be started; says nothing about the task.
    """
    try:
        return _verdict(task, _until_failure(_checks(task, open_sandbox)))
    except SandboxError as error:
        logger.warning("task %s, %d attempts left: %s", task.task_id, attempts - 1, error)
        if attempts > 1:
            return gate_task(task, open_sandbox, attempts=attempts - 1)
        if isinstance(error, SandboxStartError):
            raise
        return _verdict(task, [Check(name="sandbox_survives", passed=False, evidence=str(error))])


def _checks(task: Task, open_sandbox: OpenSandbox) -> Iterator[Check]:
    yield check_schema(task)
    initial = grade_initial(task, open_sandbox)
    yield check_initial_fails(initial)
    yield check_empty_change_fails(initial, grade_initial(task, open_sandbox))
    yield check_reference_passes(task, open_sandbox)


def _until_failure(checks: Iterator[Check]) -> Iterator[Check]:
    for check in checks:
        yield check
        if not check.passed:
            return


def _verdict(task: Task, checks: Iterable[Check]) -> Verdict:
    return Verdict(task_id=task.task_id, path=task.path, content_hash=task.content_hash, checks=tuple(checks))


def _unreadable(folder: Path, error: TaskError) -> Verdict:
    check = Check(name="schema", passed=False, evidence=str(error))
    return Verdict(task_id=folder.name, path=folder, content_hash="", checks=(check,))
