"""The learner's job on a real run directory: killed anywhere, it ends with the same bits."""

import json
import multiprocessing
import os
import runpy
import signal
import time
from collections.abc import Callable, Iterator
from multiprocessing.context import ForkServerProcess
from pathlib import Path

import pytest
import torch

from rlhpc.learner.weights import read_weights
from rlhpc.paths import RunPaths
from rlhpc.trajectory.segment import seal_segment
from rlhpc.types import Group, SamplingParameters, Trajectory, Wave, WaveKind
from rlhpc.waves import mark_done, write_wave

STEPS = 3
PROCESSES = multiprocessing.get_context("forkserver")
PROCESSES.set_forkserver_preload(["rlhpc.learner.loop"])  # importing megatron takes seconds: once for all processes
JOB = """
import json, os, signal, sys
from pathlib import Path
from rlhpc.errors import PreemptedError
from rlhpc.learner.loop import Surroundings, run_learner
from rlhpc.learner.losses import AlgorithmSettings
from rlhpc.learner.settings import LearnerSettings, OptimizerSettings, SftSettings
from rlhpc.paths import RunPaths

logged = 0

def log(step, values):
    global logged
    with (Path(root) / "metrics").open("a") as file:
        file.write(json.dumps({"step": step, **values}) + chr(10))
    logged += 1
    if logged == kill:
        os.kill(os.getpid(), signal.SIGKILL)

settings = LearnerSettings(
    optimizer=OptimizerSettings(learning_rate=1e-3, warmup_steps=2),
    sft=SftSettings(steps=6, batch_size=4, checkpoint_every=2),
    micro_batch_tokens=200,
    updates_per_wave=2,
    threads=1,
)
surroundings = Surroundings(
    log=log,
    preempted=lambda: logged == preempt,
    should_stop=lambda: logged == stop,
    poll_seconds=0.05,
)
try:
    run_learner(
        RunPaths(Path(root)), Path(model), algorithm=AlgorithmSettings(), settings=settings, steps=3,
        surroundings=surroundings,
    )
except PreemptedError:
    sys.exit(75)
"""


class Run:
    """A run directory whose waves are all rolled out, and the learner's process on it."""

    def __init__(self, root: Path, model: Path, make_trajectory: Callable[..., Trajectory]) -> None:
        self.paths, self.model = RunPaths(root), model
        root.mkdir()
        (root / "job.py").write_text(JOB)
        self._roll_out(make_trajectory, 1, WaveKind.REFERENCE, 0, rewards=[1.0])
        for step in range(1, STEPS + 1):
            self._roll_out(make_trajectory, step + 1, WaveKind.TRAIN, step, rewards=[1.0, 0.0])

    def _roll_out(
        self, make: Callable[..., Trajectory], number: int, kind: WaveKind, step: int, *, rewards: list[float]
    ) -> None:
        groups = tuple(
            Group(group_id=f"{number:06d}-{index:04d}", task_id=f"task-{index}", samples=len(rewards))
            for index in range(3)
        )
        sampling = SamplingParameters()
        wave = Wave(
            number=number, kind=kind, step=step, policy_version=step - 1, seed=0, sampling=sampling, groups=groups
        )
        write_wave(self.paths, wave)
        trajectories = [
            make(group=index, sample=sample, wave=number, reward=reward, actions=("good",) if reward else ("evil",))
            for index in range(3)
            for sample, reward in enumerate(rewards)
        ]
        seal_segment(self.paths.segment(number, "worker", 0), trajectories, writer="worker")
        for group in groups:
            mark_done(self.paths, number, group.group_id)

    def start(self, *, kill: int = 0, preempt: int = -1, stop: int = -1) -> ForkServerProcess:
        """Start the learner; it kills itself, sees a preemption or a stop after that many log calls."""
        names = {"root": str(self.paths.root), "model": str(self.model), "kill": kill, "preempt": preempt, "stop": stop}
        job = PROCESSES.Process(target=runpy.run_path, args=(str(self.paths.root / "job.py"), names))
        job.start()
        return job

    def finish(self, *, kill: int = 0, preempt: int = -1, stop: int = -1) -> int | None:
        """Run the learner to its end; returns the exit code."""
        job = self.start(kill=kill, preempt=preempt, stop=stop)
        job.join(timeout=60)
        return job.exitcode

    def kill_once(self, happened: Callable[[], bool]) -> None:
        """Run the learner and kill it as soon as something happened."""
        job = self.start()
        while not happened() and job.is_alive():
            time.sleep(0.0005)
        job.kill()
        job.join()
        assert job.exitcode == -signal.SIGKILL

    def policy(self, version: int) -> dict[str, torch.Tensor]:
        return read_weights(self.paths.policy(version))

    def metrics(self) -> list[dict[str, float]]:
        lines = [json.loads(line) for line in (self.paths.root / "metrics").read_text().splitlines()]
        return [{name: value for name, value in line.items() if "second" not in name} for line in lines]


