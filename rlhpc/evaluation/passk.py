"""Solve rates: pass@k and confidence intervals. Pure functions of counts."""

from __future__ import annotations

from math import comb, sqrt
from statistics import NormalDist


def pass_at_k(n: int, c: int, k: int) -> float:
    """Unbiased estimate of the probability that at least one of k samples solves a task.

    Chen et al. 2021, arXiv:2107.03374, eq. 1: 1 - C(n - c, k) / C(n, k).

    Args:
        n: Samples of the task.
        c: Samples that solved it.
        k: At most n.

    Raises:
        ValueError: not 0 <= c <= n, or not 1 <= k <= n.
    """
    if not 0 <= c <= n or not 1 <= k <= n:
        raise ValueError(f"pass@{k} of {c} solved among {n} samples is not defined")
    return 1.0 - comb(n - c, k) / comb(n, k)


def wilson_interval(rate: float, n: int, confidence: float = 0.95) -> tuple[float, float]:
    """Score interval of a proportion (Wilson 1927, doi:10.1080/01621459.1927.10502953).

    Args:
        rate: Observed proportion, 0 to 1.
        n: Independent trials; 0 gives (0, 1).
        confidence: Two-sided.
    """
    if n == 0:
        return 0.0, 1.0
    z = NormalDist().inv_cdf((1 + confidence) / 2)
    shrink = 1 + z * z / n
    centre = (rate + z * z / (2 * n)) / shrink
    margin = z / shrink * sqrt(rate * (1 - rate) / n + z * z / (4 * n * n))
    return max(0.0, centre - margin), min(1.0, centre + margin)
