"""Data, tensor and pipeline parallel ranks compute what one rank computes. Real processes, gloo."""

import json
import multiprocessing
import pickle
import runpy
import socket
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from rlhpc.learner.weights import read_weights
from rlhpc.types import Trajectory

WORKER = """
import json, os, pickle
from pathlib import Path

os.environ.update(environment)
import torch.distributed as dist
from rlhpc.learner.megatron import Learner, process_groups
from rlhpc.learner.megatron_state import load_state, save_state
from rlhpc.learner.progress import SftProgress
from rlhpc.learner.settings import LearnerSettings, OptimizerSettings, ParallelSettings, SftSettings
from rlhpc.learner.sft import supervised_samples, supervised_steps
from rlhpc.learner.shape import read_shape
from rlhpc.learner.weights import write_weights

optimizer = OptimizerSettings(learning_rate=1e-2)
settings = LearnerSettings(
    parallel=ParallelSettings(tensor=tensor, pipeline=pipeline),
    micro_batch_tokens=200,
    sft=SftSettings(steps=last, batch_size=5, optimizer=optimizer),
)
samples = supervised_samples(pickle.loads((Path(output) / "trajectories").read_bytes()))
with process_groups(settings.parallel, seed=0, threads=1):
    learner = Learner(read_shape(Path(model)), optimizer)
    learner.load_hugging_face(Path(model))
    if first:
        load_state(learner, Path(state))
    steps = supervised_steps(learner, samples, settings, SftProgress(steps=first))
    metrics = [values for _, values in steps]
    save_state(learner, Path(state))
    weights = learner.hugging_face_weights()
    if dist.get_rank() == 0:
        write_weights(Path(output), weights)
        (Path(output) / "metrics.json").write_text(json.dumps(metrics))
"""

PROCESSES = multiprocessing.get_context("forkserver")
PROCESSES.set_forkserver_preload(["rlhpc.learner.loop"])  # importing megatron takes seconds: once for all processes


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


class Ranks:
    """Runs the worker on some ranks in a folder of its own."""

    def __init__(self, folder: Path, model: Path, trajectories: list[Trajectory]) -> None:
        self.folder, self.model, self.trajectories = folder, model, trajectories
        (folder / "worker.py").write_text(WORKER)

    def run(
        self, ranks: int, *, tensor: int = 1, pipeline: int = 1, first: int = 0, last: int = 4, state: str = "state"
    ) -> tuple[list[dict[str, float]], dict[str, torch.Tensor]]:
        output = self.folder / f"output-{ranks}-{tensor}-{pipeline}-{first}-{last}"
        output.mkdir()
        (self.folder / state).mkdir(exist_ok=True)
        (output / "trajectories").write_bytes(pickle.dumps(self.trajectories))
        names = {"model": str(self.model), "state": str(self.folder / state), "output": str(output), "first": first}
        names |= {"last": last, "tensor": tensor, "pipeline": pipeline}
        world = {"WORLD_SIZE": str(ranks), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port())}
        workers = [
            PROCESSES.Process(
                target=runpy.run_path,
                args=(str(self.folder / "worker.py"), names | {"environment": world | {"RANK": str(rank)}}),
            )
            for rank in range(ranks)
        ]
        for worker in workers:
            worker.start()
        for worker in workers:
            worker.join(timeout=60)
        assert [worker.exitcode for worker in workers] == [0] * ranks
        return json.loads((output / "metrics.json").read_text()), read_weights(output)


@pytest.fixture(scope="module")
def trajectories(make_trajectory: Callable[..., Trajectory]) -> list[Trajectory]:
    return [make_trajectory(group=group, actions=("look at it", "edit")[: 1 + group % 2]) for group in range(7)]


@pytest.fixture(scope="module")
def alone(
    tmp_path_factory: pytest.TempPathFactory, tiny_model: Path, trajectories: list[Trajectory]
) -> tuple[list[dict[str, float]], dict[str, torch.Tensor]]:
    return Ranks(tmp_path_factory.mktemp("alone"), tiny_model, trajectories).run(1)


@pytest.fixture
def ranks(tmp_path: Path, tiny_model: Path, trajectories: list[Trajectory]) -> Ranks:
    return Ranks(tmp_path, tiny_model, trajectories)


@pytest.mark.parametrize("layout", [{"tensor": 1}, {"tensor": 2}, {"pipeline": 2}], ids=["data", "tensor", "pipeline"])
def test_two_ranks_learn_what_one_learns(ranks: Ranks, alone: Any, layout: dict[str, int]) -> None:
    assert_same(ranks.run(2, **layout), alone)


def test_a_run_goes_on_with_the_same_loss_in_another_layout(ranks: Ranks, alone: Any) -> None:
    ranks.run(2, tensor=2, last=2)
    metrics, weights = ranks.run(1, first=2, last=4)
    expected_metrics, expected_weights = alone
    assert_same((metrics, weights), (expected_metrics[2:], expected_weights))


def assert_same(result: Any, expected: Any) -> None:
    (metrics, weights), (expected_metrics, expected_weights) = result, expected
    for name in ("sft_loss", "sft_entropy", "sft_gradient_norm"):
        assert [values[name] for values in metrics] == pytest.approx(
            [values[name] for values in expected_metrics], rel=1e-4
        )
    for name, tensor in expected_weights.items():
        torch.testing.assert_close(weights[name], tensor, atol=1e-3, rtol=0)
