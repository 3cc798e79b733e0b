"""What the policy is told after an action, as text."""

from __future__ import annotations

import math

from hpc.sandbox.protocol import ExecResult
from rlhpc.rollout.prompt import PromptFormat
from rlhpc.rollout.settings import RolloutSettings

NO_OUTPUT = "(no output)"


def describe_result(result: ExecResult) -> str:
    """Output and errors of a command, its exit code if it failed, and the limit that ended it."""
    parts = [result.stdout.rstrip("\n"), result.stderr.rstrip("\n")]
    if result.limit is not None:
        parts.append(f"[stopped at the {result.limit.value} limit]")
    elif result.exit_code != 0:
        parts.append(f"[exit code {result.exit_code}]")
    return "\n".join(part for part in parts if part) or NO_OUTPUT


def describe_malformed(reason: str) -> str:
    """Answer to what is not an action."""
    return f"[not an action: {reason}]"


def compose_observation(answer: str, fraction: float, prompt: PromptFormat, settings: RolloutSettings) -> str:
    """The answer to an action, shortened, and the result of the hidden tests if it is to be shown."""
    shortened = prompt.shorten(answer, settings.observation_tokens)
    if not settings.show_test_results:
        return shortened
    percent = math.floor(fraction * 100 + 1e-9)  # 100% only if all pass
    return f"{shortened}\ntests: {percent}% pass".lstrip("\n")
