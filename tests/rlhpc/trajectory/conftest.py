from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from rlhpc.paths import RunPaths
from rlhpc.types import (
    FinishReason,
    Group,
    Round,
    SamplingParameters,
    StopReason,
    Trajectory,
    TrajectoryStatus,
    Wave,
    WaveKind,
)


def float32(values: np.ndarray) -> tuple[float, ...]:
    return tuple(values.astype(np.float32).tolist())


def a_round(index: int, random: np.random.Generator) -> Round:
    """Values of all sizes; floats are float32, as policies give them."""
    context, action = int(random.integers(0, 20)), int(random.integers(0, 9))
    return Round(
        index=index,
        context_token_ids=tuple(random.integers(0, 2**32, context).tolist()),
        action_token_ids=tuple(random.integers(0, 2**32, action).tolist()),
        behaviour_logprobs=float32(np.log(random.random(action))),
        policy_version=int(random.integers(-1, 1000)),
        finish_reason=random.choice([*FinishReason]),
        action=f"sed -i 's/ä/\\n/' datei{index}.py\n\x00",
        observation="not UTF-8: \udcff" if index else "",
        rewards=dict(zip(("tests_passed", "progress"), float32(random.random(2)), strict=True)),
        generate_seconds=float32(random.random(1))[0],
        execute_seconds=0.25,
    )


@pytest.fixture(scope="session")
def make_trajectory() -> Callable[..., Trajectory]:
    def make(group: int = 0, sample: int = 0, *, rounds: int = 3, wave: int = 3, solved: bool = True) -> Trajectory:
        random = np.random.default_rng([wave, group, sample])
        return Trajectory(
            task_id=f"aufgabe-ü-{group}",
            group_id=f"{wave:06d}-{group:04d}",
            sample_index=sample,
            seed=int(random.integers(0, 2**63)),
            rounds=tuple(a_round(index, random) for index in range(rounds)),
            rewards={"tests_passed": float(solved), "rounds_used": float(rounds)},
            reward=float32(random.random(1))[0],
            status=TrajectoryStatus.COMPLETE if rounds else TrajectoryStatus.INVALID,
            stop_reason=StopReason.SOLVED if solved else StopReason.MAX_ROUNDS,
            detail="" if rounds else "the sandbox died",
        )

    return make


@pytest.fixture
def paths(tmp_path: Path) -> RunPaths:
    return RunPaths(tmp_path / "run")


@pytest.fixture
def make_wave() -> Callable[..., Wave]:
    def make(*, number: int = 3, groups: int = 3, kind: WaveKind = WaveKind.TRAIN) -> Wave:
        return Wave(
            number=number,
            kind=kind,
            step=1,
            policy_version=0,
            seed=7,
            sampling=SamplingParameters(temperature=0.9),
            groups=tuple(
                Group(group_id=f"{number:06d}-{i:04d}", task_id=f"task-{i}", samples=2) for i in range(groups)
            ),
        )

    return make
