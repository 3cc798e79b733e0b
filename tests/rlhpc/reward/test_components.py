"""Components and their weighted sum."""

import pytest

from rlhpc.errors import ConfigError
from rlhpc.reward.components import COMPONENTS, round_rewards, trajectory_rewards
from rlhpc.reward.weighting import weighted_reward
from rlhpc.types import FinishReason, Round


def played(index: int, rewards: dict[str, float]) -> Round:
    return Round(
        index=index,
        context_token_ids=(),
        action_token_ids=(),
        behaviour_logprobs=(),
        policy_version=0,
        finish_reason=FinishReason.STOP,
        action="",
        observation="",
        rewards=rewards,
        generate_seconds=0.0,
        execute_seconds=0.0,
    )


def test_components_of_a_round() -> None:
    rewards = round_rewards(fraction=0.75, previous_fraction=0.5, well_formed=True, timed_out=True)
    assert rewards == {
        "tests_passed": 0.75,
        "tests_progress": 0.25,
        "format_valid": 1.0,
        "timeouts": 1.0,
        "rounds_used": 1.0,
    }


def test_components_of_an_episode() -> None:
    """It got better, then worse, with one malformed action and one timeout."""
    rounds = [
        played(0, round_rewards(fraction=0.25, previous_fraction=0.0, well_formed=True)),
        played(1, round_rewards(fraction=0.75, previous_fraction=0.25, well_formed=True, timed_out=True)),
        played(2, round_rewards(fraction=0.75, previous_fraction=0.75, well_formed=False)),
        played(3, round_rewards(fraction=0.5, previous_fraction=0.75, well_formed=True)),
    ]
    assert trajectory_rewards(rounds) == {
        "tests_passed": 0.5,
        "tests_progress": 0.5,
        "format_valid": 0.75,
        "timeouts": 1.0,
        "rounds_used": 4.0,
    }


def test_names_are_the_same_everywhere_also_without_rounds() -> None:
    assert tuple(trajectory_rewards([])) == COMPONENTS
    assert tuple(round_rewards(fraction=0, previous_fraction=0, well_formed=False)) == COMPONENTS


def test_weighted_reward_by_hand() -> None:
    components = {"tests_passed": 0.5, "rounds_used": 4.0, "format_valid": 1.0}
    weights = {"tests_passed": 2.0, "rounds_used": -0.05}
    assert weighted_reward(components, weights, (-1.0, 1.0)) == pytest.approx(0.8)


def test_weighted_reward_is_clipped() -> None:
    assert weighted_reward({"a": 5.0}, {"a": 1.0}, (-1.0, 1.0)) == 1.0
    assert weighted_reward({"a": 5.0}, {"a": -1.0}, (-1.0, 1.0)) == -1.0


def test_a_weight_without_a_component_is_refused_with_the_nearest_name() -> None:
    with pytest.raises(ConfigError, match="reward.weights.test_passed.*did you mean 'tests_passed'"):
        weighted_reward(trajectory_rewards([]), {"test_passed": 1.0}, (-1.0, 1.0))
