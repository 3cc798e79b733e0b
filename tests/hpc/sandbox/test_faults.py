"""What happens when the owner, the container or the machine lets the sandbox down."""

import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

import hpc
from hpc.errors import SandboxDiedError, SandboxError, SandboxStartError
from hpc.sandbox.open import Choice, choose_backend, open_sandbox, sandbox_factory
from hpc.sandbox.protocol import SandboxSpec

BUBBLEWRAP = Choice(backend="bubblewrap", image=None, reason="")
REPOSITORY = Path(hpc.__file__).parents[1]


def processes_with(text: str) -> list[int]:
    """Processes of this machine whose command line holds ``text``."""
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            if text.encode() in (folder / "cmdline").read_bytes() and int(folder.name) != os.getpid():
                found.append(int(folder.name))
        except OSError:
            continue
    return found


def wait_until_gone(text: str) -> None:
    deadline = time.monotonic() + 2
    while processes_with(text):
        assert time.monotonic() < deadline, f"still running: {processes_with(text)}"
        time.sleep(0.01)


OWNER = """
import sys, threading
from pathlib import Path
from hpc.sandbox.open import Choice, open_sandbox
from hpc.sandbox.protocol import SandboxSpec
choice = Choice(backend="bubblewrap", image=None, reason="")
idle = open_sandbox(choice, SandboxSpec(), Path(sys.argv[1]))
busy = open_sandbox(choice, SandboxSpec(), Path(sys.argv[1]))
print("started", flush=True)
busy.execute("for i in 1 2 3; do setsid sleep " + sys.argv[2] + " & done; while :; do :; done", 60)
"""


def test_nothing_is_left_of_a_killed_owner(tmp_path: Path) -> None:
    nap = f"60.{time.time_ns() % 10**9}"  # to find this test's processes among all others
    owner = subprocess.Popen([sys.executable, "-c", OWNER, str(tmp_path), nap],
                             stdout=subprocess.PIPE, env={**os.environ, "PYTHONPATH": str(REPOSITORY)})  # fmt: skip
    assert owner.stdout is not None and owner.stdout.readline() == b"started\n"
    deadline = time.monotonic() + 5
    while len(processes_with(nap)) < 5:
        assert time.monotonic() < deadline
        time.sleep(0.01)
    owner.send_signal(signal.SIGKILL)
    owner.wait()
    owner.stdout.close()
    wait_until_gone(nap)
    wait_until_gone(str(tmp_path))
    assert len(list(tmp_path.iterdir())) == 2
    sandbox_factory(BUBBLEWRAP, tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_a_dead_container_is_noticed_and_comes_back_with_its_snapshot(tmp_path: Path) -> None:
    sandbox = open_sandbox(BUBBLEWRAP, SandboxSpec(files={"a": b"1"}), tmp_path)
    try:
        saved = sandbox.snapshot()
        sandbox.execute("echo 2 > a; echo 3 > b", 10)
        (container,) = processes_with(str(tmp_path))
        os.killpg(container, signal.SIGKILL)
        wait_until_gone(str(tmp_path))
        with pytest.raises(SandboxDiedError):
            sandbox.execute("true", 10)
        with pytest.raises(SandboxDiedError):
            sandbox.execute("true", 10)
        sandbox.restore(saved)
        assert sandbox.execute("cat a; ls", 10).stdout == "1a\n"
    finally:
        sandbox.close()
    assert list(tmp_path.iterdir()) == []


def test_close_works_at_any_moment_and_twice(tmp_path: Path) -> None:
    factory = sandbox_factory(BUBBLEWRAP, tmp_path)
    never_started = factory(SandboxSpec())
    never_started.close()
    launched = factory(SandboxSpec())
    launched.launch()
    launched.close()
    launched.close()
    with pytest.raises(SandboxDiedError, match="not started"):
        launched.execute("true", 1)
    assert list(tmp_path.iterdir()) == []
    wait_until_gone(str(tmp_path))


def test_a_sandbox_that_cannot_start_says_why_and_leaves_nothing(tmp_path: Path) -> None:
    image = tmp_path / "image"
    (image / "usr").mkdir(parents=True)
    with pytest.raises(SandboxStartError, match="python3"):
        open_sandbox(Choice(backend="bubblewrap", image=image, reason=""), SandboxSpec(), tmp_path / "base")
    assert list((tmp_path / "base").iterdir()) == []


def test_choosing_names_the_mend(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(SandboxStartError, match="auto, apptainer or bubblewrap"):
        choose_backend("docker")
    with pytest.raises(SandboxStartError, match="does not exist"):
        choose_backend("auto", tmp_path / "none.sif")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))  # no image there
    assert choose_backend("auto").backend == "bubblewrap"
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(SandboxStartError, match="apt-get install bubblewrap"):
        choose_backend("auto")


def test_limits_of_a_shape_cannot_change_after_the_start(tmp_path: Path) -> None:
    sandbox = open_sandbox(BUBBLEWRAP, SandboxSpec(), tmp_path)
    with pytest.raises(SandboxError, match="other mounts"):
        sandbox.fill(SandboxSpec(writable=("/logs",)))
    sandbox.close()


CHECK_ALL = """
import sys
from pathlib import Path
from hpc.sandbox.open import Choice, sandbox_factory
from hpc.sandbox.self_check import CHECKS
base = Path(sys.argv[1])
factory = sandbox_factory(Choice(backend="bubblewrap", image=None, reason=""), base)
for name, check in CHECKS.items():
    check(factory)
    print(name)
assert not list(base.iterdir())
"""


def test_a_normal_user_gets_the_same_promises(tmp_path: Path) -> None:
    if os.geteuid() != 0:
        return  # then the contract suite ran as a normal user already
    home = Path("/tmp") / f"rlhpc-normal-user-{os.getpid()}"  # pytest's own folders are closed to others
    shutil.copytree(REPOSITORY / "hpc", home / "hpc", ignore=shutil.ignore_patterns("__pycache__"))
    subprocess.run(["chmod", "-R", "a+rX", home], check=True)
    base = home / "base"
    base.mkdir()
    os.chown(base, 65534, 65534)
    try:
        result = subprocess.run(
            ["/usr/bin/python3", "-c", CHECK_ALL, str(base)], cwd=home, user=65534, group=65534, extra_groups=[],
            env={"PATH": "/usr/bin:/bin", "HOME": "/nonexistent", "PYTHONPATH": str(home)},
            capture_output=True, text=True, check=False,
        )  # fmt: skip
        assert result.returncode == 0, f"done: {result.stdout}\n{result.stderr[-3000:]}"
    finally:
        shutil.rmtree(home)
