"""What can be said of a task without running it."""

from __future__ import annotations

from pathlib import Path

from rlhpc.quality.verdict import Check
from rlhpc.tasks.harbor import initial_workspace
from rlhpc.types import Task

SCRIPTS = ("tests/test.sh", "solution/solve.sh")


def check_schema(task: Task) -> Check:
    """Everything is there that playing and grading need."""
    problems = schema_problems(task)
    return Check(name="schema", passed=not problems, evidence="; ".join(problems) or "complete")


def schema_problems(task: Task) -> list[str]:
    """What is missing or impossible; empty for a complete task."""
    problems = [] if task.instruction.strip() else ["instruction.md is empty"]
    problems += [f"{script} is missing or empty" for script in SCRIPTS if not _has_content(task.path / script)]
    workspace = initial_workspace(task)
    if not workspace.is_dir() or not any(workspace.iterdir()):
        problems.append(f"the initial workspace {workspace.relative_to(task.path)}/ is missing or empty")
    limits = {
        "agent.timeout_sec": task.limits.agent_timeout_seconds,
        "verifier.timeout_sec": task.limits.verifier_timeout_seconds,
        "environment.memory_mb": task.limits.memory_mib,
        "environment.storage_mb": task.limits.storage_mib,
    }
    return problems + [f"{name}={value:g} is not positive" for name, value in limits.items() if value <= 0]


def _has_content(file: Path) -> bool:
    return file.is_file() and bool(file.read_bytes().strip())
