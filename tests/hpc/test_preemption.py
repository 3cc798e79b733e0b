from __future__ import annotations

import signal
from collections.abc import Iterator

import pytest

from hpc.preemption import STOP_SIGNALS, StopFlag


@pytest.fixture(autouse=True)
def handlers_put_back() -> Iterator[None]:
    before = {number: signal.getsignal(number) for number in STOP_SIGNALS}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


@pytest.mark.parametrize("number", STOP_SIGNALS)
def test_each_signal_of_slurm_raises_the_flag(number: signal.Signals) -> None:
    stop = StopFlag.install()
    assert not stop.requested() and stop.seconds_since() == 0
    signal.raise_signal(number)
    assert stop.requested() and stop.signal_name == number.name


def test_the_time_counts_from_the_first_signal() -> None:
    stop = StopFlag.install()
    signal.raise_signal(signal.SIGUSR1)
    first = stop.seconds_since()
    signal.raise_signal(signal.SIGTERM)
    assert stop.seconds_since() >= first > 0
    assert stop.signal_name == "SIGUSR1"
