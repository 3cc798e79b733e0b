"""Going on where a dead worker stopped: samples from the journal, workspaces by snapshot or by replay."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from hpc.errors import SandboxError
from hpc.sandbox.protocol import Sandbox
from rlhpc.rollout.act import Lost, Workspace, carry_out, persist
from rlhpc.rollout.actions import ActionStyle
from rlhpc.rollout.prompt import PromptFormat
from rlhpc.rollout.settings import RolloutSettings
from rlhpc.rollout.stage import RoundKey, StableRound
from rlhpc.rollout.state import Episode, add_round
from rlhpc.types import Generation, Round


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupHistory:
    """What the journal knows of a group that is not sealed."""

    actions: Mapping[RoundKey, Generation] = field(default_factory=dict)
    rounds: Mapping[RoundKey, StableRound] = field(default_factory=dict)


def resume_episode(
    fresh: Episode, history: GroupHistory, prompt: PromptFormat, settings: RolloutSettings, max_new_tokens: int
) -> Episode:
    """The sample after its last journaled round, with its next action if that is journaled too."""
    episode = fresh
    while episode.stop is None and (done := history.rounds.get((fresh.sample_index, len(episode.rounds)))):
        episode = add_round(episode, done, prompt, settings, max_new_tokens)
    return replace(episode, pending=history.actions.get((fresh.sample_index, len(episode.rounds))))


def open_workspace(
    episode: Episode, open_sandbox: Callable[[], Sandbox], style: ActionStyle, settings: RolloutSettings
) -> Workspace | Lost:
    """A sandbox in the state that the sample left its own in; the caller closes it."""

    def attempt() -> Workspace:
        sandbox = open_sandbox()
        try:
            return _restore(sandbox, episode) or _replay(
                sandbox, episode.rounds, style, settings.command_timeout_seconds
            )
        except SandboxError:
            sandbox.close()
            raise

    workspace = persist(attempt, settings.retries)
    if isinstance(workspace, Lost) or not episode.rounds or workspace.snapshot == episode.snapshot:
        return workspace
    # answers may differ (the order of messages, a time of day); the workspace is what later rounds build on
    workspace.sandbox.close()
    return Lost(f"replaying {len(episode.rounds)} recorded actions led to another workspace; they are not repeatable")


def _restore(sandbox: Sandbox, episode: Episode) -> Workspace | None:
    """The workspace by its snapshot, if snapshots outlive sandboxes here and this one was made on this node."""
    if not episode.rounds:
        return None
    try:
        sandbox.restore(episode.snapshot)
    except SandboxError:
        return None
    return Workspace(sandbox=sandbox, snapshot=episode.snapshot)


def _replay(sandbox: Sandbox, rounds: Sequence[Round], style: ActionStyle, timeout: float) -> Workspace:
    """Carry out the recorded actions again."""
    workspace = Workspace(sandbox=sandbox, snapshot=sandbox.snapshot())
    for past in rounds:
        answer = carry_out(workspace, past.action, style, timeout=timeout, retries=0)
        if isinstance(answer, Lost):
            raise SandboxError(answer.reason)
        workspace = answer.workspace
    return workspace
