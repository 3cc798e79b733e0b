"""Carrying out one action in a sandbox, with restores when the sandbox dies."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

from hpc.errors import SandboxError
from hpc.sandbox.protocol import ExecResult, Sandbox
from rlhpc.rollout.actions import ActionStyle, Command, Malformed, parse_action
from rlhpc.rollout.observation import describe_malformed, describe_result

log = logging.getLogger(__name__)

T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class Workspace:
    """A sample's sandbox and the state that its workspace is in between rounds."""

    sandbox: Sandbox
    snapshot: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """What came of one action."""

    action: str
    text: str
    """What the policy is told, without test results."""
    result: ExecResult | None
    """None if the action was no command."""
    well_formed: bool
    workspace: Workspace
    seconds: float


@dataclass(frozen=True, slots=True)
class Lost:
    """The sandbox could not be kept alive; normal on a cluster, hence a value."""

    reason: str


def carry_out(
    workspace: Workspace, action: str, style: ActionStyle, *, timeout: float, retries: int
) -> Answer | Lost:
    """Do what the action says and save the workspace; tried again from the last snapshot if the sandbox dies."""
    started = time.monotonic()
    parsed = parse_action(action, style)
    if not isinstance(parsed, Command):
        text = describe_malformed(parsed.reason) if isinstance(parsed, Malformed) else ""
        well_formed = not isinstance(parsed, Malformed)
        return Answer(
            action=action, text=text, result=None, well_formed=well_formed, workspace=workspace, seconds=0.0
        )

    def attempt() -> tuple[ExecResult, str]:
        result = workspace.sandbox.execute(parsed.command, timeout)
        return result, workspace.sandbox.snapshot()

    outcome = persist(attempt, retries, restore=lambda: workspace.sandbox.restore(workspace.snapshot))
    if isinstance(outcome, Lost):
        return outcome
    result, snapshot = outcome
    return Answer(
        action=action,
        text=describe_result(result),
        result=result,
        well_formed=True,
        workspace=Workspace(sandbox=workspace.sandbox, snapshot=snapshot),
        seconds=time.monotonic() - started,
    )


def persist(attempt: Callable[[], T], retries: int, restore: Callable[[], None] | None = None) -> T | Lost:
    """The value of ``attempt``, tried again up to ``retries`` times (after ``restore``) when the sandbox fails."""
    reason = ""
    for number in range(retries + 1):
        try:
            if number and restore is not None:
                restore()
            return attempt()
        except SandboxError as error:
            reason = f"{type(error).__name__}: {error}"
            log.warning("sandbox failed (%d of %d attempts): %s", number + 1, retries + 1, reason)
    return Lost(reason)
