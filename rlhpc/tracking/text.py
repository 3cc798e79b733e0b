"""Numbers as short text, the same in terminal, status and report."""

from __future__ import annotations

import math
from collections.abc import Sequence

_BLOCKS = "▁▂▃▄▅▆▇█"


def duration(seconds: float) -> str:
    """``48 s``, ``3 min 20 s``, ``2 h 05 min``, ``3 d 4 h``."""
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60:02d} s"
    if whole < 86400:
        return f"{whole // 3600} h {whole % 3600 // 60:02d} min"
    return f"{whole // 86400} d {whole % 86400 // 3600} h"


def number(value: float | None) -> str:
    """Three significant digits, without exponent where a person would write none; ``–`` for nothing."""
    if value is None or not math.isfinite(value):
        return "–"
    if value == 0:
        return "0"
    if not 1e-3 <= abs(value) < 1e6:
        return f"{value:.1e}"
    decimals = max(0, 2 - math.floor(math.log10(abs(value))))
    text = f"{value:,.{decimals}f}"
    return text.rstrip("0").rstrip(".") if "." in text else text


def percent(value: float | None) -> str:
    """A rate between 0 and 1 as ``84 %``."""
    return "–" if value is None else f"{100 * value:.0f} %"


def sparkline(values: Sequence[float], width: int) -> str:
    """The last ``width`` values as a line of bars, from the lowest to the highest of them."""
    shown = list(values)[-width:]
    low, high = min(shown, default=0.0), max(shown, default=0.0)
    scale = (len(_BLOCKS) - 1) / (high - low) if high > low else 0.0
    return "".join(_BLOCKS[round((value - low) * scale)] for value in shown)
