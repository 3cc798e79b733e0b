"""What the gate leaves on disk: the report for people and programs, and the list of accepted tasks."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from hpc.storage.atomic import write_text
from rlhpc.errors import TaskError
from rlhpc.paths import RunPaths
from rlhpc.quality.verdict import Verdict, verdict_to_json
from rlhpc.tasks.harbor import load_task
from rlhpc.types import Task


def write_report(paths: RunPaths, verdicts: Sequence[Verdict]) -> None:
    """Write report.json, report.md and, last, accepted.jsonl: where that exists the gate is done."""
    summary = {
        "tasks": len(verdicts),
        "accepted": sum(verdict.accepted for verdict in verdicts),
        "rejected_by_check": rejected_by_check(verdicts),
        "verdicts": [verdict_to_json(verdict) for verdict in verdicts],
    }
    write_text(paths.quality_report, json.dumps(summary, indent=1) + "\n")
    write_text(paths.quality_summary, as_markdown(verdicts))
    accepted = [
        {"task_id": verdict.task_id, "path": str(verdict.path), "content_hash": verdict.content_hash}
        for verdict in verdicts
        if verdict.accepted
    ]
    write_text(paths.accepted, "".join(json.dumps(entry) + "\n" for entry in accepted))


def accepted_tasks(paths: RunPaths) -> list[Task]:
    """Load the tasks that the gate accepted, in the order of its report.

    Raises:
        TaskError: a folder is gone or was changed after it was judged.
    """
    tasks = []
    for line in paths.accepted.read_text().splitlines():
        entry = json.loads(line)
        task = load_task(Path(entry["path"]))
        if task.content_hash != entry["content_hash"]:
            raise TaskError(
                f"task {task.task_id} ({task.path}) was changed after the gate accepted it; "
                "put it back, or begin a new run"
            )
        tasks.append(task)
    return tasks


def rejected_by_check(verdicts: Sequence[Verdict]) -> dict[str, int]:
    """How many tasks each check has rejected, most first."""
    failed = Counter(check.name for verdict in verdicts for check in verdict.checks if not check.passed)
    return dict(failed.most_common())


def as_markdown(verdicts: Sequence[Verdict]) -> str:
    """The report for people."""
    rejected = [verdict for verdict in verdicts if not verdict.accepted]
    lines = ["# Quality gate", "", f"{len(verdicts) - len(rejected)} of {len(verdicts)} tasks are accepted."]
    if rejected:
        lines += ["", "| check | tasks rejected |", "|---|---|"]
        lines += [f"| {name} | {count} |" for name, count in rejected_by_check(verdicts).items()]
        lines += ["", "## Rejected", "", "| task | reason |", "|---|---|"]
        lines += [f"| {_cell(verdict.task_id)} | {_cell(verdict.reason)} |" for verdict in rejected]
    return "\n".join(lines) + "\n"


def _cell(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|")
