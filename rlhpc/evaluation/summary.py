"""One evaluation as a value."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean

from rlhpc.evaluation.passk import pass_at_k, wilson_interval
from rlhpc.types import Trajectory, TrajectoryStatus


@dataclass(frozen=True, slots=True, kw_only=True)
class EvaluationResult:
    """How a policy did on a set of tasks. Tasks weigh the same, whatever number of samples is valid."""

    tasks: int
    """Tasks with at least one valid trajectory."""
    trajectories: int
    """Valid ones."""
    invalid: int
    """Lost to infrastructure; in no rate."""
    solve_rate: float
    interval: tuple[float, float]
    """95 % interval of the solve rate, tasks taken as the independent trials; conservative with several samples."""
    pass_at_k: Mapping[int, float]
    """For each power of two up to the fewest samples of any task."""
    mean_reward: float
    mean_rounds: float
    mean_action_tokens: float
    """Tokens that the policy generated per trajectory."""


def summarise(trajectories: Sequence[Trajectory]) -> EvaluationResult:
    """Summarise the trajectories of one evaluation; all rates are 0 if none is valid."""
    valid = [trajectory for trajectory in trajectories if trajectory.status is TrajectoryStatus.COMPLETE]
    by_task: dict[str, list[bool]] = {}
    for trajectory in valid:
        by_task.setdefault(trajectory.task_id, []).append(trajectory.solved)
    solve_rate = _mean([fmean(solved) for solved in by_task.values()])
    return EvaluationResult(
        tasks=len(by_task),
        trajectories=len(valid),
        invalid=len(trajectories) - len(valid),
        solve_rate=solve_rate,
        interval=wilson_interval(solve_rate, len(by_task)),
        pass_at_k={
            k: fmean(pass_at_k(len(solved), sum(solved), k) for solved in by_task.values())
            for k in _powers_of_two(min(map(len, by_task.values()), default=0))
        },
        mean_reward=_mean([trajectory.reward for trajectory in valid]),
        mean_rounds=_mean([len(trajectory.rounds) for trajectory in valid]),
        mean_action_tokens=_mean([_action_tokens(trajectory) for trajectory in valid]),
    )


def _action_tokens(trajectory: Trajectory) -> int:
    return sum(len(played.action_token_ids) for played in trajectory.rounds)


def _powers_of_two(limit: int) -> list[int]:
    return [2**exponent for exponent in range(limit.bit_length())]


def _mean(values: Sequence[float]) -> float:
    return fmean(values) if values else 0.0
