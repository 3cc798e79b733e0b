"""The gate: sound tasks pass, every kind of unsound task is stopped with its reason, and nothing is judged twice."""

import json
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from hpc.errors import SandboxDiedError, SandboxStartError
from hpc.sandbox.protocol import Sandbox, SandboxSpec
from rlhpc.errors import PreemptedError
from rlhpc.paths import RunPaths
from rlhpc.quality.gate import gate_task, run_gate
from rlhpc.quality.verdict import Verdict, read_verdicts
from rlhpc.tasks.harbor import load_task

OpenSandbox = Callable[[SandboxSpec], Sandbox]
WriteTask = Callable[..., Path]


@pytest.fixture
def paths(tmp_path: Path) -> RunPaths:
    return RunPaths(tmp_path / "run")


def names(verdict: Verdict) -> list[tuple[str, bool]]:
    return [(check.name, check.passed) for check in verdict.checks]


def test_a_sound_task_is_accepted_after_all_checks(write_task: WriteTask, open_sandbox: OpenSandbox) -> None:
    task = load_task(write_task("sound"))
    verdict = gate_task(task, open_sandbox)
    assert names(verdict) == [
        ("schema", True),
        ("initial_fails", True),
        ("empty_change_fails", True),
        ("reference_passes", True),
    ]
    assert verdict.accepted and verdict.reason == ""
    assert (verdict.task_id, verdict.path, verdict.content_hash) == ("sound", task.path, task.content_hash)


ALWAYS = "echo 1 > /logs/verifier/reward.txt\n"
FLAKY = "od -An -N4 -tu4 /dev/urandom | awk '{print $1 / 4294967296}' > /logs/verifier/reward.txt\n"
NEEDS_BASH = "#!/bin/bash\nwords=(right wrong)\necho ${words[0]} > answer.txt\n"


@pytest.mark.parametrize(
    ("files", "check", "evidence"),
    [
        ({"instruction.md": "\n"}, "schema", "instruction.md is empty"),
        ({"solution/solve.sh": " \n"}, "schema", "solution/solve.sh is missing or empty"),
        ({"tests/test.sh": "\n"}, "schema", "tests/test.sh is missing or empty"),
        ({"tests/test.sh": ALWAYS}, "initial_fails", "100% of the tests pass"),
        ({"tests/test.sh": FLAKY}, "empty_change_fails", "flaky"),
        ({"solution/solve.sh": "exit 3\n"}, "reference_passes", "ended with exit code 3"),
        ({"solution/solve.sh": "echo left > answer.txt\n"}, "reference_passes", "0% of the tests pass"),
        ({"tests/test.sh": "exit 1\n"}, "reference_passes", "no reward file"),
    ],
)
def test_unsound_tasks_are_stopped_with_the_reason(
    write_task: WriteTask, open_sandbox: OpenSandbox, files: dict[str, str], check: str, evidence: str
) -> None:
    verdict = gate_task(load_task(write_task("unsound", files)), open_sandbox)
    assert not verdict.accepted
    assert names(verdict)[-1] == (check, False)
    assert evidence in verdict.reason


def test_scripts_run_with_the_shell_that_they_ask_for(write_task: WriteTask, open_sandbox: OpenSandbox) -> None:
    assert gate_task(load_task(write_task("bash", {"solution/solve.sh": NEEDS_BASH})), open_sandbox).accepted


def test_the_solution_is_there_for_the_solution_alone(write_task: WriteTask, open_sandbox: OpenSandbox) -> None:
    """Neither do the tests see the solution, nor the solution the tests."""
    curious = {
        "solution/solve.sh": "if ls /tests; then exit; fi; cp /solution/answer.txt .\n",
        "solution/answer.txt": "right\n",
        "tests/test.sh": "test -e /solution && exit; grep -cx right answer.txt > /logs/verifier/reward.txt\n",
    }
    assert gate_task(load_task(write_task("curious", curious)), open_sandbox).accepted


def test_a_folder_that_is_no_task_is_rejected_and_stops_no_other(
    write_task: WriteTask, open_sandbox: OpenSandbox, paths: RunPaths
) -> None:
    folders = [
        write_task("broken", {"task.toml": "[agent\n"}),
        write_task("sound"),
        write_task("none", {"task.toml": None}),
    ]
    verdicts = run_gate(folders, paths, open_sandbox, parallel=2)
    assert [(verdict.task_id, verdict.accepted) for verdict in verdicts] == [
        ("broken", False),
        ("sound", True),
        ("none", False),
    ]
    assert "task.toml" in verdicts[0].reason and "task.toml" in verdicts[2].reason


