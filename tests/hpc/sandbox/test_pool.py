"""Sandboxes that are started ahead."""

import os
import signal
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from hpc.sandbox.open import Choice, sandbox_factory
from hpc.sandbox.pool import SandboxPool
from hpc.sandbox.protocol import SandboxSpec

BUBBLEWRAP = Choice(backend="bubblewrap", image=None, reason="")


def wait_for(count: int, base: Path) -> None:
    deadline = time.monotonic() + 10
    while len(list(base.glob("*"))) != count:
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_what_was_started_ahead_is_filled_with_what_is_asked_for(tmp_path: Path) -> None:
    (tmp_path / "tests").mkdir()
    (tmp_path / "tests" / "test.sh").write_text("cat answer")
    base = tmp_path / "base"
    with SandboxPool(sandbox_factory(BUBBLEWRAP, base), ahead=1) as pool:
        pool.warm(SandboxSpec(read_only={"/tests": tmp_path}, files={"other": b""}), 3)
        wait_for(1, base)
        waiting = next(base.iterdir())
        spec = SandboxSpec(read_only={"/tests": tmp_path / "tests"}, files={"answer": b"42"})
        sandbox = pool.acquire(spec)
        assert waiting.exists()
        assert sandbox.execute("ls; sh /tests/test.sh", 10).stdout == "answer\n42"
        pool.release(sandbox)
        wait_for(1, base)  # the next one
        assert next(base.iterdir()) != waiting
    assert list(base.iterdir()) == []


def test_another_shape_displaces_what_waited_longest(tmp_path: Path) -> None:
    with SandboxPool(sandbox_factory(BUBBLEWRAP, tmp_path), ahead=1) as pool:
        pool.warm(SandboxSpec(), 1)
        wait_for(1, tmp_path)
        sandbox = pool.acquire(SandboxSpec(writable=("/logs",)))
        assert sandbox.execute("touch /logs/a && ls /logs", 10).stdout == "a\n"
        sandbox.close()
        wait_for(1, tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_a_container_that_died_while_it_waited_is_replaced(tmp_path: Path) -> None:
    with SandboxPool(sandbox_factory(BUBBLEWRAP, tmp_path), ahead=1) as pool:
        pool.warm(SandboxSpec(), 1)
        wait_for(1, tmp_path)
        time.sleep(0.2)
        for folder in Path("/proc").glob("[0-9]*"):
            if folder.name != str(os.getpid()) and str(tmp_path).encode() in _command_line(folder):
                os.killpg(int(folder.name), signal.SIGKILL)
        sandbox = pool.acquire(SandboxSpec(files={"a": b"a"}))
        assert sandbox.execute("cat a", 10).stdout == "a"
        sandbox.close()


def _command_line(process: Path) -> bytes:
    try:
        return (process / "cmdline").read_bytes()
    except OSError:
        return b""


def test_at_least_forty_short_lives_per_second(tmp_path: Path) -> None:
    factory = sandbox_factory(BUBBLEWRAP, tmp_path)

    def live(number: int) -> str:
        sandbox = factory(SandboxSpec(files={"number": str(number).encode()}))
        sandbox.start()
        output = sandbox.execute("cat number", 10).stdout
        sandbox.close()
        return output

    rates = []
    with ThreadPoolExecutor(4) as threads:
        for _ in range(3):  # the best of three, since others may use this machine
            began = time.perf_counter()
            assert list(threads.map(live, range(40))) == [str(number) for number in range(40)]
            rates.append(40 / (time.perf_counter() - began))
    assert max(rates) >= 40 * min(1.0, (os.cpu_count() or 1) / 2), rates
