from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from safetensors.torch import load_file, save_file
from transformers import AutoTokenizer, PreTrainedTokenizerFast

from hpc.sandbox.open import choose_backend, sandbox_factory
from hpc.sandbox.pool import SandboxPool
from hpc.sandbox.protocol import Sandbox, SandboxSpec
from rlhpc.learner.initial_model import write_initial_model
from rlhpc.types import Task

TASK_FILES = {
    "instruction.md": "The function add in solution.py must return the sum of its arguments.",
    "environment/workspace/solution.py": "def add(a, b):\n    return a - b\n",
    "solution/solve.sh": "#!/bin/sh\n# Adds.\nset -e\nsed -i 's/a - b/a + b/' solution.py\n",
    "tests/test.sh": "python3 -I /tests/check.py\n",
    "tests/check.py": """import json, sys
sys.path.insert(0, "/workspace")
try:
    from solution import add
    passed = [add(3, 0) == 3, add(1, 2) == 3]
except Exception:
    passed = [False]
with open("/logs/verifier/reward.json", "w") as file:
    json.dump({"reward": sum(passed) / len(passed)}, file)
""",
}


@pytest.fixture(scope="session")
def tiny_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("models") / "tiny"
    write_initial_model(folder, hidden_size=32, layers=2, attention_heads=4, key_value_heads=2, feed_forward_size=64)
    return folder


@pytest.fixture(scope="session")
def tokenizer(tiny_model: Path) -> PreTrainedTokenizerFast:
    return AutoTokenizer.from_pretrained(tiny_model)


@pytest.fixture(scope="session")
def published(tiny_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The tiny model as policy version 7."""
    folder = tmp_path_factory.mktemp("policies") / "000007"
    shutil.copytree(tiny_model, folder)
    (folder / "policy.json").write_text(json.dumps({"version": 7}))
    return folder


@pytest.fixture(scope="session")
def open_sandbox(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[[SandboxSpec], Sandbox]]:
    """Sandboxes of this machine's own backend, started ahead."""
    factory = sandbox_factory(choose_backend(), tmp_path_factory.mktemp("sandboxes"))
    with SandboxPool(factory, ahead=4) as pool:
        yield pool.acquire


@pytest.fixture(scope="session")
def scribbler(published: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A policy that writes shell lines of Q, X, blanks and redirections: no command that exists, but new files.

    Its first hidden dimension tells these bytes (and the end) from all others, and stays in front of all noise.
    """
    folder = tmp_path_factory.mktemp("policies") / "000007"
    shutil.copytree(published, folder)
    weights = load_file(folder / "model.safetensors")
    weights["model.embed_tokens.weight"][:, 0] = -1.0
    weights["model.embed_tokens.weight"][[*b"QX >", 256], 0] = 1.0
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    return folder


@pytest.fixture(scope="session")
def task(tmp_path_factory: pytest.TempPathFactory) -> Task:
    """One line to repair; its two tests pass to one half at first."""
    folder = tmp_path_factory.mktemp("tasks") / "add-1"
    for name, content in TASK_FILES.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(content)
    return Task(task_id="add-1", path=folder, instruction=TASK_FILES["instruction.md"])
