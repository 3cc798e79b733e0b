"""Looking at a run's trajectories, for status, report and viewer. Reads only; damaged segments are passed over."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from dataclasses import dataclass

from hpc.errors import CorruptFileError
from rlhpc.paths import RunPaths
from rlhpc.trajectory.segment import read_segment
from rlhpc.types import StopReason, Trajectory, TrajectoryStatus, Wave, WaveKind
from rlhpc.waves import done_groups, list_waves

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class Filter:
    """Which trajectories are wanted; None means any."""

    kind: WaveKind | None = None
    wave: int | None = None
    task_id: str | None = None
    group_id: str | None = None
    solved: bool | None = None
    status: TrajectoryStatus | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class WaveSummary:
    """One row about one wave."""

    number: int
    kind: WaveKind
    step: int
    policy_version: int
    groups: int
    groups_done: int
    trajectories: int
    valid: int
    solved: int
    mean_reward: float
    """Over valid trajectories; 0 if there are none, as for the other means."""
    mean_rounds: float
    mean_action_tokens: float


def iterate_trajectories(paths: RunPaths, wanted: Filter | None = None) -> Iterator[Trajectory]:
    """Trajectories of finished groups, by wave, group and sample."""
    wanted = wanted or Filter()
    for wave in list_waves(paths):
        if wanted.wave in (None, wave.number) and wanted.kind in (None, wave.kind):
            yield from (trajectory for trajectory in _of_wave(paths, wave) if _matches(trajectory, wanted))


def summarize_waves(paths: RunPaths) -> list[WaveSummary]:
    """One row per wave, oldest first."""
    return [_summary(wave, len(done_groups(paths, wave.number)), _of_wave(paths, wave)) for wave in list_waves(paths)]


def _of_wave(paths: RunPaths, wave: Wave) -> list[Trajectory]:
    done = done_groups(paths, wave.number)
    found: list[Trajectory] = []
    for name in sorted(set(done.values())):
        try:
            segment = read_segment(paths.trajectories(wave.number) / name)
        except (CorruptFileError, FileNotFoundError) as error:
            logger.warning("passed over: %s", error)
        else:
            found += [trajectory for trajectory in segment if done.get(trajectory.group_id) == name]
    return sorted(found, key=lambda trajectory: (trajectory.group_id, trajectory.sample_index))


def _matches(trajectory: Trajectory, wanted: Filter) -> bool:
    return (
        wanted.task_id in (None, trajectory.task_id)
        and wanted.group_id in (None, trajectory.group_id)
        and wanted.solved in (None, trajectory.solved)
        and wanted.status in (None, trajectory.status)
    )


def _summary(wave: Wave, groups_done: int, trajectories: list[Trajectory]) -> WaveSummary:
    valid = [t for t in trajectories if t.status is TrajectoryStatus.COMPLETE]
    return WaveSummary(
        number=wave.number,
        kind=wave.kind,
        step=wave.step,
        policy_version=wave.policy_version,
        groups=len(wave.groups),
        groups_done=groups_done,
        trajectories=len(trajectories),
        valid=len(valid),
        solved=sum(t.stop_reason is StopReason.SOLVED for t in valid),
        mean_reward=_mean([t.reward for t in valid]),
        mean_rounds=_mean([len(t.rounds) for t in valid]),
        mean_action_tokens=_mean([sum(len(r.action_token_ids) for r in t.rounds) for t in valid]),
    )


def _mean(values: list[float] | list[int]) -> float:
    return sum(values) / len(values) if values else 0.0
