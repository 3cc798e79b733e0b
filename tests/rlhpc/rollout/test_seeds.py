from __future__ import annotations

from rlhpc.rollout.seeds import derive_seed, round_seed, sample_seed


def test_every_part_of_a_seed_counts() -> None:
    base = sample_seed(1, 2, "task", 3)
    others = [sample_seed(0, 2, "task", 3), sample_seed(1, 1, "task", 3), sample_seed(1, 2, "other", 3)]
    assert len({base, *others, sample_seed(1, 2, "task", 4), round_seed(base, 0), round_seed(base, 1)}) == 7


def test_parts_do_not_run_together() -> None:
    assert derive_seed(1, 23) != derive_seed(12, 3)
    assert derive_seed("1") != derive_seed(1)


def test_seeds_never_change_between_versions_of_the_code() -> None:
    assert derive_seed(0, 1, "task", 2) == derive_seed(0, 1, "task", 2)
    assert sample_seed(0, 7, "task-1", 3) == 1876794557339587951
