"""Estimators of solve rates: by hand, against enumeration and against simulation."""

import random
from itertools import combinations

import pytest

from rlhpc.evaluation.passk import pass_at_k, wilson_interval


def test_pass_at_k_by_hand() -> None:
    assert pass_at_k(4, 1, 1) == pytest.approx(0.25)
    assert pass_at_k(4, 1, 2) == pytest.approx(0.5)
    assert pass_at_k(4, 0, 4) == 0.0
    assert pass_at_k(4, 3, 2) == 1.0


@pytest.mark.parametrize(("n", "c", "k"), [(5, 2, 3), (7, 3, 2), (6, 6, 1), (8, 1, 8)])
def test_pass_at_k_is_the_share_of_subsets_with_a_solution(n: int, c: int, k: int) -> None:
    subsets = list(combinations([True] * c + [False] * (n - c), k))
    assert pass_at_k(n, c, k) == pytest.approx(sum(map(any, subsets)) / len(subsets))


@pytest.mark.parametrize(("n", "c", "k"), [(3, 4, 1), (3, -1, 1), (3, 1, 4), (3, 1, 0)])
def test_pass_at_k_refuses_what_is_not_defined(n: int, c: int, k: int) -> None:
    with pytest.raises(ValueError, match="not defined"):
        pass_at_k(n, c, k)


def test_wilson_interval_agrees_with_published_values() -> None:
    """Newcombe 1998 (doi:10.1002/(SICI)1097-0258(19980430)17:8<857), table I, method 3."""
    assert wilson_interval(81 / 263, 263) == pytest.approx((0.2553, 0.3662), abs=5e-5)
    assert wilson_interval(15 / 148, 148) == pytest.approx((0.0624, 0.1605), abs=5e-5)
    assert wilson_interval(0 / 20, 20) == pytest.approx((0.0, 0.1611), abs=5e-5)


def test_wilson_interval_without_trials_knows_nothing() -> None:
    assert wilson_interval(0.0, 0) == (0.0, 1.0)


def test_wilson_interval_covers_the_truth_as_often_as_it_says() -> None:
    source, trials = random.Random(0), 2000
    covered = 0
    for _ in range(trials):
        low, high = wilson_interval(sum(source.random() < 0.3 for _ in range(64)) / 64, 64)
        covered += low <= 0.3 <= high
    assert covered / trials == pytest.approx(0.95, abs=0.02)
