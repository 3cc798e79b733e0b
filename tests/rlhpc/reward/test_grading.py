"""Grading in real sandboxes: what counts as a result, and what the graded workspace cannot do."""

import re
import tempfile
from collections.abc import Callable
from pathlib import Path

import pytest

from hpc.sandbox.protocol import Sandbox, SandboxSpec
from rlhpc.reward.grading import grade, parse_reward_json, parse_reward_text, script_command
from rlhpc.types import Task, TaskLimits

OpenSandbox = Callable[[SandboxSpec], Sandbox]


@pytest.fixture
def make_task(tmp_path: Path) -> Callable[..., Task]:
    def make(script: str, *, seconds: float = 20.0) -> Task:
        tests = tmp_path / "task" / "tests"
        tests.mkdir(parents=True)
        (tests / "test.sh").write_text(script)
        (tests / "expected.txt").write_text("right\n")
        limits = TaskLimits(verifier_timeout_seconds=seconds)
        return Task(task_id="task", path=tests.parent, instruction="Write it.", limits=limits)

    return make


def workspace(tmp_path: Path, answer: str = "right\n") -> Path:
    folder = tmp_path / "workspace"
    folder.mkdir()
    (folder / "answer.txt").write_text(answer)
    return folder


COMPARE = "if cmp -s answer.txt /tests/expected.txt; then r=1; else r=0; fi; echo $r > /logs/verifier/reward.txt\n"


@pytest.mark.parametrize(("answer", "fraction"), [("right\n", 1.0), ("wrong\n", 0.0)])
def test_the_tests_see_the_workspace(
    make_task: Callable[..., Task], open_sandbox: OpenSandbox, tmp_path: Path, answer: str, fraction: float
) -> None:
    graded = grade(make_task(COMPARE), workspace(tmp_path, answer), open_sandbox)
    assert (graded.fraction, graded.timed_out, graded.detail) == (fraction, False, "")
    assert 0 < graded.duration < 10


def test_a_living_sandbox_is_graded_and_left_as_it_is(
    make_task: Callable[..., Task], open_sandbox: OpenSandbox, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever the agent keeps running or hides outside of its workspace stays behind."""
    temporary = tmp_path / "temporary"
    temporary.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(temporary))
    agent = open_sandbox(SandboxSpec(source=workspace(tmp_path, "wrong\n")))
    task = make_task("ls /tmp/planted && echo 1 > /logs/verifier/reward.txt; echo x > answer.txt;" + COMPARE)
    try:
        agent.execute("echo right > answer.txt; echo > /tmp/planted; (sleep 60 &) ; ls /tests /logs", 10)
        before = agent.snapshot()
        assert grade(task, agent, open_sandbox).fraction == 0.0
        assert agent.snapshot() == before
        assert agent.execute("cat answer.txt", 10).stdout == "right\n"
    finally:
        agent.close()
    assert not list(temporary.iterdir())


def test_the_agent_cannot_see_the_tests(
    make_task: Callable[..., Task], open_sandbox: OpenSandbox, tmp_path: Path
) -> None:
    task = make_task(COMPARE)
    agent = open_sandbox(SandboxSpec(source=workspace(tmp_path)))
    try:
        assert agent.execute(f"ls /tests /logs {task.path}", 10).stdout == ""
    finally:
        agent.close()


def test_tests_cannot_be_changed_from_inside(
    make_task: Callable[..., Task], open_sandbox: OpenSandbox, tmp_path: Path
) -> None:
    task = make_task("echo right > /tests/expected.txt; rm -f /tests/*; " + COMPARE)
    assert grade(task, workspace(tmp_path, "wrong\n"), open_sandbox).fraction == 0.0
    assert (task.path / "tests" / "expected.txt").read_text() == "right\n"


@pytest.mark.parametrize(
    ("script", "detail"),
    [
        ("echo no reward >&2; exit 3", r"no reward file \(exit code 3\): no reward"),
        ("echo many > /logs/verifier/reward.txt", "could not convert"),
        ("echo '[1]' > /logs/verifier/reward.json", "not an object"),
        ("ln -s /etc/passwd /logs/verifier/reward.json", "no reward file|Expecting value"),
    ],
)
def test_without_a_result_the_fraction_is_zero_and_the_reason_is_told(
    make_task: Callable[..., Task], open_sandbox: OpenSandbox, tmp_path: Path, script: str, detail: str
) -> None:
    graded = grade(make_task(script), workspace(tmp_path), open_sandbox)
    assert graded.fraction == 0.0
    assert re.search(detail, graded.detail)


def test_tests_that_hang_are_stopped(make_task: Callable[..., Task], open_sandbox: OpenSandbox, tmp_path: Path) -> None:
    """Also if they had written a result before."""
    task = make_task("echo 1 > /logs/verifier/reward.txt; sleep 60", seconds=0.5)
    graded = grade(task, workspace(tmp_path), open_sandbox)
    assert (graded.fraction, graded.timed_out) == (0.0, True)
    assert graded.duration < 10 and "0.5 s" in graded.detail


@pytest.mark.parametrize(
    ("content", "fraction"),
    [
        (b'{"reward": 0.5}', 0.5),
        (b'{"reward": 1}', 1.0),
        (b'{"reward": 0.25, "style": 1.0}', 0.25),
        (b'{"first": 1, "second": 0}', 0.5),
        (b'{"reward": 7}', 1.0),
        (b'{"reward": -7}', 0.0),
    ],
)
def test_reward_json(content: bytes, fraction: float) -> None:
    assert parse_reward_json(content) == fraction


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"{}",
        b"[1]",
        b"1",
        b"\xff",
        b'{"reward": NaN}',
        b'{"reward": 1e999}',
        b'{"reward": true}',
        b'{"reward": "1"}',
        b'{"reward": 1, "nested": {"a": 1}}',
        b'{"reward": ' + b"9" * 9999 + b"}",
        b"[" * 100_000,
    ],
)
def test_anything_else_is_refused(content: bytes) -> None:
    with pytest.raises(ValueError):
        parse_reward_json(content)


def test_reward_text() -> None:
    assert parse_reward_text(b" 0.75\n") == 0.75
    for content in (b"", b"nan", b"inf", b"passed", b"\xff"):
        with pytest.raises(ValueError):
            parse_reward_text(content)


@pytest.mark.parametrize(
    ("first_line", "command"),
    [("#!/bin/bash", "bash"), ("#!/usr/bin/env bash", "bash"), ("#!/bin/sh", "sh"), ("", "sh")],
)
def test_a_script_runs_with_the_shell_that_it_asks_for(tmp_path: Path, first_line: str, command: str) -> None:
    script = tmp_path / "test.sh"
    script.write_text(f"{first_line}\necho bash\n")
    assert script_command(script, "/tests") == f"{command} /tests/test.sh"
