"""The command server's loop: takes requests from the owner's pipe, one at a time, until the pipe closes.

Commands never see that pipe: it is moved away from descriptors 0 and 1, closed on exec, and this process is not
dumpable, so that /proc/<server>/fd stays shut although commands run as the same user.
"""

from __future__ import annotations

import os

from hpc.sandbox.inside.files import read_file, write_file
from hpc.sandbox.inside.guard import confine
from hpc.sandbox.inside.run import run
from hpc.sandbox.inside.watch import Watch
from hpc.sandbox.inside.wire import Decoder, encode


class Settings:
    """What the owner says first."""

    def __init__(self, fields: list[bytes]) -> None:
        user, self.seccomp_program, rlimits, watched, disk_folders, output_cap = fields
        self.user = int(user) if user else None
        self.rlimits = _named_numbers(rlimits)
        self.watch = Watch(_named_numbers(watched), disk_folders.split(b"\0"))
        self.output_cap = int(output_cap)


def _named_numbers(text: bytes) -> dict[str, int]:
    """``name=1 other=2`` as a dictionary."""
    pairs = (item.split("=") for item in text.decode().split())
    return {name: int(value) for name, value in pairs}


def main() -> None:
    """Serve until the owner closes the pipe or dies."""
    requests, replies = _take_pipes()
    decoder = Decoder()
    first = _receive(requests, decoder)
    if first is None:
        return
    settings = Settings(first)
    os.umask(0o022)
    confine(settings.user, settings.rlimits, settings.seccomp_program)
    os.chdir("/workspace")
    _send(replies, [b"ready"])
    while True:
        request = _receive(requests, decoder)
        if request is None:
            os._exit(0)  # nothing to tidy up: with this process the container ends
        try:
            reply = [b"ok", *_answer(request, settings, requests)]
        except OSError as error:
            reply = [b"failed", str(error).encode(errors="replace")]
        _send(replies, reply)


def _take_pipes() -> tuple[int, int]:
    requests, replies = os.dup(0), os.dup(1)  # the copies are closed on exec
    nothing = os.open("/dev/null", os.O_RDWR)
    os.dup2(nothing, 0)
    os.dup2(nothing, 1)
    os.close(nothing)
    return requests, replies


def _receive(descriptor: int, decoder: Decoder) -> list[bytes] | None:
    while True:
        chunk = os.read(descriptor, 1 << 20)
        if not chunk:
            return None
        message = decoder.feed(chunk)
        if message is not None:
            return message


def _send(descriptor: int, fields: list[bytes]) -> None:
    data = memoryview(encode(fields))
    while data:
        data = data[os.write(descriptor, data) :]


def _answer(request: list[bytes], settings: Settings, owner: int) -> list[bytes]:
    kind, arguments = request[0], request[1:]
    if kind == b"execute":
        return _execute(arguments, settings, owner)
    if kind == b"write":
        for path, content in zip(arguments[::2], arguments[1::2]):  # noqa: B905  (strict needs Python 3.10)
            write_file(path, content)
        return []
    if kind == b"read":
        contents = [read_file(path) for path in arguments]
        return [b"absent" if content is None else b"file:" + content for content in contents]
    raise OSError(f"unknown request {kind!r}")


def _execute(arguments: list[bytes], settings: Settings, owner: int) -> list[bytes]:
    timeout, command, *environment = arguments
    outcome = run(
        command,
        dict(zip(environment[::2], environment[1::2])),  # noqa: B905  (strict needs Python 3.10)
        float(timeout),
        settings.watch,
        settings.output_cap,
        owner,
    )
    truncated = outcome.stdout.truncated or outcome.stderr.truncated
    numbers = f"{outcome.exit_code} {outcome.duration:.6f} {outcome.peak_memory} {int(truncated)}"
    return [numbers.encode(), outcome.limit.encode(), outcome.stdout.value(), outcome.stderr.value()]
