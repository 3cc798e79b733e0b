from collections.abc import Callable
from pathlib import Path

import pytest

from hpc.sandbox.bubblewrap import bubblewrap_backend
from hpc.sandbox.container import ContainerSandbox
from hpc.sandbox.protocol import Sandbox, SandboxSpec


@pytest.fixture
def open_sandbox(tmp_path: Path) -> Callable[[SandboxSpec], Sandbox]:
    backend = bubblewrap_backend()

    def start(spec: SandboxSpec) -> Sandbox:
        sandbox = ContainerSandbox(backend, spec, tmp_path / "sandboxes")
        sandbox.start()
        return sandbox

    return start
