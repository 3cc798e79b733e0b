"""Grading: a workspace goes alone into a fresh sandbox, where the hidden tests are mounted and run.

The agent never sees the tests, nothing that it left running meets them, and nothing that it does there survives.
"""

from __future__ import annotations

import json
import math
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean

from hpc.sandbox.protocol import ExecResult, Sandbox, SandboxSpec
from rlhpc.types import Task

TESTS = "/tests"
LOGS = "/logs/verifier"
REWARD_JSON = f"{LOGS}/reward.json"
REWARD_TEXT = f"{LOGS}/reward.txt"


@dataclass(frozen=True, slots=True, kw_only=True)
class Grade:
    """What the tests said of one workspace."""

    fraction: float
    """Of the tests that pass, 0 to 1; 0 if the tests gave no result."""
    duration: float
    """Seconds that the tests ran."""
    timed_out: bool = False
    detail: str = ""
    """Why there is no result; empty if there is one."""


def grade(task: Task, workspace: Sandbox | Path, open_sandbox: Callable[[SandboxSpec], Sandbox]) -> Grade:
    """Test a copy of a workspace.

    Args:
        task: Whose tests to run.
        workspace: The agent's sandbox, between two commands; or a folder.
        open_sandbox: Gives a started sandbox.

    Raises:
        SandboxError: a sandbox failed; says nothing about the workspace.
    """
    if isinstance(workspace, Path):
        return _grade_folder(task, workspace, open_sandbox)
    with tempfile.TemporaryDirectory(prefix="grading-") as folder:
        exported = Path(folder) / "workspace"
        workspace.export_workspace(exported)
        return _grade_folder(task, exported, open_sandbox)


def script_command(script: Path, mounted_at: str) -> str:
    """The command that runs ``script`` where its folder is mounted: with bash if its first line says so, else sh."""
    with script.open("rb") as file:
        first = file.readline()
    return f"{'bash' if first.startswith(b'#!') and b'bash' in first else 'sh'} {mounted_at}/{script.name}"


def _grade_folder(task: Task, folder: Path, open_sandbox: Callable[[SandboxSpec], Sandbox]) -> Grade:
    tests = task.path / "tests"
    sandbox = open_sandbox(SandboxSpec(source=folder, read_only={TESTS: tests}, writable=(LOGS,)))
    try:
        result = sandbox.execute(script_command(tests / "test.sh", TESTS), task.limits.verifier_timeout_seconds)
        if result.timed_out:
            detail = f"the tests did not end within {task.limits.verifier_timeout_seconds:g} s"
            return Grade(fraction=0.0, duration=result.duration, timed_out=True, detail=detail)
        files = sandbox.read_files([REWARD_JSON, REWARD_TEXT])
    finally:
        sandbox.close()
    return _grade_of(result, files[REWARD_JSON], files[REWARD_TEXT])


def _grade_of(result: ExecResult, as_json: bytes | None, as_text: bytes | None) -> Grade:
    try:
        if as_json is not None:
            fraction = parse_reward_json(as_json)
        elif as_text is not None:
            fraction = parse_reward_text(as_text)
        else:
            raise ValueError(f"no reward file (exit code {result.exit_code}): {result.stderr.strip()[-300:]}")
    except ValueError as error:
        return Grade(fraction=0.0, duration=result.duration, detail=str(error))
    return Grade(fraction=fraction, duration=result.duration)


def parse_reward_json(content: bytes) -> float:
    """The value of "reward", else the mean of all values, in a flat JSON object of numbers; clamped to 0..1.

    Raises:
        ValueError: the content is anything else.
    """
    try:
        values = json.loads(content, parse_int=float)
    except RecursionError:  # the tests run code that the agent wrote, so the file may be hostile
        raise ValueError("reward.json is nested too deeply") from None
    if not isinstance(values, dict) or not values:
        raise ValueError("reward.json is not an object of numbers")
    numbers = {name: _number("reward.json", value) for name, value in values.items()}
    return _clamp(numbers.get("reward", fmean(numbers.values())))


def parse_reward_text(content: bytes) -> float:
    """One number as text, clamped to 0..1.

    Raises:
        ValueError: the content is anything else.
    """
    return _clamp(_number("reward.txt", float(content.decode())))


def _number(file: str, value: object) -> float:
    if not isinstance(value, float) or not math.isfinite(value):
        raise ValueError(f"{file}: {value!r:.50} is not a finite number")
    return value


def _clamp(value: float) -> float:
    return min(max(value, 0.0), 1.0)
