"""What a person sees while a campaign runs: one live panel on a terminal, one line per event elsewhere."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Protocol

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.panel import Panel
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from rlhpc.tracking.text import duration, sparkline

_QUIET_SECONDS = 60.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Snapshot:
    """Where a campaign stands."""

    stage: str
    """What goes on, such as ``rolling out``."""
    step: int
    """Optimisation steps done."""
    steps: int
    done: int = 0
    """Units of this stage that are done."""
    total: int = 0
    """Units of this stage; 0 if it has none."""
    unit: str = "groups"
    figures: Mapping[str, str] = field(default_factory=dict)
    """Further numbers with their names, such as ``solve rate``, as text."""
    history: tuple[float, ...] = ()
    """Solve rate of each step so far."""


class ProgressDisplay(Protocol):
    """Shows how a campaign goes."""

    def update(self, snapshot: Snapshot) -> None:
        """Show where the campaign stands; may be called many times a second."""

    def event(self, message: str) -> None:
        """Say once that something happened."""


@contextlib.contextmanager
def progress_display(
    title: str, console: Console, clock: Callable[[], float] = time.monotonic
) -> Iterator[ProgressDisplay]:
    """The display that suits the console, until the block ends."""
    if not console.is_terminal:
        yield LineDisplay(console, clock)
        return
    with Live(console=console, refresh_per_second=4, transient=False) as live:
        yield PanelDisplay(title, live, clock)


class LineDisplay:
    """A line when the stage or the step changes, and once a minute while a stage goes on."""

    def __init__(self, console: Console, clock: Callable[[], float] = time.monotonic) -> None:
        self._console, self._clock = console, clock
        self._shown: tuple[str, int] | None = None
        self._shown_at, self._done = 0.0, 0

    def update(self, snapshot: Snapshot) -> None:
        """See ``ProgressDisplay``."""
        now, place = self._clock(), (snapshot.stage, snapshot.step)
        moved = snapshot.done != self._done and now - self._shown_at >= _QUIET_SECONDS
        if place != self._shown or moved:
            self.event(_line(snapshot))
            self._shown, self._shown_at, self._done = place, now, snapshot.done

    def event(self, message: str) -> None:
        """See ``ProgressDisplay``."""
        stamp = time.strftime("%H:%M:%S")
        self._console.print(f"{stamp} {message}", markup=False, highlight=False, soft_wrap=True)


class PanelDisplay:
    """Bars, numbers and time left in a panel that stays at the bottom of the terminal."""

    def __init__(self, title: str, live: Live, clock: Callable[[], float] = time.monotonic) -> None:
        self._title, self._live, self._clock = title, live, clock
        self._pace = Pace(clock())

    def update(self, snapshot: Snapshot) -> None:
        """See ``ProgressDisplay``."""
        now = self._clock()
        self._pace.observe(now, snapshot.step)
        self._live.update(panel(self._title, snapshot, self._pace.elapsed(now), self._pace.remaining(now, snapshot)))

    def event(self, message: str) -> None:
        """See ``ProgressDisplay``."""
        self._live.console.print(Text.assemble((time.strftime("%H:%M:%S "), "dim"), message))


class Pace:
    """Time left, from the steps that this process has seen."""

    def __init__(self, started: float) -> None:
        self._started = started
        self._first: tuple[float, int] | None = None
        self._last: tuple[float, int] | None = None

    def observe(self, now: float, step: int) -> None:
        """Note the time at which a step is first seen."""
        if self._first is None:
            self._first = self._last = (now, step)
        elif self._last is not None and step > self._last[1]:
            self._last = (now, step)

    def elapsed(self, now: float) -> float:
        """Seconds since this process began."""
        return now - self._started

    def remaining(self, now: float, snapshot: Snapshot) -> float | None:
        """Seconds until the last step, None before two steps were seen."""
        if self._first is None or self._last is None or self._last[1] == self._first[1]:
            return None
        seconds_per_step = (self._last[0] - self._first[0]) / (self._last[1] - self._first[1])
        return max(0.0, seconds_per_step * (snapshot.steps - snapshot.step) - (now - self._last[0]))


def panel(title: str, snapshot: Snapshot, elapsed: float, remaining: float | None) -> RenderableType:
    """The panel of a terminal; fits 80 columns."""
    bars = Table.grid(padding=(0, 1), expand=True)
    bars.add_column(width=9)
    bars.add_column(ratio=1)
    bars.add_column(justify="right", no_wrap=True)
    bars.add_row("campaign", _bar(snapshot.step, snapshot.steps), f"step {snapshot.step}/{snapshot.steps}")
    if snapshot.total:
        count = f"{snapshot.done}/{snapshot.total} {snapshot.unit}"
        bars.add_row("stage", _bar(snapshot.done, snapshot.total), count)
    left = "" if remaining is None else f" · about {duration(remaining)} left"
    return Panel(
        Group(Text(snapshot.stage, style="bold"), bars, _figures(snapshot)),
        title=title,
        title_align="left",
        subtitle=f"{duration(elapsed)}{left}",
        subtitle_align="right",
        border_style="cyan",
    )


def _bar(done: int, total: int) -> ProgressBar:
    return ProgressBar(total=max(total, 1), completed=done, complete_style="cyan", finished_style="green")


def _figures(snapshot: Snapshot) -> Text:
    parts = [(name, value) for name, value in snapshot.figures.items()]
    text = Text("   ").join(Text.assemble((f"{name} ", "dim"), (value, "bold")) for name, value in parts)
    if len(snapshot.history) > 1:
        text.append(f"   {sparkline(snapshot.history, 24)}", style="green")
    return text


def _line(snapshot: Snapshot) -> str:
    parts = [f"step {snapshot.step}/{snapshot.steps}", snapshot.stage]
    if snapshot.total:
        parts.append(f"{snapshot.done}/{snapshot.total} {snapshot.unit}")
    return " · ".join([*parts, *(f"{name} {value}" for name, value in snapshot.figures.items())])
