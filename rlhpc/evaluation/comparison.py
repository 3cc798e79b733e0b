"""Paired comparison of two policies on the same tasks."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import comb

from rlhpc.types import Trajectory, TrajectoryStatus


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """Outcomes of the pairs (same task, same sample) that are valid on both sides."""

    both: int
    """Solved by both policies."""
    only_first: int
    only_second: int
    neither: int
    p_value: float
    """Two-sided, of the hypothesis that both policies solve equally often."""

    @property
    def pairs(self) -> int:
        """All pairs."""
        return self.both + self.only_first + self.only_second + self.neither

    @property
    def difference(self) -> float:
        """Solve rate of the second minus that of the first; 0 without pairs."""
        return (self.only_second - self.only_first) / self.pairs if self.pairs else 0.0


def compare(first: Sequence[Trajectory], second: Sequence[Trajectory]) -> Comparison:
    """Compare two evaluations pair by pair; trajectories without a valid partner do not count."""
    before, after = _outcomes(first), _outcomes(second)
    outcomes = [(before[key], after[key]) for key in before.keys() & after.keys()]
    only_first, only_second = outcomes.count((True, False)), outcomes.count((False, True))
    return Comparison(
        both=outcomes.count((True, True)),
        only_first=only_first,
        only_second=only_second,
        neither=outcomes.count((False, False)),
        p_value=mcnemar_exact(only_first, only_second),
    )


def mcnemar_exact(only_first: int, only_second: int) -> float:
    """Two-sided p-value of McNemar's test from the discordant pairs (McNemar 1947, doi:10.1007/BF02295996).

    Exact: the smaller count against a binomial distribution with probability 1/2. 1 without discordant pairs.
    """
    discordant = only_first + only_second
    tail = sum(comb(discordant, i) for i in range(min(only_first, only_second) + 1))
    return min(1.0, 2 * tail / (1 << discordant))


def _outcomes(trajectories: Sequence[Trajectory]) -> dict[tuple[str, int], bool]:
    valid = (trajectory for trajectory in trajectories if trajectory.status is TrajectoryStatus.COMPLETE)
    return {(trajectory.task_id, trajectory.sample_index): trajectory.solved for trajectory in valid}
