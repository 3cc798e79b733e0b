"""One number from many components."""

from __future__ import annotations

import difflib
from collections.abc import Mapping

from rlhpc.errors import ConfigError


def weighted_reward(components: Mapping[str, float], weights: Mapping[str, float], clip: tuple[float, float]) -> float:
    """Weighted sum of the components, clipped to the range ``clip``; a component without a weight does not count.

    Raises:
        ConfigError: a weight names no component.
    """
    for name in weights:
        if name not in components:
            raise ConfigError(f"reward.weights.{name}: no such component{_nearest(name, components)}")
    total = sum(weight * components[name] for name, weight in weights.items())
    return min(max(total, clip[0]), clip[1])


def _nearest(name: str, components: Mapping[str, float]) -> str:
    near = difflib.get_close_matches(name, components, n=1)
    return f"; did you mean {near[0]!r}?" if near else f"; choose from {', '.join(components)}"
