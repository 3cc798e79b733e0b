"""What running a task shows: it can be failed, it can be solved, and the tests say the same twice."""

from __future__ import annotations

from collections.abc import Callable

from hpc.sandbox.protocol import ExecResult, Sandbox, SandboxSpec
from rlhpc.quality.verdict import Check
from rlhpc.reward.grading import Grade, grade, script_command
from rlhpc.tasks.harbor import initial_workspace
from rlhpc.types import Task

OpenSandbox = Callable[[SandboxSpec], Sandbox]
"""Gives a started sandbox; image and limits that the spec leaves open are its business."""

SOLUTION = "/solution"


def check_initial_fails(initial: Grade) -> Check:
    """The tests must not all pass on the initial workspace."""
    return Check(name="initial_fails", passed=initial.fraction < 1.0, evidence=describe(initial))


def check_empty_change_fails(initial: Grade, again: Grade) -> Check:
    """Doing nothing must not pass, and a second run must give what the first gave."""
    steady = again.fraction == initial.fraction
    evidence = describe(again) if steady else f"flaky: first {describe(initial)}, then {describe(again)}"
    return Check(name="empty_change_fails", passed=steady and again.fraction < 1.0, evidence=evidence)


def check_reference_passes(task: Task, open_sandbox: OpenSandbox) -> Check:
    """The reference solution, run as an agent's command would be, must pass all tests.

    The solution is mounted in this sandbox alone; only the workspace goes on to grading.

    Raises:
        SandboxError: a sandbox failed; says nothing about the task.
    """
    folder = task.path / "solution"
    sandbox = open_sandbox(SandboxSpec(source=initial_workspace(task), read_only={SOLUTION: folder}))
    try:
        result = sandbox.execute(script_command(folder / "solve.sh", SOLUTION), task.limits.agent_timeout_seconds)
        graded = grade(task, sandbox, open_sandbox)
    finally:
        sandbox.close()
    passed = graded.fraction >= 1.0
    evidence = describe(graded) if passed else f"{describe(graded)}; solve.sh {_ending(result)}"
    return Check(name="reference_passes", passed=passed, evidence=evidence)


def grade_initial(task: Task, open_sandbox: OpenSandbox) -> Grade:
    """Test the workspace that every agent starts with. Raises SandboxError."""
    return grade(task, initial_workspace(task), open_sandbox)


def _ending(result: ExecResult) -> str:
    reason = f"ran into the {result.limit} limit" if result.limit else f"ended with exit code {result.exit_code}"
    return f"{reason} {result.stderr.strip()[-300:]}".strip()


def describe(graded: Grade) -> str:
    """One line: fraction, time, and why there is no result."""
    return f"{graded.fraction:.0%} of the tests pass ({graded.duration:.2f} s)" + (
        f": {graded.detail}" if graded.detail else ""
    )
