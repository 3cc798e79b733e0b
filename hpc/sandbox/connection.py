"""The owner's end of the pipes to a command server."""

from __future__ import annotations

import os
import select
import signal
import subprocess
import time
from collections.abc import Sequence
from pathlib import Path

from hpc.errors import SandboxDiedError
from hpc.sandbox.inside.wire import Decoder, encode

CLOSING_SECONDS = 2.0
"""How long a server may take to end by itself once its pipe is closed."""


class Connection:
    """A running container and the conversation with the command server in it. Used by one thread at a time.

    The server ends when its pipe closes, however the owner died. That is why no parent-death signal is asked for:
    it would come when the *thread* that started the container ends.
    """

    def __init__(self, command: Sequence[str], log: Path) -> None:
        """Start ``command``; returns at once. Raises OSError if there is no such program."""
        with log.open("ab") as complaints:
            self._process = subprocess.Popen(
                command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=complaints,
                env={"PATH": "/usr/local/bin:/usr/bin:/bin:/usr/sbin:/sbin", "HOME": os.environ.get("HOME", "/")},
                start_new_session=True,  # no terminal, and one process group to kill
                bufsize=0,
            )
        self._decoder = Decoder()

    def send(self, fields: list[bytes]) -> None:
        """Send a message. Raises SandboxDiedError."""
        assert self._process.stdin is not None
        data = memoryview(encode(fields))
        try:
            while data:
                data = data[os.write(self._process.stdin.fileno(), data) :]
        except OSError as error:
            raise SandboxDiedError(f"the container's command server is gone ({error})") from error

    def receive(self, seconds: float) -> list[bytes]:
        """The next message. Raises SandboxDiedError when the server ends or stays silent for ``seconds``."""
        assert self._process.stdout is not None
        descriptor = self._process.stdout.fileno()
        poll = select.poll()
        poll.register(descriptor, select.POLLIN)
        deadline = time.monotonic() + seconds
        while True:
            if not poll.poll(max(0.0, 1000 * (deadline - time.monotonic()))):
                raise SandboxDiedError(f"the container's command server did not answer within {seconds:.0f} s")
            chunk = os.read(descriptor, 1 << 20)
            if not chunk:
                raise SandboxDiedError("the container's command server ended")
            try:
                message = self._decoder.feed(chunk)
            except ValueError as error:
                raise SandboxDiedError(f"the container's command server talks nonsense: {error}") from error
            if message is not None:
                return message

    def close(self, patience: float = CLOSING_SECONDS) -> None:
        """End the container and everything in it. Idempotent."""
        assert self._process.stdin is not None and self._process.stdout is not None
        self._process.stdin.close()
        try:
            self._process.wait(patience)
        except subprocess.TimeoutExpired:
            self._kill()
        self._process.stdout.close()

    def _kill(self) -> None:
        try:
            os.killpg(self._process.pid, signal.SIGKILL)  # the container's init is in this group too
        except ProcessLookupError:
            pass
        self._process.wait()
