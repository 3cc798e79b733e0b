"""Being told to stop: by Slurm before a time limit or a preemption, or by whoever ends the job."""

from __future__ import annotations

import signal
import time
from collections.abc import Iterable
from types import FrameType

STOP_SIGNALS = (signal.SIGUSR2, signal.SIGUSR1, signal.SIGTERM)


class StopFlag:
    """Remembers that and when one of the signals came, for a loop that asks between two steps.

    Usage::

        stop = StopFlag.install()
        while work_is_left() and not stop.requested():
            ...
    """

    def __init__(self) -> None:
        self._since: float | None = None
        self.signal_name: str | None = None
        """Name of the first signal, such as SIGTERM."""

    @classmethod
    def install(cls, signals: Iterable[signal.Signals] = STOP_SIGNALS) -> StopFlag:
        """A flag that the given signals raise; call it in the main thread.

        Raises:
            ValueError: called in another thread.
        """
        flag = cls()
        for number in signals:
            signal.signal(number, flag._raise)
        return flag

    def requested(self) -> bool:
        """Whether a signal came."""
        return self._since is not None

    def seconds_since(self) -> float:
        """Seconds since the first signal; 0 before it."""
        return 0.0 if self._since is None else time.monotonic() - self._since

    def _raise(self, number: int, frame: FrameType | None) -> None:
        if self._since is None:
            self._since, self.signal_name = time.monotonic(), signal.Signals(number).name
