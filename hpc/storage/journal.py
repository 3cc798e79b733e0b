"""An append-only file of checksummed records, one writer each, readable while it grows and after any crash.

A record on disk is: magic (4 bytes), length of the payload (u32, little-endian), checksum (BLAKE2b, 8 bytes, over
length and payload), payload. After damaged bytes the reader looks for the next magic whose checksum holds.
"""

from __future__ import annotations

import hashlib
import os
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Self

from hpc.storage.atomic import fsync

_MAGIC = b"\xf5REC"  # 0xf5 never occurs in UTF-8, so payloads of text cannot contain it
_HEADER = struct.Struct("<4sI8s")


@dataclass(frozen=True, slots=True, kw_only=True)
class JournalContent:
    """What could be read of a journal; iterates over the records."""

    records: tuple[bytes, ...]
    torn_bytes: int
    """Bytes after the last whole record: an append that a crash cut short, or one still under way."""
    corrupt_at: tuple[int, ...]
    """Offsets at which damaged bytes begin that have whole records behind them."""

    def __iter__(self) -> Iterator[bytes]:
        return iter(self.records)

    def __len__(self) -> int:
        return len(self.records)


class Journal:
    """Appends to a journal. What was torn off by a crash is cut away on opening; what is damaged stays."""

    def __init__(self, path: Path) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        self._file = path.open("ab")
        whole = self._file.tell() - read_journal(path).torn_bytes
        self._file.truncate(whole)
        self._file.seek(whole)
        self.sync()
        fsync(path.parent)

    def append(self, record: bytes) -> None:
        """Add a record; it is durable after the next ``sync``, so that many records can share one."""
        length = len(record)
        self._file.write(_HEADER.pack(_MAGIC, length, _checksum(record)) + record)

    def sync(self) -> None:
        """Make all appended records durable."""
        self._file.flush()
        os.fsync(self._file.fileno())

    def clear(self) -> None:
        """Drop all records, when what they say is durable elsewhere."""
        self._file.flush()
        self._file.truncate(0)
        self._file.seek(0)
        self.sync()

    def close(self) -> None:
        """Make everything durable and close the file."""
        self.sync()
        self._file.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()


def read_journal(path: Path) -> JournalContent:
    """All whole records of a journal, in order; a journal that does not exist has none."""
    try:
        data = path.read_bytes()
    except FileNotFoundError:
        data = b""
    records: list[bytes] = []
    corrupt: list[int] = []
    position = 0
    while (found := _next_record(data, position)) is not None:
        start, record = found
        if start != position:
            corrupt.append(position)
        records.append(record)
        position = start + _HEADER.size + len(record)
    return JournalContent(records=tuple(records), torn_bytes=len(data) - position, corrupt_at=tuple(corrupt))


def _next_record(data: bytes, position: int) -> tuple[int, bytes] | None:
    """The first whole record at or after ``position``, and where it starts."""
    while (position := data.find(_MAGIC, position)) != -1:
        record = _record_at(data, position)
        if record is not None:
            return position, record
        position += 1
    return None


def _record_at(data: bytes, start: int) -> bytes | None:
    body = start + _HEADER.size
    if body > len(data):
        return None
    _, length, checksum = _HEADER.unpack_from(data, start)
    record = data[body : body + length]
    return record if len(record) == length and _checksum(record) == checksum else None


def _checksum(record: bytes) -> bytes:
    digest = hashlib.blake2b(len(record).to_bytes(4, "little"), digest_size=8)
    digest.update(record)
    return digest.digest()
