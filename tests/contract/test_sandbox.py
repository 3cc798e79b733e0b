"""Every backend keeps every promise of hpc/sandbox/self_check.py."""

import fcntl
import os
import shutil
import subprocess
from pathlib import Path

import pytest

from hpc.sandbox.open import Choice, sandbox_factory
from hpc.sandbox.self_check import CHECKS

CONTAINERS = Path(__file__).parents[2] / "containers"


@pytest.fixture(scope="session")
def image() -> Path:
    """A minimal image in a place of its own: the tests must not depend on, or change, the user's image."""
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "rlhpc-tests" / "images"
    cache.mkdir(parents=True, exist_ok=True)
    with (cache / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # several test processes may come here at once
        if shutil.which("apptainer") is None:
            subprocess.run([CONTAINERS / "install-apptainer.sh"], check=True)
        environment = {**os.environ, "PACKAGES": "python3"}
        subprocess.run([CONTAINERS / "build-python-image.sh", cache / "python"], check=True, env=environment)
    return cache / "python"


@pytest.fixture(params=["bubblewrap", "bubblewrap-image", "apptainer"])
def choice(request: pytest.FixtureRequest) -> Choice:
    if request.param == "bubblewrap":
        return Choice(backend="bubblewrap", image=None, reason="")
    return Choice(backend=request.param.split("-")[0], image=request.getfixturevalue("image"), reason="")


@pytest.mark.parametrize("name", CHECKS)
def test_keeps_the_promise(name: str, choice: Choice, tmp_path: Path) -> None:
    base = tmp_path / "base"
    CHECKS[name](sandbox_factory(choice, base))
    assert list(base.iterdir()) == []
