from __future__ import annotations

from collections.abc import Callable

import pytest

from rlhpc.paths import RunPaths
from rlhpc.trajectory.query import Filter, iterate_trajectories, summarize_waves
from rlhpc.trajectory.segment import seal_segment
from rlhpc.types import Trajectory, TrajectoryStatus, Wave, WaveKind
from rlhpc.waves import done_groups, mark_done, open_wave


@pytest.fixture
def run(
    paths: RunPaths, make_wave: Callable[..., Wave], make_trajectory: Callable[..., Trajectory]
) -> tuple[RunPaths, list[Trajectory]]:
    """Wave 3 (train): group 0 done of two, one sample unsolved, one invalid. Wave 4 (eval): group 0 done."""
    open_wave(paths, make_wave(number=3, groups=2))
    open_wave(paths, make_wave(number=4, groups=1, kind=WaveKind.EVALUATION))
    train = [make_trajectory(0, 0), make_trajectory(0, 1, solved=False), make_trajectory(0, 2, rounds=0, solved=False)]
    evaluation = [make_trajectory(0, 0, wave=4)]
    for number, trajectories in ((3, train), (4, evaluation)):
        segment = paths.segment(number, "worker-0", 0)
        seal_segment(segment, trajectories, "worker-0")
        mark_done(paths, number, f"{number:06d}-0000", segment.name)
    return paths, [*train, *evaluation]


@pytest.mark.parametrize(
    ("wanted", "indices"),
    [
        (None, [0, 1, 2, 3]),
        (Filter(kind=WaveKind.EVALUATION), [3]),
        (Filter(wave=3, solved=True), [0]),
        (Filter(solved=False), [1, 2]),
        (Filter(status=TrajectoryStatus.INVALID), [2]),
        (Filter(group_id="000004-0000"), [3]),
        (Filter(task_id="none"), []),
    ],
)
def test_trajectories_are_found(
    run: tuple[RunPaths, list[Trajectory]], wanted: Filter | None, indices: list[int]
) -> None:
    paths, trajectories = run
    assert list(iterate_trajectories(paths, wanted)) == [trajectories[index] for index in indices]


def test_a_wave_is_one_row(run: tuple[RunPaths, list[Trajectory]]) -> None:
    paths, trajectories = run
    train, evaluation = summarize_waves(paths)
    assert (train.number, train.kind, train.groups, train.groups_done) == (3, WaveKind.TRAIN, 2, 1)
    assert (train.trajectories, train.valid, train.solved, train.mean_rounds) == (3, 2, 1, 3.0)
    assert train.mean_reward == (trajectories[0].reward + trajectories[1].reward) / 2
    assert (evaluation.kind, evaluation.trajectories, evaluation.solved) == (WaveKind.EVALUATION, 1, 1)


def test_looking_at_a_damaged_segment_changes_nothing(run: tuple[RunPaths, list[Trajectory]]) -> None:
    paths, trajectories = run
    segment = paths.segment(3, "worker-0", 0)
    segment.write_bytes(segment.read_bytes()[:100])
    assert list(iterate_trajectories(paths)) == trajectories[3:]
    assert segment.exists() and done_groups(paths, 3) and not paths.set_aside.exists()
