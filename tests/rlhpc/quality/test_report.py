"""What the gate leaves on disk."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from hpc.sandbox.protocol import Sandbox, SandboxSpec
from rlhpc.errors import TaskError
from rlhpc.paths import RunPaths
from rlhpc.quality.gate import run_gate
from rlhpc.quality.report import accepted_tasks, as_markdown, rejected_by_check, write_report
from rlhpc.quality.verdict import Check, Verdict, verdict_from_json, verdict_to_json
from rlhpc.tasks.harbor import load_task

WriteTask = Callable[..., Path]


def verdict(task: str, failed: str | None = None, evidence: str = "seen") -> Verdict:
    checks = [Check(name="schema", passed=failed != "schema", evidence=evidence)]
    if failed != "schema":
        checks.append(Check(name="initial_fails", passed=failed is None, evidence=evidence))
    return Verdict(task_id=task, path=Path("/tasks") / task, content_hash="abc", checks=tuple(checks))


def test_the_gate_to_the_accepted_tasks(
    write_task: WriteTask, open_sandbox: Callable[[SandboxSpec], Sandbox], tmp_path: Path
) -> None:
    paths = RunPaths(tmp_path / "run")
    unsolvable = write_task("b", {"solution/solve.sh": "true\n"})
    folders = [write_task("c"), unsolvable, write_task("a")]
    write_report(paths, run_gate(folders, paths, open_sandbox, parallel=2))
    assert accepted_tasks(paths) == [load_task(folders[0]), load_task(folders[2])]
    report = json.loads(paths.quality_report.read_text())
    assert (report["tasks"], report["accepted"]) == (3, 2)
    assert report["rejected_by_check"] == {"reference_passes": 1}
    assert [v["task_id"] for v in report["verdicts"] if not v["accepted"]] == ["b"]
    assert "2 of 3 tasks are accepted" in paths.quality_summary.read_text()


def test_a_task_that_was_changed_after_the_gate_is_refused_by_name(
    write_task: WriteTask, open_sandbox: Callable[[SandboxSpec], Sandbox], tmp_path: Path
) -> None:
    paths = RunPaths(tmp_path / "run")
    folder = write_task("a")
    write_report(paths, run_gate([folder], paths, open_sandbox, parallel=1))
    (folder / "instruction.md").write_text("Something else.\n")
    with pytest.raises(TaskError, match="task a .* was changed after the gate accepted it"):
        accepted_tasks(paths)


def test_verdicts_survive_the_way_to_disk() -> None:
    for original in (verdict("a"), verdict("b", "schema", 'quotes " and\nlines')):
        assert verdict_from_json(json.loads(json.dumps(verdict_to_json(original)))) == original


def test_rejections_are_counted_by_check() -> None:
    verdicts = [verdict("a"), verdict("b", "schema"), verdict("c", "initial_fails"), verdict("d", "initial_fails")]
    assert rejected_by_check(verdicts) == {"initial_fails": 2, "schema": 1}


def test_the_report_for_people_is_one_row_per_rejected_task() -> None:
    text = as_markdown([verdict("a"), verdict("b", "schema", "two\nlines | and a bar")])
    assert "| b | schema: two lines \\| and a bar |" in text
    assert "| a |" not in text
