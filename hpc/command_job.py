"""What submitit runs: a command as a process of its own, which hears every signal and never outlives its job."""

from __future__ import annotations

import contextlib
import ctypes
import logging
import os
import signal
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from types import FrameType

from submitit.helpers import DelayedSubmission

from hpc.errors import JobFailedError
from hpc.job import ENDS_AT_VARIABLE, PREEMPTED_EXIT_CODE
from hpc.process_identity import ProcessIdentity, is_dead

logger = logging.getLogger(__name__)

_FORWARDED = (signal.SIGUSR1, signal.SIGUSR2, signal.SIGTERM)
_POLL_SECONDS = 0.2
_PR_SET_PDEATHSIG = 1  # linux/prctl.h


@dataclass(frozen=True, kw_only=True)
class CommandJob:
    """Run a command to its end.

    A signal goes on to the command, which may take ``grace_seconds`` to save its state and to end with exit code 75.
    After SIGUSR2, submitit's signal, the job is then requeued under its id, if ``requeue``.
    """

    command: tuple[str, ...]
    environment: Mapping[str, str] = field(default_factory=dict)
    time_seconds: float
    grace_seconds: float
    requeue: bool
    owner: ProcessIdentity | None = None
    """A local job's submitter: when it is dead, the command is told to stop. None under Slurm."""

    def __call__(self) -> int:
        """Run the command.

        Returns:
            0, or 75 if it was preempted.

        Raises:
            JobFailedError: it ended with another exit code, or by a signal.
            SystemExit: the job was requeued.
        """
        if self.owner is not None:
            _die_with(int(os.environ["SUBMITIT_LOCAL_JOB_ID"]))()  # submitit's own process, which looks after this one
        received: list[int] = []
        with _signals_into(received) as submitit_handlers:
            code = self._run(received)
        if code not in (0, PREEMPTED_EXIT_CODE):
            raise JobFailedError(f"{' '.join(self.command)}: {_how_it_ended(code)}; its log says why")
        if code == PREEMPTED_EXIT_CODE and signal.SIGUSR2 in received and self.requeue:
            _requeue(submitit_handlers[signal.SIGUSR2])
        return code

    def checkpoint(self) -> DelayedSubmission:
        """What submitit runs after a requeue: the same again; the command finds its state on disk."""
        return DelayedSubmission(self)

    def _run(self, received: list[int]) -> int:
        environment = {**os.environ, **self.environment, ENDS_AT_VARIABLE: str(self._ends_at())}
        process = subprocess.Popen(self.command, env=environment, process_group=0, preexec_fn=_die_with(os.getpid()))
        try:
            return self._wait(process, received)
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)  # whatever the command has left behind
            process.wait()

    def _wait(self, process: subprocess.Popen[bytes], received: list[int]) -> int:
        """Hand signals on until the command ends; SIGKILL it ``grace_seconds`` after the first."""
        handed_on, deadline = 0, float("inf")
        while process.poll() is None:
            if self.owner is not None and not received and is_dead(self.owner):
                logger.warning("the process that started this job is gone; the job ends too")
                received.append(signal.SIGTERM)
            while handed_on < len(received):
                process.send_signal(received[handed_on])
                handed_on += 1
                deadline = min(deadline, time.monotonic() + self.grace_seconds)
            if time.monotonic() > deadline:
                process.kill()
            time.sleep(_POLL_SECONDS)
        return process.returncode

    def _ends_at(self) -> float:
        return float(os.environ.get("SLURM_JOB_END_TIME") or time.time() + self.time_seconds)


@contextlib.contextmanager
def _signals_into(received: list[int]) -> Iterator[Mapping[int, Callable[[int, FrameType | None], object]]]:
    """Collect signals; gives the handlers that submitit had installed."""
    previous = {number: signal.signal(number, lambda number, _: received.append(number)) for number in _FORWARDED}
    try:
        yield {number: handler for number, handler in previous.items() if callable(handler)}
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)


def _requeue(handler: Callable[[int, FrameType | None], object]) -> None:
    """Let submitit requeue the job; where it cannot (no scontrol in the container) the submitter starts it again."""
    try:
        handler(signal.SIGUSR2, None)
    except (OSError, subprocess.SubprocessError) as error:
        logger.warning("not requeued (%s); its submitter has to submit it again", error)


def _die_with(parent: int) -> Callable[[], None]:
    """Lets the process that calls the result be killed by the kernel when its parent dies, by whatever cause."""
    prctl = ctypes.CDLL(None, use_errno=True).prctl

    def ask() -> None:
        prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != parent:
            os._exit(1)  # it died before it was asked

    return ask


def _how_it_ended(code: int) -> str:
    return f"exit code {code}" if code >= 0 else f"killed by {signal.Signals(-code).name}"
