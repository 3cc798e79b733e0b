"""Reward components: named raw floats of a round and of a whole episode. Pure functions.

Components are stored raw, so that other weights need no new rollouts. What infrastructure did (a dead sandbox, an
invalid trajectory) is no component: it is no merit and no fault of the policy.
"""

from __future__ import annotations

from collections.abc import Sequence

from rlhpc.types import Round

TESTS_PASSED = "tests_passed"
"""Fraction of the hidden tests that pass after the round / after the last round."""
TESTS_PROGRESS = "tests_progress"
"""Change of that fraction in the round / its sum over rounds: how far the episode came from where it began."""
FORMAT_VALID = "format_valid"
"""1 if the action could be read as one / fraction of rounds."""
TIMEOUTS = "timeouts"
"""1 if the command ran into its time limit / number of rounds."""
ROUNDS_USED = "rounds_used"
"""1 / number of rounds."""

COMPONENTS = (TESTS_PASSED, TESTS_PROGRESS, FORMAT_VALID, TIMEOUTS, ROUNDS_USED)
"""All names, in the order in which segments store them; the same for rounds and for trajectories."""


def round_rewards(
    *, fraction: float, previous_fraction: float, well_formed: bool, timed_out: bool = False
) -> dict[str, float]:
    """Components of one round.

    Args:
        fraction: Of the hidden tests that pass after the round, 0 to 1.
        previous_fraction: The same before the round.
        well_formed: Whether the action could be read as one.
        timed_out: Whether its command ran into its time limit.
    """
    return {
        TESTS_PASSED: fraction,
        TESTS_PROGRESS: fraction - previous_fraction,
        FORMAT_VALID: float(well_formed),
        TIMEOUTS: float(timed_out),
        ROUNDS_USED: 1.0,
    }


def trajectory_rewards(rounds: Sequence[Round]) -> dict[str, float]:
    """Components of a whole episode; all zero for one without rounds."""
    if not rounds:
        return dict.fromkeys(COMPONENTS, 0.0)
    total = {name: sum(played.rewards[name] for played in rounds) for name in COMPONENTS}
    final = rounds[-1].rewards[TESTS_PASSED]
    return total | {TESTS_PASSED: final, FORMAT_VALID: total[FORMAT_VALID] / len(rounds)}
