from __future__ import annotations

import logging
import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import zarr
from zarr.storage import ZipStore

from hpc.errors import CorruptFileError
from hpc.storage.arrays import write_arrays
from rlhpc.paths import RunPaths
from rlhpc.trajectory.schema import DTYPES, TEXTS
from rlhpc.trajectory.segment import read_segment, read_wave_trajectories, seal_segment
from rlhpc.types import Trajectory, Wave
from rlhpc.waves import done_groups, mark_done, open_wave, wave_finished

Make = Callable[..., Trajectory]

SEAL_FOR_EVER = """
import sys
from pathlib import Path
from rlhpc.trajectory.segment import read_segment, seal_segment
trajectories = read_segment(Path(sys.argv[1])) * 20
while True:
    seal_segment(Path(sys.argv[2]), trajectories, "worker")
    print("sealed", flush=True)
"""


@pytest.fixture
def group(make_trajectory: Make) -> list[Trajectory]:
    """Of all kinds: also without rounds, unsolved, with other reward components."""
    odd = make_trajectory(0, 3)
    odd = replace(odd, rewards={"rounds_used": 3.0, "peak_memory": 0.5})
    return [make_trajectory(0, 0), make_trajectory(0, 1, rounds=0), make_trajectory(0, 2, solved=False), odd]


@pytest.fixture
def wave(paths: RunPaths, make_wave: Callable[..., Wave]) -> Wave:
    opened = make_wave(groups=3)
    open_wave(paths, opened)
    return opened


def finish(paths: RunPaths, make_trajectory: Make, *groups: int, worker: str = "worker-0", seed: int = 0) -> Path:
    """Seal groups of two samples in one segment, and mark them done."""
    trajectories = [replace(make_trajectory(group, sample), seed=seed) for group in groups for sample in (1, 0)]
    segment = paths.segment(3, worker, groups[0])
    seal_segment(segment, trajectories, worker)
    for group in groups:
        mark_done(paths, 3, f"000003-{group:04d}", segment.name)
    return segment


def identities(trajectories: list[Trajectory]) -> list[tuple[int, int]]:
    return [(int(t.group_id[-4:]), t.sample_index) for t in trajectories]


