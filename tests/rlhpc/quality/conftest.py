from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from hpc.sandbox.open import choose_backend, sandbox_factory
from hpc.sandbox.pool import SandboxPool
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
def open_sandbox(tmp_path: Path) -> Iterator[Callable[[SandboxSpec], Sandbox]]:
    """Sandboxes of this machine's own backend, started ahead."""
    with SandboxPool(sandbox_factory(choose_backend(), tmp_path / "sandboxes"), ahead=2) as pool:
        yield pool.acquire


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
