"""Seeds as a function of what they are for, so that any worker at any time draws the same numbers."""

from __future__ import annotations

import hashlib


def derive_seed(*parts: int | str) -> int:
    """A seed in [0, 2**63) that depends on every part and on their order."""
    digest = hashlib.blake2b("\x00".join(repr(part) for part in parts).encode(), digest_size=8).digest()
    return int.from_bytes(digest, "big") >> 1


def sample_seed(campaign_seed: int, wave: int, task_id: str, sample_index: int) -> int:
    """Seed of one trajectory."""
    return derive_seed(campaign_seed, wave, task_id, sample_index)


def round_seed(trajectory_seed: int, round_index: int) -> int:
    """Seed of one action of a trajectory."""
    return derive_seed(trajectory_seed, round_index)
