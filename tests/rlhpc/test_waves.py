from __future__ import annotations

import threading
from dataclasses import replace
from pathlib import Path

import pytest

from hpc.errors import CorruptFileError
from rlhpc.errors import RlhpcError
from rlhpc.paths import RunPaths
from rlhpc.types import Group, SamplingParameters, Wave, WaveKind
from rlhpc.waves import done_groups, list_waves, mark_done, open_wave, read_wave, unmark_done, wave_finished

WAVE = Wave(
    number=7,
    kind=WaveKind.TRAIN,
    step=3,
    policy_version=2,
    seed=2**62 + 1,
    sampling=SamplingParameters(temperature=0.7, top_p=0.95, max_new_tokens=64),
    groups=(
        Group(group_id="000007-0000", task_id="a", samples=8),
        Group(group_id="000007-0001", task_id="b", samples=8),
    ),
)


@pytest.fixture
def paths(tmp_path: Path) -> RunPaths:
    return RunPaths(tmp_path)


def test_waves_come_back_in_order(paths: RunPaths) -> None:
    assert list_waves(paths) == []
    earlier = replace(WAVE, number=4, kind=WaveKind.EVALUATION)
    open_wave(paths, WAVE)
    open_wave(paths, earlier)
    assert read_wave(paths, 7) == WAVE
    assert list_waves(paths) == [earlier, WAVE]


def test_opening_again_changes_nothing_and_another_wave_is_refused(paths: RunPaths) -> None:
    open_wave(paths, WAVE)
    mark_done(paths, 7, "000007-0000", "segment")
    open_wave(paths, WAVE)
    assert done_groups(paths, 7) == {"000007-0000": "segment"}
    with pytest.raises(RlhpcError, match="another wave 7"):
        open_wave(paths, replace(WAVE, seed=1))


def test_a_wave_whose_opening_was_cut_short_is_not_seen_and_can_be_opened(paths: RunPaths) -> None:
    paths.claims(7).mkdir(parents=True)
    (paths.wave(7) / ".wave.json.0123.tmp").write_text("{")
    assert list_waves(paths) == []
    open_wave(paths, WAVE)
    assert list_waves(paths) == [WAVE]


def test_a_damaged_wave_is_named(paths: RunPaths) -> None:
    open_wave(paths, WAVE)
    paths.wave_file(7).write_text("{")
    with pytest.raises(CorruptFileError, match="000007/wave.json"):
        list_waves(paths)


def test_a_wave_is_finished_when_all_its_groups_are_done(paths: RunPaths) -> None:
    open_wave(paths, WAVE)
    for group in WAVE.groups:
        assert not wave_finished(paths, WAVE)
        mark_done(paths, 7, group.group_id, "segment")
    assert wave_finished(paths, WAVE)
    unmark_done(paths, 7, "000007-0001")
    assert not wave_finished(paths, WAVE)


def test_of_many_that_finish_a_group_the_first_counts(paths: RunPaths) -> None:
    open_wave(paths, WAVE)
    mark = lambda name: mark_done(paths, 7, "000007-0000", name)  # noqa: E731
    threads = [threading.Thread(target=mark, args=(f"worker-{i}.zarr.zip",)) for i in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    [name] = done_groups(paths, 7).values()
    mark("worker-late.zarr.zip")
    assert done_groups(paths, 7) == {"000007-0000": name}
