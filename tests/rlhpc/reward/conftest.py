from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from hpc.sandbox.open import choose_backend, sandbox_factory
from hpc.sandbox.pool import SandboxPool
from hpc.sandbox.protocol import Sandbox, SandboxSpec


@pytest.fixture
def open_sandbox(tmp_path: Path) -> Iterator[Callable[[SandboxSpec], Sandbox]]:
    """Sandboxes of this machine's own backend, started ahead."""
    with SandboxPool(sandbox_factory(choose_backend(), tmp_path / "sandboxes"), ahead=2) as pool:
        yield pool.acquire
