"""Everything that playing a group needs, as one value: the seams between the loop and the rest."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from concurrent.futures import Executor
from dataclasses import dataclass
from typing import Protocol

from hpc.sandbox.protocol import Sandbox
from rlhpc.reward.grading import Grade
from rlhpc.rollout.policy.protocol import Policy
from rlhpc.rollout.prompt import PromptFormat
from rlhpc.rollout.settings import RolloutSettings
from rlhpc.types import Generation, Round, SamplingParameters

RoundKey = tuple[int, int]
"""(sample index, round index) within a group."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StableRound:
    """A finished round and the snapshot of the workspace after it."""

    round: Round
    snapshot: str


class Ledger(Protocol):
    """Makes a group's progress durable: journal first, then act."""

    def record_actions(self, actions: Mapping[RoundKey, Generation]) -> None:
        """Note actions that are to be carried out. Durable on return."""

    def record_rounds(self, rounds: Mapping[RoundKey, StableRound]) -> None:
        """Note finished rounds. Durable on return."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Stage:
    """Where and by whom a group is played."""

    policy: Policy
    sampling: SamplingParameters
    prompt: PromptFormat
    open_sandbox: Callable[[], Sandbox]
    """Gives a started sandbox with the task's initial workspace. Raises SandboxError."""
    grade: Callable[[Sandbox], Grade]
    """Tests a sandbox's workspace in a fresh sandbox. Raises SandboxError."""
    ledger: Ledger
    executor: Executor
    """Drives the sandboxes; its size is how many are busy at once."""
    settings: RolloutSettings
    should_stop: Callable[[], bool] = lambda: False
    """Asked between rounds."""
    clock: Callable[[], float] = time.monotonic
    """Seconds from any origin."""
