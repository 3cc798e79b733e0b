from collections.abc import Callable

import pytest

from rlhpc.types import FinishReason, Round, StopReason, Trajectory, TrajectoryStatus

Played = Callable[..., Trajectory]

A_ROUND = Round(
    index=0,
    context_token_ids=(1, 2),
    action_token_ids=(3, 4, 5),
    behaviour_logprobs=(0.0, 0.0, 0.0),
    policy_version=0,
    finish_reason=FinishReason.STOP,
    action="",
    observation="",
    rewards={},
    generate_seconds=0.0,
    execute_seconds=0.0,
)


@pytest.fixture
def played() -> Played:
    def make(task: str, sample: int, *, solved: bool, valid: bool = True, rounds: int = 2) -> Trajectory:
        return Trajectory(
            task_id=task,
            group_id="000001-0000",
            sample_index=sample,
            seed=0,
            rounds=(A_ROUND,) * rounds,
            rewards={},
            reward=float(solved),
            status=TrajectoryStatus.COMPLETE if valid else TrajectoryStatus.INVALID,
            stop_reason=StopReason.SOLVED if solved else StopReason.MAX_ROUNDS,
        )

    return make
