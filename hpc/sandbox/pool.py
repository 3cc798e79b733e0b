"""Starts sandboxes ahead, so that acquiring one is waiting for nothing."""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Callable, Hashable
from concurrent.futures import ThreadPoolExecutor
from types import TracebackType

from hpc.errors import SandboxError, SandboxStartError
from hpc.sandbox.protocol import Sandbox, SandboxFactory, SandboxSpec, shape_of

log = logging.getLogger(__name__)


class SandboxPool:
    """Containers that wait, started but empty, for the spec that they will be filled with. Used by many threads.

    After each ``acquire`` one more container of the same shape is started in the background: what was just asked for
    will be asked for again. At most ``ahead`` wait in all; those that waited longest are closed first.
    """

    def __init__(self, factory: SandboxFactory, *, ahead: int) -> None:
        self._factory = factory
        self._ahead = ahead
        self._lock = threading.Lock()
        self._waiting: deque[tuple[Hashable, Sandbox]] = deque()
        self._closed = False
        self._background = ThreadPoolExecutor(max_workers=2, thread_name_prefix="sandbox-pool")

    def warm(self, spec: SandboxSpec, count: int) -> None:
        """Begin to start ``count`` sandboxes of the spec's shape, at most as many as may wait."""
        for _ in range(min(count, self._ahead)):
            self._in_background(lambda: self._start_ahead(spec))

    def acquire(self, spec: SandboxSpec) -> Sandbox:
        """A started sandbox, filled as ``spec`` says. Raises SandboxStartError."""
        waiting = self._take(shape_of(spec))
        self.warm(spec, 1)
        if waiting is not None:
            try:
                waiting.fill(spec)
                return waiting
            except SandboxError as error:  # it may have died while it waited
                log.warning("a waiting sandbox is of no use (%s); starting another", error)
                waiting.close()
        sandbox = self._factory(spec)
        sandbox.start()
        return sandbox

    def release(self, sandbox: Sandbox) -> None:
        """Close a sandbox in the background. Calling its own ``close`` is just as well."""
        if not self._in_background(sandbox.close):
            sandbox.close()

    def close(self) -> None:
        """Close all that wait, and wait for what is being closed. Acquired sandboxes belong to who acquired them."""
        with self._lock:
            self._closed = True
        self._background.shutdown(wait=True)
        while self._waiting:
            self._waiting.popleft()[1].close()

    def __enter__(self) -> SandboxPool:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _in_background(self, work: Callable[[], None]) -> bool:
        """Have ``work`` done by the background threads; False if the pool is closed."""
        with self._lock:
            if not self._closed:
                self._background.submit(work)
            return not self._closed

    def _take(self, shape: Hashable) -> Sandbox | None:
        with self._lock:
            for candidate in self._waiting:
                if candidate[0] == shape:
                    self._waiting.remove(candidate)
                    return candidate[1]
        return None

    def _start_ahead(self, spec: SandboxSpec) -> None:
        if self._closed:
            return
        sandbox = self._factory(spec)
        try:
            sandbox.launch()
        except SandboxStartError as error:
            log.warning("can't start a sandbox ahead: %s", error)
            sandbox.close()
            return
        with self._lock:
            self._waiting.append((shape_of(spec), sandbox))
            surplus = [self._waiting.popleft() for _ in range(len(self._waiting) - self._ahead)]
        for _, old in surplus:
            old.close()
