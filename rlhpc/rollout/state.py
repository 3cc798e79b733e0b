"""One sample of a group as far as it has come, and the rules by which it ends. Values and pure functions."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from rlhpc.reward.components import TESTS_PASSED
from rlhpc.rollout.actions import Submit, parse_action
from rlhpc.rollout.prompt import PromptFormat
from rlhpc.rollout.settings import RolloutSettings
from rlhpc.rollout.stage import StableRound
from rlhpc.types import FinishReason, Generation, Round, StopReason


@dataclass(frozen=True, slots=True, kw_only=True)
class Episode:
    """A sample between two rounds."""

    sample_index: int
    seed: int
    context: tuple[int, ...]
    """What the environment wrote since the last action: the prompt, later the last observation."""
    rounds: tuple[Round, ...] = ()
    pending: Generation | None = None
    """The next action, if it is journaled but was not carried out."""
    snapshot: str = ""
    """Of the workspace after the last round; empty before the first."""
    stop: StopReason | None = None
    """Why it ended; None while it goes on."""
    detail: str = ""
    """Why it is invalid; empty otherwise."""

    @property
    def token_ids(self) -> tuple[int, ...]:
        """Everything that the policy reads before its next action."""
        past = (token for r in self.rounds for token in (*r.context_token_ids, *r.action_token_ids))
        return (*past, *self.context)

    @property
    def fraction(self) -> float:
        """Fraction of tests passed after the last round."""
        return self.rounds[-1].rewards[TESTS_PASSED] if self.rounds else 0.0


def begin_episode(
    sample_index: int, seed: int, prompt: Sequence[int], settings: RolloutSettings, max_new_tokens: int
) -> Episode:
    """A sample before its first round; it has already ended (invalid) if the prompt leaves no room for an action."""
    episode = Episode(sample_index=sample_index, seed=seed, context=tuple(prompt))
    if len(prompt) + max_new_tokens <= settings.token_budget:
        return episode
    detail = f"the prompt has {len(prompt)} tokens: no room for an action within token_budget={settings.token_budget}"
    return replace(episode, stop=StopReason.TOKEN_BUDGET, detail=detail)


def add_round(
    episode: Episode, done: StableRound, prompt: PromptFormat, settings: RolloutSettings, max_new_tokens: int
) -> Episode:
    """The sample after one more round. A function of its arguments alone, so a resumed sample ends the same way."""
    ended = done.round.finish_reason is FinishReason.STOP
    after = replace(
        episode,
        context=tuple(prompt.observation(done.round.observation, action_ended=ended)),
        rounds=(*episode.rounds, done.round),
        pending=None,
        snapshot=done.snapshot,
    )
    submitted = isinstance(parse_action(done.round.action, prompt.action_style), Submit)
    return replace(after, stop=_stop_reason(after, submitted, settings, max_new_tokens))


def give_up(episode: Episode, reason: str) -> Episode:
    """The sample is lost to infrastructure: no failure of the policy, and never learned from."""
    return replace(episode, stop=StopReason.INFRASTRUCTURE, detail=reason)


def _stop_reason(
    episode: Episode, submitted: bool, settings: RolloutSettings, max_new_tokens: int
) -> StopReason | None:
    if episode.fraction >= 1.0:
        return StopReason.SOLVED
    if submitted:
        return StopReason.SUBMITTED
    if len(episode.rounds) >= settings.max_rounds:
        return StopReason.MAX_ROUNDS
    if len(episode.token_ids) + max_new_tokens > settings.token_budget:
        return StopReason.TOKEN_BUDGET
    return None