def damage(file: Path) -> None:
    data = bytearray(file.read_bytes())
    data[len(data) // 3] ^= 1
    file.write_bytes(data)


def test_trajectories_come_back_exactly(tmp_path: Path, group: list[Trajectory]) -> None:
    seal_segment(tmp_path / "s.zarr.zip", group, "worker-0")
    assert read_segment(tmp_path / "s.zarr.zip") == group


def test_an_empty_segment_is_a_segment(tmp_path: Path) -> None:
    seal_segment(tmp_path / "s.zarr.zip", [], "worker-0")
    assert read_segment(tmp_path / "s.zarr.zip") == []


def test_rewards_come_back_as_float32(tmp_path: Path, make_trajectory: Make) -> None:
    seal_segment(tmp_path / "s.zarr.zip", [replace(make_trajectory(), reward=1 / 3)], "worker-0")
    assert read_segment(tmp_path / "s.zarr.zip")[0].reward == float(np.float32(1 / 3))


def test_log_probabilities_that_do_not_fit_the_action_are_refused(tmp_path: Path, make_trajectory: Make) -> None:
    trajectory = make_trajectory(rounds=1)
    wrong = replace(trajectory.rounds[0], action_token_ids=(1, 2), behaviour_logprobs=(-0.5,))
    with pytest.raises(ValueError, match="1 log-probabilities for 2 action tokens"):
        seal_segment(tmp_path / "s.zarr.zip", [replace(trajectory, rounds=(wrong,))], "worker-0")
    assert list(tmp_path.iterdir()) == []


def test_any_zarr_reader_finds_the_published_arrays(tmp_path: Path, group: list[Trajectory]) -> None:
    seal_segment(tmp_path / "s.zarr.zip", group, "worker-0")
    with ZipStore(tmp_path / "s.zarr.zip", mode="r") as store:
        segment = zarr.open_group(store, mode="r")
        found = {name: segment[name][:] for name in segment.array_keys()}
        attributes = dict(segment.attrs)
    assert {name: found[name].dtype for name in DTYPES} == {name: np.dtype(dtype) for name, dtype in DTYPES.items()}
    assert found.keys() - DTYPES.keys() == {f"{text}_{part}" for text in TEXTS for part in ("bytes", "offset")}
    assert attributes["component_names"] == ["tests_passed", "rounds_used", "progress", "peak_memory"]
    assert (attributes["writer"], attributes["trajectories"]) == ("worker-0", 4)
    first, last = found["trajectory_round_offset"][2:4]
    tokens = slice(found["round_token_offset"][first], found["round_token_offset"][last])
    assert tuple(found["token_ids"][tokens].tolist()) == group[2].token_ids
    trained = found["token_ids"][tokens][found["loss_mask"][tokens] == 1].tolist()
    assert trained == [token for r in group[2].rounds for token in r.action_token_ids]


def test_a_file_of_another_schema_is_refused(tmp_path: Path) -> None:
    write_arrays(tmp_path / "s.zarr.zip", {"x": np.zeros(3)}, {"schema": "weather"})
    with pytest.raises(CorruptFileError, match="weather"):
        read_segment(tmp_path / "s.zarr.zip")


def test_a_killed_writer_leaves_a_whole_segment(tmp_path: Path, group: list[Trajectory]) -> None:
    source, target = tmp_path / "source.zarr.zip", tmp_path / "target.zarr.zip"
    seal_segment(source, group, "worker-0")
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    command = [sys.executable, "-c", SEAL_FOR_EVER, str(source), str(target)]
    with subprocess.Popen(command, env=environment, stdout=subprocess.PIPE) as writer:
        assert writer.stdout is not None
        for _ in range(3):
            assert writer.stdout.readline() == b"sealed\n"
            assert read_segment(target) == group * 20
        writer.kill()
    assert read_segment(target) == group * 20


def test_a_wave_is_read_in_the_order_of_groups_and_samples(paths: RunPaths, wave: Wave, make_trajectory: Make) -> None:
    finish(paths, make_trajectory, 2, 0)
    finish(paths, make_trajectory, 1, worker="worker-1")
    found = read_wave_trajectories(paths, wave)
    assert identities(found) == [(0, 0), (0, 1), (1, 0), (1, 1), (2, 0), (2, 1)]


def test_a_group_sealed_twice_is_read_from_the_segment_that_was_marked_first(
    paths: RunPaths, wave: Wave, make_trajectory: Make
) -> None:
    finish(paths, make_trajectory, 1, worker="worker-1", seed=11)
    finish(paths, make_trajectory, 1, worker="worker-0", seed=22)
    assert [t.seed for t in read_wave_trajectories(paths, wave)] == [11, 11]


def test_a_segment_that_was_sealed_but_not_marked_does_not_count(
    paths: RunPaths, wave: Wave, make_trajectory: Make
) -> None:
    seal_segment(paths.segment(3, "worker-0", 0), [make_trajectory(0, 0)], "worker-0")
    assert read_wave_trajectories(paths, wave) == []


def test_groups_of_a_damaged_segment_are_rolled_out_again(
    paths: RunPaths, wave: Wave, make_trajectory: Make, caplog: pytest.LogCaptureFixture
) -> None:
    damaged = finish(paths, make_trajectory, 0, 2)
    finish(paths, make_trajectory, 1, worker="worker-1")
    assert wave_finished(paths, wave)
    damage(damaged)
    with caplog.at_level(logging.WARNING):
        assert identities(read_wave_trajectories(paths, wave)) == [(1, 0), (1, 1)]
    assert "000003-0000" in caplog.text and "000003-0002" in caplog.text
    assert done_groups(paths, 3).keys() == {"000003-0001"} and not wave_finished(paths, wave)
    assert not damaged.exists()
    [reason] = paths.set_aside.glob("*.reason.txt")
    assert damaged.name in reason.read_text() and len(list(paths.set_aside.iterdir())) == 2

    finish(paths, make_trajectory, 0, 2)
    assert wave_finished(paths, wave) and len(read_wave_trajectories(paths, wave)) == 6


def test_groups_of_a_segment_that_is_gone_are_rolled_out_again(
    paths: RunPaths, wave: Wave, make_trajectory: Make
) -> None:
    finish(paths, make_trajectory, 0).unlink()
    assert read_wave_trajectories(paths, wave) == [] and done_groups(paths, 3) == {}
