from __future__ import annotations

from dataclasses import replace

import pytest
from transformers import PreTrainedTokenizerFast

from rlhpc.rollout.prompt import PromptFormat, choose_prompt_format
from rlhpc.rollout.recovery import GroupHistory, resume_episode
from rlhpc.rollout.settings import RolloutSettings
from rlhpc.rollout.stage import StableRound
from rlhpc.rollout.state import Episode, add_round, begin_episode, give_up
from rlhpc.types import FinishReason, Generation, Round, StopReason

SETTINGS = RolloutSettings(max_rounds=3, token_budget=100)
MOST = 20


@pytest.fixture(scope="module")
def prompt(tokenizer: PreTrainedTokenizerFast) -> PromptFormat:
    return choose_prompt_format(tokenizer)


def a_round(index: int = 0, action: str = "ls", fraction: float = 0.0) -> StableRound:
    played = Round(
        index=index,
        context_token_ids=(1, 2),
        action_token_ids=(*action.encode(), 256),
        behaviour_logprobs=(-0.5,) * (len(action) + 1),
        policy_version=0,
        finish_reason=FinishReason.STOP,
        action=action,
        observation="a.py",
        rewards={"tests_passed": fraction},
        generate_seconds=0.0,
        execute_seconds=0.0,
    )
    return StableRound(round=played, snapshot=f"after {action}")


def fresh() -> Episode:
    return begin_episode(0, 5, [1, 2], SETTINGS, MOST)


def test_a_round_adds_its_observation_to_what_the_policy_reads(prompt: PromptFormat) -> None:
    episode = add_round(fresh(), a_round(), prompt, SETTINGS, MOST)
    assert episode.stop is None
    assert episode.token_ids == (1, 2, *b"ls", 256, 258, *b"a.py", 256)


@pytest.mark.parametrize(
    ("finished", "settings", "reason"),
    [
        (a_round(fraction=1.0), SETTINGS, StopReason.SOLVED),
        (a_round(action="submit", fraction=0.5), SETTINGS, StopReason.SUBMITTED),
        (a_round(action="submit", fraction=1.0), SETTINGS, StopReason.SOLVED),
        (a_round(), replace(SETTINGS, max_rounds=1), StopReason.MAX_ROUNDS),
        (a_round(), replace(SETTINGS, token_budget=30), StopReason.TOKEN_BUDGET),
        (a_round(), replace(SETTINGS, token_budget=31), None),
    ],
)
def test_why_an_episode_ends(
    prompt: PromptFormat, finished: StableRound, settings: RolloutSettings, reason: StopReason | None
) -> None:
    assert add_round(fresh(), finished, prompt, settings, MOST).stop is reason


def test_a_prompt_that_leaves_no_room_is_invalid_from_the_start() -> None:
    episode = begin_episode(0, 5, [1] * 81, SETTINGS, MOST)
    assert episode.stop is StopReason.TOKEN_BUDGET and "no room" in episode.detail


def test_what_infrastructure_lost_carries_the_reason() -> None:
    lost = give_up(fresh(), "SandboxDiedError: gone")
    assert (lost.stop, lost.detail) == (StopReason.INFRASTRUCTURE, "SandboxDiedError: gone")


def test_an_episode_resumes_after_its_last_round_with_the_action_that_was_chosen(prompt: PromptFormat) -> None:
    action = Generation(token_ids=(1,), logprobs=(0.0,), finish_reason=FinishReason.STOP, policy_version=0)
    history = GroupHistory(
        actions={(0, 0): action, (0, 1): action, (1, 0): action}, rounds={(0, 0): a_round(), (1, 0): a_round()}
    )
    episode = resume_episode(fresh(), history, prompt, SETTINGS, MOST)
    assert (episode.rounds, episode.snapshot, episode.pending) == ((a_round().round,), "after ls", action)
    assert resume_episode(fresh(), GroupHistory(), prompt, SETTINGS, MOST) == fresh()
