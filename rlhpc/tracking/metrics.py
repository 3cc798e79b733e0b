"""Metrics on disk: every job appends to a file of its own, and the controller gathers the lines in one.

A line is one JSON object, ``{"time", "step", "job", "sequence", name: value, ...}``. ``sequence`` counts the lines of a
job from 1; with it gathering needs no memory of its own, so a kill at any instant neither loses nor repeats a line.
"""

from __future__ import annotations

import json
import logging
import math
import os
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from rlhpc.paths import RunPaths

logger = logging.getLogger(__name__)

_HEAD = ("time", "step", "job", "sequence")


@dataclass(frozen=True, slots=True, kw_only=True)
class MetricEvent:
    """One line of metrics."""

    time: float
    """Seconds since the epoch."""
    step: int
    """Optimisation step, 0 before the first."""
    job: str
    """The writer, such as ``learner`` or ``rollout-3``."""
    sequence: int
    """Number of the line among those of its job."""
    values: Mapping[str, float | None]
    """None stands for a number that is not finite, which JSON cannot hold."""


class MetricsWriter:
    """Appends the metrics of one job to its file; the job's restarts go on with the same file, one at a time.

    A job that is restarted may do a step again: a line with the same step and the same names is not written twice.
    """

    def __init__(self, path: Path, job: str) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        _drop_torn_line(path)
        events = read_metrics(path)
        self._path, self._job = path, job
        self._sequence = max((event.sequence for event in events), default=0)
        self._written = {_content(event.step, event.values) for event in events}

    def write(self, step: int, values: Mapping[str, float]) -> None:
        """Append one line, durably."""
        if _content(step, values) in self._written:
            return
        finite = {name: float(value) if math.isfinite(value) else None for name, value in values.items()}
        event = MetricEvent(time=time.time(), step=step, job=self._job, sequence=self._sequence + 1, values=finite)
        _append(self._path, _to_line(event))
        self._sequence += 1
        self._written.add(_content(step, values))


class MetricsCollector:
    """Moves what the jobs have written into ``metrics.jsonl``; one collector per run, the controller's."""

    def __init__(self, paths: RunPaths) -> None:
        _drop_torn_line(paths.metrics)
        self._paths = paths
        self._offsets: dict[Path, int] = {}
        self._gathered: dict[str, int] = {}
        self._note(read_metrics(paths.metrics))

    def collect(self) -> list[MetricEvent]:
        """Append all new complete lines, ordered by time within this call, and return them.

        Raises:
            OSError: the file system refused; nothing is half-written, and the next call tries again.
        """
        offsets, events = dict(self._offsets), list[MetricEvent]()
        for path in sorted(self._paths.job_metrics.glob("*.jsonl")):
            data, offsets[path] = _complete_lines(path, offsets.get(path, 0))
            events += [event for event in _parse(data, path) if event.sequence > self._gathered.get(event.job, 0)]
        events.sort(key=lambda event: event.time)
        if events:
            _append(self._paths.metrics, b"".join(map(_to_line, events)))
        self._offsets = offsets
        self._note(events)
        return events

    def _note(self, events: Iterable[MetricEvent]) -> None:
        for event in events:
            self._gathered[event.job] = max(event.sequence, self._gathered.get(event.job, 0))


def merge_metrics(paths: RunPaths) -> list[MetricEvent]:
    """Gather once what the jobs have written so far; see ``MetricsCollector.collect``."""
    return MetricsCollector(paths).collect()


def read_metrics(path: Path) -> list[MetricEvent]:
    """All events of a file; empty if there is none. Torn or damaged lines are passed over and logged."""
    try:
        return _parse(_complete_lines(path, 0)[0], path)
    except FileNotFoundError:
        return []


def series(events: Iterable[MetricEvent], name: str) -> list[tuple[int, float]]:
    """One metric as (step, value), by step; the last value of a step counts."""
    found = {event.step: value for event in events if (value := event.values.get(name)) is not None}
    return sorted(found.items())


def _content(step: int, values: Mapping[str, object]) -> tuple[int, frozenset[str]]:
    return step, frozenset(values)


def _to_line(event: MetricEvent) -> bytes:
    head = {"time": round(event.time, 3), "step": event.step, "job": event.job, "sequence": event.sequence}
    return (json.dumps({**head, **event.values}) + "\n").encode()


def _complete_lines(path: Path, offset: int) -> tuple[bytes, int]:
    """Bytes from ``offset`` up to the end of the last whole line, and where that is."""
    with path.open("rb") as file:
        file.seek(offset)
        data = file.read()
    data = data[: data.rfind(b"\n") + 1]
    return data, offset + len(data)


def _parse(data: bytes, path: Path) -> list[MetricEvent]:
    events = []
    for line in data.splitlines():
        try:
            events.append(_from_line(line))
        except (ValueError, KeyError, TypeError, AttributeError):
            logger.warning("%s: passed over a damaged line: %r", path, line[:80])
    return events


def _from_line(line: bytes) -> MetricEvent:
    values = json.loads(line)
    head = {name: values.pop(name) for name in _HEAD}
    return MetricEvent(**head, values=values)


def _append(path: Path, data: bytes) -> None:
    """Append all or, if the file system refuses, nothing."""
    descriptor = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
    try:
        size = os.fstat(descriptor).st_size
        try:
            written = os.write(descriptor, data)
            if written < len(data):
                raise OSError(f"{path}: only {written} of {len(data)} bytes could be written; is the disk full?")
            os.fsync(descriptor)
        except OSError:
            os.ftruncate(descriptor, size)
            raise
    finally:
        os.close(descriptor)


def _drop_torn_line(path: Path) -> None:
    """Cut off what a killed writer left of its last line."""
    if path.exists():
        _, end = _complete_lines(path, 0)
        if end < path.stat().st_size:
            os.truncate(path, end)
