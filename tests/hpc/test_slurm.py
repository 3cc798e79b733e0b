from __future__ import annotations

import pytest

from hpc.errors import LaunchError
from hpc.slurm import queued_jobs


def test_a_machine_without_slurm_is_told_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/nowhere")
    with pytest.raises(LaunchError, match="squeue is not on PATH"):
        queued_jobs()
