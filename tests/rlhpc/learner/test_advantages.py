"""Advantages: by hand and by the properties that make them baselines."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rlhpc.learner.advantages import advantages_of, batch_normalized, group_relative, leave_one_out
from rlhpc.learner.losses import ALGORITHMS, AlgorithmSettings

Rewards = st.lists(st.integers(0, 20).map(lambda twentieths: twentieths / 20), min_size=2, max_size=16)


def test_group_relative_by_hand() -> None:
    assert group_relative([1.0, 0.0, 0.0, 0.0], by_std=False) == pytest.approx([0.75, -0.25, -0.25, -0.25])
    assert group_relative([1.0, 1.0, 0.0, 0.0], by_std=True) == pytest.approx([1.0, 1.0, -1.0, -1.0])


def test_leave_one_out_by_hand() -> None:
    assert leave_one_out([1.0, 0.5, 0.0]) == pytest.approx([0.75, 0.0, -0.75])


def test_batch_normalization_by_hand() -> None:
    """The mean is that of all groups, so a group of equal rewards still says something."""
    result = batch_normalized({"a": [1.0, 1.0], "b": [0.0, 0.0]})
    assert result == {"a": [1.0, 1.0], "b": [-1.0, -1.0]}


@given(Rewards)
def test_leave_one_out_is_the_centred_reward_scaled(rewards: list[float]) -> None:
    scale = len(rewards) / (len(rewards) - 1)
    expected = [scale * value for value in group_relative(rewards, by_std=False)]
    assert leave_one_out(rewards) == pytest.approx(expected, abs=1e-9)


@given(Rewards)
def test_normalized_advantages_have_mean_zero_and_deviation_one(rewards: list[float]) -> None:
    values = group_relative(rewards, by_std=True)
    assert sum(values) == pytest.approx(0.0, abs=1e-6)
    if len(set(rewards)) > 1:
        assert sum(value**2 for value in values) / len(values) == pytest.approx(1.0)


@pytest.mark.parametrize("name", ALGORITHMS)
@pytest.mark.parametrize("rewards", [[0.1, 0.1, 0.1], [0.7], [1.0, 1.0]])
def test_equal_rewards_say_exactly_nothing(name: str, rewards: list[float]) -> None:
    assert advantages_of({"g": rewards}, AlgorithmSettings(name=name)) == {"g": [0.0] * len(rewards)}


def test_the_name_decides_the_estimator() -> None:
    rewards = {"g": [1.0, 0.0, 0.0]}
    by_name = {name: advantages_of(rewards, AlgorithmSettings(name=name))["g"] for name in ALGORITHMS}
    assert by_name["grpo"] == by_name["dapo"] == by_name["gspo"] == by_name["cispo"]
    assert by_name["dr_grpo"] == group_relative(rewards["g"], by_std=False)
    assert by_name["rloo"] == leave_one_out(rewards["g"])
    without_std = AlgorithmSettings(normalize_by_std=False)
    assert advantages_of(rewards, without_std)["g"] == by_name["dr_grpo"]
