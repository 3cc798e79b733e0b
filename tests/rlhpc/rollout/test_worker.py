from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from hpc.sandbox.protocol import Sandbox, SandboxSpec
from hpc.storage.journal import read_journal
from rlhpc.errors import TaskError
from rlhpc.paths import RunPaths
from rlhpc.rollout.settings import RolloutSettings
from rlhpc.rollout.worker import run_worker
from rlhpc.trajectory.segment import read_wave_trajectories
from rlhpc.types import (
    Group,
    SamplingParameters,
    StopReason,
    Task,
    Trajectory,
    TrajectoryStatus,
    Wave,
    WaveKind,
)
from rlhpc.waves import list_waves, open_wave, wave_finished

SETTINGS = RolloutSettings(max_rounds=3, look_command="cat -n solution.py", parallel_sandboxes=4)
Work = Callable[[RunPaths, str], None]
MakeRun = Callable[[str, Wave], RunPaths]
Start = Callable[[RunPaths, str], "subprocess.Popen[bytes]"]


def a_wave(kind: WaveKind, version: int, *, samples: int, groups: int = 1) -> Wave:
    names = tuple(Group(group_id=f"000003-{index:04d}", task_id="add-1", samples=samples) for index in range(groups))
    sampling = SamplingParameters(max_new_tokens=16)
    return Wave(number=3, kind=kind, step=1, policy_version=version, seed=11, sampling=sampling, groups=names)


@pytest.fixture
def make_run(tmp_path: Path, scribbler: Path) -> MakeRun:
    def make(name: str, wave: Wave) -> RunPaths:
        paths = RunPaths(tmp_path / name)
        shutil.copytree(scribbler, paths.policy(7))
        open_wave(paths, wave)
        return paths

    return make


@pytest.fixture
def work(task: Task, tiny_model: Path, open_sandbox: Callable[[SandboxSpec], Sandbox]) -> Work:
    """A worker in this process, until all waves are finished."""

    def work_as(paths: RunPaths, name: str) -> None:
        finished = lambda: all(wave_finished(paths, wave) for wave in list_waves(paths))  # noqa: E731
        run_worker(paths, name, SETTINGS, {task.task_id: task}, open_sandbox, tiny_model, should_stop=finished)

    return work_as


def trajectories(paths: RunPaths) -> list[Trajectory]:
    """All of the wave, in order."""
    found = read_wave_trajectories(paths, list_waves(paths)[0])
    return sorted(found, key=lambda trajectory: (trajectory.group_id, trajectory.sample_index))


def without_times(found: list[Trajectory]) -> list[Trajectory]:
    return [
        replace(t, rounds=tuple(replace(r, generate_seconds=0.0, execute_seconds=0.0) for r in t.rounds)) for t in found
    ]


def test_a_reference_wave_records_the_solution_as_an_episode(make_run: MakeRun, task: Task, work: Work) -> None:
    paths = make_run("run", a_wave(WaveKind.REFERENCE, -1, samples=1))
    work(paths, "worker-0")
    [solved] = trajectories(paths)
    assert (solved.status, solved.stop_reason, solved.reward) == (TrajectoryStatus.COMPLETE, StopReason.SOLVED, 1.0)
    look, edit = solved.rounds
    assert look.action == "cat -n solution.py" and "return a - b" in look.observation
    assert look.observation.endswith("tests: 50% pass") and edit.observation.endswith("tests: 100% pass")
    assert edit.action == "sed -i 's/a - b/a + b/' solution.py"
    assert look.context_token_ids == (259, *task.instruction.encode(), 256)
    assert edit.context_token_ids == (258, *look.observation.encode(), 256)
    assert edit.action_token_ids == (*edit.action.encode(), 256) and set(edit.behaviour_logprobs) == {0.0}
    assert [r.rewards["tests_passed"] for r in solved.rounds] == [0.5, 1.0]


def test_a_training_wave_records_what_the_policy_did(make_run: MakeRun, work: Work) -> None:
    paths = make_run("run", a_wave(WaveKind.TRAIN, 7, samples=4, groups=2))
    work(paths, "worker-0")
    found = trajectories(paths)
    assert [(t.group_id, t.sample_index) for t in found] == [(f"000003-000{g}", i) for g in (0, 1) for i in range(4)]
    assert len({t.seed for t in found}) == 4  # two groups of the same task draw the same seeds
    for trajectory in found:
        assert trajectory.stop_reason is StopReason.MAX_ROUNDS and trajectory.reward == 0.5
        assert [r.policy_version for r in trajectory.rounds] == [7, 7, 7]
        assert all(len(r.behaviour_logprobs) == len(r.action_token_ids) <= 16 for r in trajectory.rounds)


