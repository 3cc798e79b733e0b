from __future__ import annotations

import subprocess
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from hpc.storage.journal import Journal, read_journal

Start = Callable[..., "subprocess.Popen[str]"]

RECORDS = (b"first", b"", b"third record \xf5REC with the magic inside", b"\x00" * 100)

APPEND_FOR_EVER = """
import sys
from pathlib import Path
from hpc.storage.journal import Journal, read_journal
path = Path(sys.argv[1])
with Journal(path) as journal:
    number = len(read_journal(path))
    while True:
        for _ in range(5):
            journal.append(str(number).encode() * 3000)
            number += 1
        journal.sync()
        print(number, flush=True)
"""


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "folder" / "worker.journal"


def write(path: Path, *records: bytes) -> None:
    with Journal(path) as journal:
        for record in records:
            journal.append(record)


def test_records_come_back_in_order(path: Path) -> None:
    write(path, *RECORDS[:2])
    write(path, *RECORDS[2:])
    content = read_journal(path)
    assert tuple(content) == content.records == RECORDS
    assert (len(content), content.torn_bytes, content.corrupt_at) == (4, 0, ())


def test_a_journal_that_does_not_exist_is_empty(path: Path) -> None:
    assert len(read_journal(path)) == 0


def test_records_are_readable_while_the_journal_is_open(path: Path) -> None:
    with Journal(path) as journal:
        journal.append(b"a")
        journal.append(b"b")
        journal.sync()
        assert read_journal(path).records == (b"a", b"b")


def test_a_cleared_journal_goes_on(path: Path) -> None:
    with Journal(path) as journal:
        journal.append(b"old")
        journal.clear()
        assert read_journal(path).records == ()
        journal.append(b"new")
    assert read_journal(path).records == (b"new",)


def test_a_journal_cut_anywhere_keeps_its_whole_records_and_goes_on(path: Path) -> None:
    write(path, *RECORDS)
    data = path.read_bytes()
    ends = [sum(16 + len(record) for record in RECORDS[:count]) for count in range(len(RECORDS) + 1)]
    for length in range(len(data)):
        path.write_bytes(data[:length])
        whole = sum(end <= length for end in ends) - 1
        content = read_journal(path)
        assert content.records == RECORDS[:whole]
        assert (content.torn_bytes, content.corrupt_at) == (length - ends[whole], ())
    write(path, b"more")
    assert read_journal(path).records == (*RECORDS[:3], b"more")
    assert read_journal(path).torn_bytes == 0


def test_a_flipped_bit_costs_one_record_and_is_reported(path: Path) -> None:
    write(path, *RECORDS)
    data = path.read_bytes()
    starts = [sum(16 + len(record) for record in RECORDS[:count]) for count in range(len(RECORDS))]
    for position in range(len(data)):
        path.write_bytes(data[:position] + bytes([data[position] ^ 0x10]) + data[position + 1 :])
        hit = max(index for index, start in enumerate(starts) if start <= position)
        content = read_journal(path)
        assert content.records == RECORDS[:hit] + RECORDS[hit + 1 :]
        if hit < len(RECORDS) - 1:
            assert (content.corrupt_at, content.torn_bytes) == ((starts[hit],), 0)
        else:  # nothing tells it from an append that a crash cut short
            assert (content.corrupt_at, content.torn_bytes) == ((), len(data) - starts[hit])


def test_damage_in_the_middle_stays_when_the_journal_goes_on(path: Path) -> None:
    write(path, b"a", b"b", b"c")
    data = bytearray(path.read_bytes())
    data[17 + 16] ^= 1
    path.write_bytes(data)
    write(path, b"d")
    assert read_journal(path).records == (b"a", b"c", b"d")
    assert read_journal(path).corrupt_at == (17,)


def test_a_writer_killed_again_and_again_loses_nothing_that_it_synced(path: Path, start: Start) -> None:
    for pause in (0.0, 0.004, 0.011, 0.02):
        writer = start(APPEND_FOR_EVER, path)
        assert writer.stdout is not None
        promised = int(writer.stdout.readline())
        time.sleep(pause)
        writer.kill()
        promised = max(promised, *map(int, writer.stdout.read().split()), 0)
        records = read_journal(path).records
        assert len(records) >= promised
        assert records == tuple(str(number).encode() * 3000 for number in range(len(records)))
        assert read_journal(path).corrupt_at == ()
