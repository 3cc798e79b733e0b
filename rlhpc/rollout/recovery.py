"""Going on where a dead worker stopped: samples from the journal, sandboxes by replaying recorded actions."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from hpc.errors import SandboxError
from hpc.sandbox.protocol import Sandbox
from rlhpc.reward.components import TESTS_PASSED
from rlhpc.rollout.act import Lost, Workspace, carry_out, persist
from rlhpc.rollout.observation import compose_observation
from rlhpc.rollout.prompt import PromptFormat
from rlhpc.rollout.settings import RolloutSettings
from rlhpc.rollout.state import Episode, add_round
from rlhpc.types import Generation, Round


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupHistory:
    """What the journal knows of a group that is not sealed."""

    actions: Mapping[tuple[int, int], Generation]
    """(sample index, round index) -> action."""
    rounds: Mapping[tuple[int, int], Round]
    """(sample index, round index) -> finished round."""


def resume_episode(
    fresh: Episode, history: GroupHistory, prompt: PromptFormat, settings: RolloutSettings, max_new_tokens: int
) -> Episode:
    """The sample after its last journaled round, with its next action if that is journaled too."""
    episode = fresh
    while episode.stop is None and (finished := history.rounds.get((fresh.sample_index, len(episode.rounds)))):
        episode = add_round(episode, finished, prompt, settings, max_new_tokens)
    return replace(episode, pending=history.actions.get((fresh.sample_index, len(episode.rounds))))


def open_workspace(
    rounds: Sequence[Round], open_sandbox: Callable[[], Sandbox], prompt: PromptFormat, settings: RolloutSettings
) -> Workspace | Lost:
    """A sandbox in the state after ``rounds``; the caller closes it."""

    def attempt() -> Workspace | Lost:
        sandbox = open_sandbox()
        try:
            workspace = _replay(sandbox, rounds, prompt, settings)
        except SandboxError:
            sandbox.close()
            raise
        if isinstance(workspace, Lost):
            sandbox.close()
        return workspace

    return persist(attempt, settings.retries)


def _replay(
    sandbox: Sandbox, rounds: Sequence[Round], prompt: PromptFormat, settings: RolloutSettings
) -> Workspace | Lost:
    """Carry out the recorded actions again; a different answer means that the state cannot be trusted."""
    workspace = Workspace(sandbox=sandbox, snapshot=sandbox.snapshot())
    for past in rounds:
        answer = carry_out(
            workspace, past.action, prompt.action_style, timeout=settings.command_timeout_seconds, retries=0
        )
        if isinstance(answer, Lost):
            raise SandboxError(answer.reason)
        if compose_observation(answer.text, past.rewards[TESTS_PASSED], prompt, settings) != past.observation:
            return Lost(f"replaying round {past.index} answered otherwise than recorded, so it cannot be resumed")
        workspace = answer.workspace
    return workspace