def test_tasks_are_judged_again_only_if_they_changed(
    write_task: WriteTask, open_sandbox: OpenSandbox, paths: RunPaths
) -> None:
    folders = [write_task(f"task-{number}") for number in range(3)]
    first = run_gate(folders, paths, open_sandbox, parallel=2)
    write_task("task-1", {"tests/test.sh": ALWAYS})
    started = []

    def counting(spec: SandboxSpec) -> Sandbox:
        started.append(spec)
        return open_sandbox(spec)

    second = run_gate(folders, paths, counting, parallel=2, worker="1")
    assert len(started) == 1  # the changed task fails at its first run
    assert [verdict.accepted for verdict in second] == [True, False, True]
    assert (second[0], second[2]) == (first[0], first[2])


def test_a_torn_verdict_is_passed_over(write_task: WriteTask, open_sandbox: OpenSandbox, paths: RunPaths) -> None:
    folders = [write_task(f"task-{number}") for number in range(2)]
    run_gate(folders, paths, open_sandbox, parallel=1)
    file = paths.verdicts("0")
    file.write_bytes(file.read_bytes()[:-20])
    assert len(list(read_verdicts([file]))) == 1
    assert all(verdict.accepted for verdict in run_gate(folders, paths, open_sandbox, parallel=1))
    assert len(list(read_verdicts([file]))) == 2


GATE = """
import sys
from pathlib import Path
from hpc.sandbox.open import choose_backend, open_sandbox
from rlhpc.paths import RunPaths
from rlhpc.quality.gate import run_gate

run, sandboxes, *folders = map(Path, sys.argv[1:])
run_gate(folders, RunPaths(run), lambda spec: open_sandbox(choose_backend(), spec, sandboxes), parallel=1)
"""


def test_killed_at_any_point_the_gate_goes_on(
    write_task: WriteTask, open_sandbox: OpenSandbox, paths: RunPaths, tmp_path: Path
) -> None:
    folders = [write_task(f"task-{number}") for number in range(8)]
    arguments = map(str, (paths.root, tmp_path / "sandboxes", *folders))
    process = subprocess.Popen([sys.executable, "-c", GATE, *arguments])
    deadline = time.monotonic() + 60
    while len(list(read_verdicts(paths.verdict_files()))) < 2 and time.monotonic() < deadline:
        time.sleep(0.01)
    process.kill()
    process.wait()
    done = len(list(read_verdicts(paths.verdict_files())))
    assert 2 <= done < 8
    assert all(verdict.accepted for verdict in run_gate(folders, paths, open_sandbox, parallel=2))
    judged = [json.loads(line)["task_id"] for line in paths.verdicts("0").read_text().splitlines() if line]
    assert sorted(judged) == [folder.name for folder in folders]


def test_preemption_keeps_what_was_judged(write_task: WriteTask, open_sandbox: OpenSandbox, paths: RunPaths) -> None:
    folders = [write_task(f"task-{number}") for number in range(4)]
    answers = iter([False, False])
    with pytest.raises(PreemptedError):
        run_gate(folders, paths, open_sandbox, parallel=1, should_stop=lambda: next(answers, True))
    assert [verdict.task_id for verdict in read_verdicts(paths.verdict_files())] == ["task-0", "task-1"]


def test_a_machine_without_sandboxes_is_no_fault_of_the_tasks(write_task: WriteTask, paths: RunPaths) -> None:
    def refuse(spec: SandboxSpec) -> Sandbox:
        raise SandboxStartError("user namespaces are disabled")

    with pytest.raises(SandboxStartError):
        run_gate([write_task("sound")], paths, refuse, parallel=1)
    assert list(read_verdicts(paths.verdict_files())) == []


def test_a_sandbox_that_dies_once_is_replaced(write_task: WriteTask, open_sandbox: OpenSandbox) -> None:
    deaths = iter([True])

    def mortal(spec: SandboxSpec) -> Sandbox:
        if next(deaths, False):
            raise SandboxDiedError("killed")
        return open_sandbox(spec)

    assert gate_task(load_task(write_task("sound")), mortal).accepted


def test_a_task_whose_sandbox_always_dies_is_rejected(write_task: WriteTask) -> None:
    def mortal(spec: SandboxSpec) -> Sandbox:
        raise SandboxDiedError("killed")

    verdict = gate_task(load_task(write_task("deadly")), mortal)
    assert names(verdict) == [("sandbox_survives", False)]
