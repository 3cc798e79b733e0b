"""Messages between owner and command server: a list of byte strings, each preceded by its length.

No format that can carry code (pickle, marshal) and none that is slow to import (json): the owner must not trust what
comes out of a sandbox.
"""

from __future__ import annotations

import struct

MAXIMUM_FIELDS = 100_000
MAXIMUM_BYTES = 1 << 30


def encode(fields: list[bytes]) -> bytes:
    """One message: u32 number of fields, u64 length of each, then their bytes (big endian)."""
    return struct.pack(f">I{len(fields)}Q", len(fields), *map(len, fields)) + b"".join(fields)


class Decoder:
    """Puts a message together from the chunks that a pipe gives."""

    def __init__(self) -> None:
        self._buffer = bytearray()

    def feed(self, chunk: bytes) -> list[bytes] | None:
        """Add a chunk; the message once it is complete, else None. Raises ValueError for an absurd message."""
        self._buffer += chunk
        if len(self._buffer) < 4:
            return None
        (count,) = struct.unpack_from(">I", self._buffer)
        if count > MAXIMUM_FIELDS:
            raise ValueError(f"message of {count} fields")
        body = 4 + 8 * count
        if len(self._buffer) < body:
            return None
        lengths = struct.unpack_from(f">{count}Q", self._buffer, 4)
        if sum(lengths) > MAXIMUM_BYTES:
            raise ValueError(f"message of {sum(lengths)} bytes")
        if len(self._buffer) < body + sum(lengths):
            return None
        return self._split(body, lengths)

    def _split(self, position: int, lengths: tuple[int, ...]) -> list[bytes]:
        fields = []
        for length in lengths:
            fields.append(bytes(self._buffer[position : position + length]))
            position += length
        del self._buffer[:position]
        return fields
