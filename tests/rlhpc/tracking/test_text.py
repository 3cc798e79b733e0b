from __future__ import annotations

import math

import pytest

from rlhpc.tracking.text import duration, number, percent, sparkline


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0.4, "0 s"), (59.7, "1 min 00 s"), (200, "3 min 20 s"), (7500, "2 h 05 min"), (273600, "3 d 4 h")],
)
def test_durations(seconds: float, text: str) -> None:
    assert duration(seconds) == text


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0, "0"), (0.5, "0.5"), (0.12345, "0.123"), (12.345, "12.3"), (-3.0, "-3"), (100, "100"), (1234.5, "1,234"),
        (1e-5, "1.0e-05"), (None, "–"), (math.nan, "–"),
    ],
)
def test_numbers(value: float | None, text: str) -> None:
    assert number(value) == text


def test_rates() -> None:
    assert (percent(0.845), percent(None)) == ("84 %", "–")


def test_a_sparkline_spans_its_values_and_keeps_the_last() -> None:
    assert sparkline([9, 0, 1, 2], 3) == "▁▅█"
    assert sparkline([1, 1], 5) == "▁▁"
    assert sparkline([], 5) == ""