def test_two_workers_share_a_wave_without_doing_anything_twice(make_run: MakeRun, work: Work) -> None:
    paths = make_run("run", a_wave(WaveKind.REFERENCE, -1, samples=2, groups=8))
    threads = [threading.Thread(target=work, args=(paths, f"worker-{i}")) for i in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(trajectories(paths)) == 16
    assert len(list(paths.trajectories(3).iterdir())) == 8
    assert list(paths.claims(3).iterdir()) == []


def test_a_worker_ends_when_the_campaign_says_so(
    make_run: MakeRun, task: Task, tiny_model: Path, open_sandbox: Callable[[SandboxSpec], Sandbox]
) -> None:
    paths = make_run("run", a_wave(WaveKind.REFERENCE, -1, samples=1))
    paths.stop.touch()
    run_worker(paths, "worker-0", SETTINGS, {task.task_id: task}, open_sandbox, tiny_model)
    assert not wave_finished(paths, list_waves(paths)[0])


def test_a_task_that_is_not_there_is_named(
    make_run: MakeRun, tiny_model: Path, open_sandbox: Callable[[SandboxSpec], Sandbox]
) -> None:
    paths = make_run("run", a_wave(WaveKind.REFERENCE, -1, samples=1))
    with pytest.raises(TaskError, match="add-1"):
        run_worker(paths, "worker-0", SETTINGS, {}, open_sandbox, tiny_model)


@pytest.fixture
def start(task: Task, tiny_model: Path, tmp_path: Path) -> Iterator[Start]:
    """Starts workers as processes, and ends those that a failing test leaves."""
    script = Path(__file__).with_name("worker_process.py")
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    processes: list[subprocess.Popen[bytes]] = []

    def start_one(paths: RunPaths, name: str) -> subprocess.Popen[bytes]:
        arguments = [str(path) for path in (task.path, tiny_model, tmp_path / "sandboxes")]
        command = [sys.executable, str(script), str(paths.root), name, *arguments]
        processes.append(subprocess.Popen(command, env=environment, start_new_session=True))
        return processes[-1]

    yield start_one
    for process in processes:
        process.kill()
        process.wait()


def kill_after(process: subprocess.Popen[bytes], journal: Path, records: int) -> None:
    """SIGKILL a worker once its journal holds so many records."""
    while not journal.exists() or len(read_journal(journal)) < records:
        assert process.poll() is None, "the worker ended before it could be killed"
        time.sleep(0.002)
    process.send_signal(signal.SIGKILL)
    process.wait()


@pytest.fixture
def undisturbed(
    make_run: MakeRun, start: Start
) -> list[Trajectory]:
    paths = make_run("undisturbed", a_wave(WaveKind.TRAIN, 7, samples=6))
    assert start(paths, "worker-0").wait() == 0
    found = trajectories(paths)
    assert all(t.status is TrajectoryStatus.COMPLETE for t in found)
    return found


def test_a_worker_killed_again_and_again_gives_the_same_trajectories(
    make_run: MakeRun,
    start: Start,
    undisturbed: list[Trajectory],
) -> None:
    paths = make_run("killed", a_wave(WaveKind.TRAIN, 7, samples=6))
    for records in (7, 20, 32):
        kill_after(start(paths, "worker-0"), paths.journal("worker-0"), records)
    assert start(paths, "worker-0").wait() == 0
    assert without_times(trajectories(paths)) == without_times(undisturbed)


def test_another_worker_goes_on_from_the_journal_of_a_killed_one(
    make_run: MakeRun,
    start: Start,
    undisturbed: list[Trajectory],
) -> None:
    paths = make_run("taken-over", a_wave(WaveKind.TRAIN, 7, samples=6))
    kill_after(start(paths, "worker-0"), paths.journal("worker-0"), 20)
    journal_of_the_dead = paths.journal("worker-0").read_bytes()
    assert start(paths, "worker-1").wait() == 0
    assert paths.journal("worker-0").read_bytes() == journal_of_the_dead
    assert without_times(trajectories(paths)) == without_times(undisturbed)
    first_rounds = [t.rounds[0].generate_seconds for t in trajectories(paths)]
    assert len(set(first_rounds)) == 1 and first_rounds != [t.rounds[0].generate_seconds for t in undisturbed]
