"""What is counted, and what is not."""

from collections.abc import Callable

import pytest

from rlhpc.evaluation.passk import wilson_interval
from rlhpc.evaluation.summary import summarise
from rlhpc.types import Trajectory

Played = Callable[..., Trajectory]


def test_by_hand(played: Played) -> None:
    result = summarise(
        [
            played("a", 0, solved=True, rounds=1),
            played("a", 1, solved=True, rounds=1),
            played("b", 0, solved=True, rounds=4),
            played("b", 1, solved=False, rounds=6),
        ]
    )
    assert (result.tasks, result.trajectories, result.invalid) == (2, 4, 0)
    assert result.solve_rate == result.mean_reward == 0.75
    assert result.interval == wilson_interval(0.75, 2)
    assert result.pass_at_k == {1: 0.75, 2: 1.0}
    assert result.mean_rounds == 3.0 and result.mean_action_tokens == 9.0


def test_trajectories_lost_to_infrastructure_are_in_no_rate(played: Played) -> None:
    result = summarise([played("a", 0, solved=True), played("b", 0, solved=False, valid=False)])
    assert (result.tasks, result.trajectories, result.invalid, result.solve_rate) == (1, 1, 1, 1.0)


def test_tasks_weigh_the_same_whatever_was_lost(played: Played) -> None:
    """Three valid samples of a solved task, one of an unsolved one: half of the tasks are solved."""
    lost = [played("b", i, solved=False, valid=i == 0) for i in range(3)]
    result = summarise([played("a", i, solved=True) for i in range(3)] + lost)
    assert result.solve_rate == 0.5
    assert list(result.pass_at_k) == [1]


@pytest.mark.parametrize("empty", [True, False])
def test_nothing_valid(played: Played, empty: bool) -> None:
    result = summarise([] if empty else [played("a", 0, solved=True, valid=False)])
    assert (result.tasks, result.solve_rate, result.pass_at_k, result.interval) == (0, 0.0, {}, (0.0, 1.0))
