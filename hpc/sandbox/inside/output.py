"""Keeps the beginning and the end of a stream that may never end."""

from __future__ import annotations


class CappedOutput:
    """At most ``cap`` bytes of a stream: its head and its tail, half each."""

    def __init__(self, cap: int) -> None:
        self.total = 0
        self._head = bytearray()
        self._tail = bytearray()
        self._head_cap = cap // 2
        self._tail_cap = cap - self._head_cap

    def add(self, chunk: bytes) -> None:
        """Take in what was read."""
        self.total += len(chunk)
        room = self._head_cap - len(self._head)
        self._head += chunk[:room]
        self._tail += chunk[room:]
        if len(self._tail) > 2 * self._tail_cap:  # trimmed rarely, so that a flood costs little
            del self._tail[: -self._tail_cap]

    @property
    def truncated(self) -> bool:
        """Whether something was left out."""
        return self.total > self._head_cap + self._tail_cap

    def value(self) -> bytes:
        """Head and tail, with a note between them that says how much is missing."""
        if not self.truncated:
            return bytes(self._head + self._tail)
        tail = self._tail[-self._tail_cap :] if self._tail_cap else b""
        missing = self.total - len(self._head) - len(tail)
        return bytes(self._head + b"\n[... %d bytes left out ...]\n" % missing + tail)
