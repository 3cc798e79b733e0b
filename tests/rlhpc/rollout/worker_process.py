"""One rollout worker as a process of its own, to be killed: RUN NAME TASK_FOLDER MODEL."""

from __future__ import annotations

import logging
import sys
from pathlib import Path

from hpc.sandbox.throwaway import open_sandbox
from rlhpc.paths import RunPaths
from rlhpc.rollout.settings import RolloutSettings
from rlhpc.rollout.worker import run_worker
from rlhpc.types import Task
from rlhpc.waves import list_waves, wave_finished

SETTINGS = RolloutSettings(
    max_rounds=4, token_budget=1200, observation_tokens=100, lease_seconds=1.0, parallel_sandboxes=4, poll_seconds=0.05
)


def main(run: Path, name: str, task_folder: Path, model: Path) -> None:
    paths = RunPaths(run)
    instruction = (task_folder / "instruction.md").read_text()
    task = Task(task_id=task_folder.name, path=task_folder, instruction=instruction)

    def finished() -> bool:
        return all(wave_finished(paths, wave) for wave in list_waves(paths))

    run_worker(paths, name, SETTINGS, {task.task_id: task}, open_sandbox, model, should_stop=finished)


if __name__ == "__main__":
    logging.basicConfig(level=logging.INFO)
    main(Path(sys.argv[1]), sys.argv[2], Path(sys.argv[3]), Path(sys.argv[4]))
