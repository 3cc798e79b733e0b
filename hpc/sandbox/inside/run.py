"""Runs one command, watches it, and leaves no process of it behind."""

from __future__ import annotations

import os
import select
import time

from hpc.sandbox.inside.output import CappedOutput
from hpc.sandbox.inside.watch import Watch

SIGINT, SIGKILL, SIGPIPE, SIGXFSZ = 2, 9, 13, 25  # the module ``signal`` takes 5 ms to import
OUTPUT_FACTOR = 1024
"""A command that prints this many times what is kept is ended: reading it for ever would cost a core."""


class Outcome:
    """What came of one command."""

    __slots__ = ("exit_code", "duration", "peak_memory", "limit", "stdout", "stderr")

    def __init__(self, exit_code: int, duration: float, peak_memory: int, limit: str,
                 stdout: CappedOutput, stderr: CappedOutput) -> None:
        self.exit_code = exit_code
        self.duration = duration
        self.peak_memory = peak_memory
        self.limit = limit
        self.stdout = stdout
        self.stderr = stderr


class _Family:
    """The command's process and all its descendants; we are their init or subreaper, so none gets lost."""

    def __init__(self, command: bytes, environment: dict[bytes, bytes], stdout: int, stderr: int) -> None:
        self.status: int | None = None
        """Wait status of the command's own process, once it has ended."""
        self.peak_memory = 0
        """Largest resident set of any process that has ended, in KiB."""
        actions = [
            (os.POSIX_SPAWN_OPEN, 0, b"/dev/null", os.O_RDONLY, 0),
            (os.POSIX_SPAWN_DUP2, stdout, 1),
            (os.POSIX_SPAWN_DUP2, stderr, 2),
        ]
        self.leader = os.posix_spawn(b"/bin/sh", [b"sh", b"-c", command], environment, file_actions=actions,
                                     setsid=True, setsigdef=[SIGINT, SIGPIPE, SIGXFSZ])

    def reap(self, options: int) -> None:
        """Collect processes that have ended; with options 0 until there are none left."""
        while True:
            try:
                pid, status, used = os.wait4(-1, options)
            except ChildProcessError:
                return
            if pid == 0:
                return
            self.peak_memory = max(self.peak_memory, used.ru_maxrss)
            if pid == self.leader:
                self.status = status

    def kill(self) -> None:
        """End every process of the container but this one (and init). The kernel does it without a gap for forks."""
        try:
            os.kill(-1, SIGKILL)
        except ProcessLookupError:
            pass
        self.reap(0)


def run(command: bytes, environment: dict[bytes, bytes], timeout: float, watch: Watch,
        output_cap: int, owner: int) -> Outcome:
    """Run ``sh -c command`` for at most ``timeout`` seconds.

    Args:
        command: Text for the shell.
        environment: The command's whole environment.
        timeout: Seconds.
        watch: Looks after memory, processes and disk.
        output_cap: Bytes kept of each stream.
        owner: File descriptor that hangs up when the sandbox's owner dies; then this process ends at once.
    """
    started = time.monotonic()
    (stdout, stdout_write), (stderr, stderr_write) = os.pipe(), os.pipe()
    try:
        family = _Family(command, environment, stdout_write, stderr_write)
    finally:
        os.close(stdout_write)
        os.close(stderr_write)
    streams = {stdout: CappedOutput(output_cap), stderr: CappedOutput(output_cap)}
    watch.begin()
    limit = _attend(family, streams, started + timeout, watch, OUTPUT_FACTOR * output_cap, owner)
    family.kill()
    duration = time.monotonic() - started
    if limit == "disk":
        watch.tolerate_disk()
    for descriptor, output in streams.items():
        _read_rest(descriptor, output)
    exit_code = _exit_code(family.status)
    if exit_code == 128 + SIGXFSZ and not limit:
        limit = "file_size"
    return Outcome(exit_code, duration, family.peak_memory, limit, streams[stdout], streams[stderr])


def _attend(family: _Family, streams: dict[int, CappedOutput], deadline: float, watch: Watch,
            flood: int, owner: int) -> str:
    """Read output until the command's own process ends or a limit is passed; the limit's name or an empty string."""
    poll = select.poll()
    poll.register(owner, 0)  # tells of a hang-up only
    for descriptor in streams:
        os.set_blocking(descriptor, False)
        poll.register(descriptor, select.POLLIN)
    unfinished, pause = len(streams), 0.0001
    while True:
        for descriptor, _ in poll.poll(1000 * pause if unfinished else 0):
            if descriptor == owner:
                os._exit(0)
            if not _read(descriptor, streams[descriptor]):
                poll.unregister(descriptor)
                unfinished -= 1
        if not unfinished:  # both streams are closed, so the end is near: look often, then less so
            time.sleep(pause)
        pause = min(2 * pause, 0.02)
        family.reap(os.WNOHANG)
        if family.status is not None:  # a failure may be that of a fork: look before all is gone
            return watch.processes_or_memory() if family.status else ""
        if time.monotonic() > deadline:
            return "wall_time"
        if sum(output.total for output in streams.values()) > flood:
            return "output"
        limit = watch.breach()
        if limit:
            return limit


def _read(descriptor: int, output: CappedOutput) -> bool:
    try:
        chunk = os.read(descriptor, 1 << 18)
    except BlockingIOError:
        return True
    output.add(chunk)
    return bool(chunk)


def _read_rest(descriptor: int, output: CappedOutput) -> None:
    """Take what the dead left in the pipe."""
    before = -1
    while before != output.total:
        before = output.total
        _read(descriptor, output)
    os.close(descriptor)


def _exit_code(status: int | None) -> int:
    if status is None:  # cannot happen while this process is the family's reaper
        return 255
    return 128 + os.WTERMSIG(status) if os.WIFSIGNALED(status) else os.WEXITSTATUS(status)
