from collections.abc import Callable
from pathlib import Path

import pytest

from hpc.sandbox.bubblewrap import bubblewrap_backend
from hpc.sandbox.container import ContainerSandbox
from hpc.sandbox.protocol import Sandbox, SandboxSpec

TASK = """\
[metadata]
family = "answers"

[agent]
timeout_sec = 20

[verifier]
timeout_sec = 20
"""
TEST = 'if grep -qx right answer.txt; then r=1; else r=0; fi; echo "{\\"reward\\": $r}" > /logs/verifier/reward.json\n'


@pytest.fixture
def open_sandbox(tmp_path: Path) -> Callable[[SandboxSpec], Sandbox]:
    backend = bubblewrap_backend()

    def start(spec: SandboxSpec) -> Sandbox:
        sandbox = ContainerSandbox(backend, spec, tmp_path / "sandboxes")
        sandbox.start()
        return sandbox

    return start


@pytest.fixture
def write_task(tmp_path: Path) -> Callable[..., Path]:
    """Writes a complete, sound task in the Harbor format, with files replaced (or removed: None) as asked for."""

    def write(name: str, files: dict[str, str | None] | None = None) -> Path:
        contents: dict[str, str | None] = {
            "task.toml": TASK,
            "instruction.md": f"Write the right answer of {name} into answer.txt.\n",
            "environment/workspace/answer.txt": "wrong\n",
            "tests/test.sh": TEST,
            "solution/solve.sh": "echo right > answer.txt\n",
        }
        folder = tmp_path / "tasks" / name
        for path, content in (contents | (files or {})).items():
            if content is not None:
                (folder / path).parent.mkdir(parents=True, exist_ok=True)
                (folder / path).write_text(content)
        return folder

    return write