@pytest.fixture
def make_run(tmp_path: Path, tiny_model: Path, make_trajectory: Callable[..., Trajectory]) -> Callable[[str], Run]:
    return lambda name: Run(tmp_path / name, tiny_model, make_trajectory)


@pytest.fixture(scope="module")
def undisturbed(
    tmp_path_factory: pytest.TempPathFactory, tiny_model: Path, make_trajectory: Callable[..., Trajectory]
) -> Iterator[Run]:
    run = Run(tmp_path_factory.mktemp("run") / "undisturbed", tiny_model, make_trajectory)
    assert run.finish() == 0
    yield run


def assert_same_policies(run: Run, expected: Run) -> None:
    for version in range(STEPS + 1):
        weights = run.policy(version)
        for name, tensor in expected.policy(version).items():
            assert torch.equal(weights[name], tensor), (version, name)


def test_a_run_publishes_every_version_and_logs_every_step(undisturbed: Run) -> None:
    metrics = undisturbed.metrics()
    assert [line["step"] for line in metrics if "sft_loss" in line] == [1, 2, 3, 4, 5, 6]
    steps = [line for line in metrics if "sft_loss" not in line]
    assert [line["step"] for line in steps] == [1, 2, 3]
    assert {"loss", "approx_kl", "clip_fraction", "entropy", "ratio_max", "logprob_gap", "gradient_norm", "tokens"} <= {
        *steps[0]
    }
    assert all(line["reward_mean"] == line["solve_rate"] == 0.5 for line in steps)


def test_a_finished_run_has_nothing_left_to_do(undisturbed: Run) -> None:
    before = (undisturbed.paths.root / "metrics").read_text()
    assert undisturbed.finish() == 0
    assert (undisturbed.paths.root / "metrics").read_text() == before


@pytest.mark.parametrize("kill", [3, 6, 8], ids=["in the supervised stage", "at its end", "at step 2"])
def test_a_kill_between_training_and_checkpoint_changes_no_bit(
    make_run: Callable[[str], Run], undisturbed: Run, kill: int
) -> None:
    run = make_run("killed")
    assert run.finish(kill=kill) == -signal.SIGKILL
    assert run.finish() == 0
    assert_same_policies(run, undisturbed)
    lines = {(line["step"], "sft_loss" in line): line for line in run.metrics()}
    assert list(lines.values()) == undisturbed.metrics()


def test_kills_while_saving_and_publishing_change_no_bit(make_run: Callable[[str], Run], undisturbed: Run) -> None:
    run = make_run("killed")
    checkpoints = run.paths.checkpoints
    run.kill_once(lambda: any(checkpoints.glob(".unfinished-step-000007/*")))
    run.kill_once(lambda: (checkpoints / "step-000007").exists())
    run.kill_once(lambda: run.paths.policy(2).exists())
    assert run.finish() == 0
    assert_same_policies(run, undisturbed)


def test_a_damaged_checkpoint_costs_one_step_and_no_bit(make_run: Callable[[str], Run], undisturbed: Run) -> None:
    run = make_run("damaged")
    assert run.finish(stop=8) == 0
    newest = max(run.paths.checkpoints.iterdir())
    os.truncate(next(newest.glob("*.distcp")), 100)
    assert run.finish() == 0
    assert_same_policies(run, undisturbed)
    assert (run.paths.set_aside / f"checkpoint-{newest.name}").exists()


@pytest.mark.parametrize("logs", [3, 7])
def test_a_preempted_learner_saves_its_state_and_goes_on(
    make_run: Callable[[str], Run], undisturbed: Run, logs: int
) -> None:
    run = make_run("preempted")
    assert run.finish(preempt=logs) == 75
    assert run.finish() == 0
    assert run.metrics() == undisturbed.metrics()
    assert_same_policies(run, undisturbed)
