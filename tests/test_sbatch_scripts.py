from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

SCRIPTS = sorted(Path(__file__).parents[1].glob("slurm/*.sbatch"))


def test_every_stage_has_a_script() -> None:
    assert {script.stem for script in SCRIPTS} == {"train", "gate", "rollout", "learn", "eval"}


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda script: script.stem)
def test_a_script_is_valid_shell_and_can_be_requeued(script: Path) -> None:
    subprocess.run(["bash", "-n", script], check=True)
    lines = script.read_text().splitlines()
    assert lines[0] == "#!/bin/bash"  # sbatch refuses a script without it
    assert "#SBATCH --requeue" in lines
    assert "#SBATCH --signal=USR2@120" in lines
    assert f'srun --ntasks=1 rlhpc {script.stem} "$@"' in lines
    first_command = next(index for index, line in enumerate(lines) if line and not line.startswith("#"))
    assert not any(line.startswith("#SBATCH") for line in lines[first_command:])  # sbatch would pass over it
