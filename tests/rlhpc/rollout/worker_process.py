"""One rollout worker as a process of its own, to be killed: RUN NAME TASK_FOLDER MODEL SANDBOXES."""

from __future__ import annotations

import logging
import sys
from pathlib import Path

from hpc.sandbox.open import choose_backend, sandbox_factory
from hpc.sandbox.pool import SandboxPool
from rlhpc.paths import RunPaths
from rlhpc.rollout.settings import RolloutSettings
from rlhpc.rollout.worker import run_worker
from rlhpc.types import Task
from rlhpc.waves import list_waves, wave_finished

SETTINGS = RolloutSettings(
    max_rounds=4, token_budget=1200, observation_tokens=100, lease_seconds=1.0, parallel_sandboxes=4, poll_seconds=0.05
)


def main(run: Path, name: str, task_folder: Path, model: Path, sandboxes: Path) -> None:
    paths = RunPaths(run)
    instruction = (task_folder / "instruction.md").read_text()
    task = Task(task_id=task_folder.name, path=task_folder, instruction=instruction)

    def finished() -> bool:
        return all(wave_finished(paths, wave) for wave in list_waves(paths))

    with SandboxPool(sandbox_factory(choose_backend(), sandboxes), ahead=4) as pool:
        run_worker(paths, name, SETTINGS, {task.task_id: task}, pool.acquire, model, should_stop=finished)


if __name__ == "__main__":
    logging.basicConfig(level=logging.INFO)
    run, name, *others = sys.argv[1:]
    main(Path(run), name, *map(Path, others))
