"""Is the second policy better, or was it luck?"""

from collections.abc import Callable

import pytest

from rlhpc.evaluation.comparison import compare, mcnemar_exact
from rlhpc.types import Trajectory

Played = Callable[..., Trajectory]


@pytest.mark.parametrize(
    ("only_first", "only_second", "p_value"),
    [(0, 0, 1.0), (0, 1, 1.0), (0, 5, 0.0625), (1, 5, 0.21875), (5, 5, 1.0), (0, 10, 2 / 1024)],
)
def test_mcnemar_by_hand(only_first: int, only_second: int, p_value: float) -> None:
    assert mcnemar_exact(only_first, only_second) == pytest.approx(p_value)
    assert mcnemar_exact(only_second, only_first) == pytest.approx(p_value)


def test_pairs_are_those_of_the_same_task_and_sample(played: Played) -> None:
    first = [
        played("a", 0, solved=False),
        played("a", 1, solved=True),
        played("b", 0, solved=False),
        played("b", 1, solved=True),
        played("c", 0, solved=True),
    ]
    second = [
        played("b", 1, solved=False),
        played("b", 0, solved=False),
        played("a", 1, solved=True),
        played("a", 0, solved=True),
        played("c", 0, solved=True, valid=False),
        played("d", 0, solved=True),
    ]
    result = compare(first, second)
    assert (result.both, result.only_first, result.only_second, result.neither) == (1, 1, 1, 1)
    assert (result.pairs, result.difference, result.p_value) == (4, 0.0, 1.0)


def test_a_clear_improvement(played: Played) -> None:
    first = [played(f"t{i}", 0, solved=i < 20) for i in range(64)]
    second = [played(f"t{i}", 0, solved=i < 50) for i in range(64)]
    result = compare(first, second)
    assert result.difference == pytest.approx(30 / 64)
    assert result.p_value < 1e-6


def test_without_pairs_nothing_is_known(played: Played) -> None:
    result = compare([played("a", 0, solved=True)], [])
    assert (result.pairs, result.difference, result.p_value) == (0, 0.0, 1.0)
