"""A policy that replays a script: how reference solutions become transcripts of the very same episode loop."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from rlhpc.rollout.actions import SUBMIT, ActionStyle, format_action
from rlhpc.rollout.prompt import encode_text
from rlhpc.types import FinishReason, Generation, SamplingParameters

REFERENCE_VERSION = -1
"""Policy version of everything that no model generated."""


class ReferencePolicy:
    """Every row takes the same scripted actions, one per call of ``generate``, and submits after the last.

    ``position`` is the first action to take: the number of rounds that a resumed group has behind it.
    """

    def __init__(self, tokenizer: Any, actions: Sequence[str], *, position: int) -> None:
        self._tokenizer = tokenizer
        self._actions = tuple(actions)
        self._position = position

    @property
    def version(self) -> int:
        """No weights, hence no version: -1."""
        return REFERENCE_VERSION

    def encode(self, text: str) -> list[int]:
        """Token ids of environment text; adds no special tokens."""
        return encode_text(self._tokenizer, text)

    def decode(self, token_ids: Sequence[int]) -> str:
        """Text of the ids, without special tokens."""
        return str(self._tokenizer.decode(token_ids, skip_special_tokens=True))

    def generate(
        self, contexts: Sequence[Sequence[int]], seeds: Sequence[int], sampling: SamplingParameters
    ) -> list[Generation]:
        """The scripted action for every row, with probability 1. Never cut, whatever ``sampling`` says."""
        token_ids = (*self.encode(self._actions[self._position]), int(self._tokenizer.eos_token_id))
        self._position = min(self._position + 1, len(self._actions) - 1)
        generation = Generation(
            token_ids=token_ids,
            logprobs=(0.0,) * len(token_ids),
            finish_reason=FinishReason.STOP,
            policy_version=REFERENCE_VERSION,
        )
        return [generation] * len(contexts)


def reference_actions(look_command: str, solution_script: str, style: ActionStyle) -> list[str]:
    """Look at the workspace, apply the reference solution, submit."""
    commands = (look_command, solution_commands(solution_script), SUBMIT)
    return [format_action(command, style) for command in commands]


def solution_commands(script: str) -> str:
    """The commands of ``solution/solve.sh``: without the shebang, comments and ``set`` lines that it begins with.

    Later lines stay as they are: what looks like a comment there may be part of a file that the script writes.
    """
    lines = script.strip().splitlines()
    first = next((index for index, line in enumerate(lines) if not _is_preamble(line)), len(lines))
    return "\n".join(lines[first:])


def _is_preamble(line: str) -> bool:
    return not line.strip() or line.lstrip().startswith("#") or line.startswith("set -")
