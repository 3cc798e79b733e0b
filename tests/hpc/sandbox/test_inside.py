"""The parts of the command server that need no container."""

import struct
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hpc.sandbox.inside.files import read_file, write_file
from hpc.sandbox.inside.output import CappedOutput
from hpc.sandbox.inside.watch import UNMEASURABLE, disk_usage
from hpc.sandbox.inside.wire import Decoder, encode
from hpc.sandbox.seccomp import ARCHITECTURES, filter_program


@given(st.lists(st.binary(max_size=50), max_size=8), st.integers(1, 40))
def test_a_message_survives_any_cut_into_chunks(fields: list[bytes], size: int) -> None:
    data, decoder = encode(fields), Decoder()
    answers = [decoder.feed(data[start : start + size]) for start in range(0, len(data), size)]
    assert answers[-1] == fields
    assert all(answer is None for answer in answers[:-1])


def test_absurd_messages_are_refused() -> None:
    with pytest.raises(ValueError, match="fields"):
        Decoder().feed(b"\xff" * 8)
    with pytest.raises(ValueError, match="bytes"):
        Decoder().feed(struct.pack(">IQ", 1, 1 << 50))


@given(st.lists(st.binary(max_size=30)), st.integers(0, 40))
def test_head_and_tail_are_kept(chunks: list[bytes], cap: int) -> None:
    output, everything = CappedOutput(cap), b"".join(chunks)
    for chunk in chunks:
        output.add(chunk)
    assert output.total == len(everything)
    if len(everything) <= cap:
        assert output.value() == everything and not output.truncated
    else:
        head, tail = everything[: cap // 2], everything[len(everything) - (cap - cap // 2) :]
        assert output.truncated
        assert output.value() == head + b"\n[... %d bytes left out ...]\n" % (len(everything) - cap) + tail


def test_files_are_written_and_read_without_following_links(tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "secret").write_bytes(b"secret")
    (tmp_path / "folder").symlink_to(outside)
    (tmp_path / "link").symlink_to(outside / "secret")
    root = bytes(tmp_path)
    assert read_file(root + b"/link") is None
    assert read_file(root + b"/folder/secret") is None
    with pytest.raises(OSError):
        write_file(root + b"/folder/new", b"x")
    with pytest.raises(OSError):
        write_file(root + b"/../new", b"x")
    write_file(root + b"/link", b"replaced")
    assert read_file(root + b"/link") == b"replaced"
    assert (outside / "secret").read_bytes() == b"secret"


def test_a_replaced_file_keeps_its_mode(tmp_path: Path) -> None:
    (tmp_path / "run.sh").touch(mode=0o755)
    write_file(bytes(tmp_path / "run.sh"), b"exit 0")
    assert (tmp_path / "run.sh").stat().st_mode & 0o777 == 0o755


def test_disk_usage_counts_allocated_bytes_and_empty_files(tmp_path: Path) -> None:
    (tmp_path / "full").write_bytes(b"x" * 100_000)
    for number in range(10):
        (tmp_path / f"empty{number}").touch()
    with (tmp_path / "sparse").open("wb") as file:
        file.truncate(1 << 30)
    assert 100_000 + 10 * 1024 <= disk_usage(bytes(tmp_path)) < 200_000


def test_a_tree_too_deep_to_look_at_counts_as_too_large(tmp_path: Path) -> None:
    folder = tmp_path
    while len(str(folder)) < 3900:
        folder /= "d" * 100
        folder.mkdir()
    assert disk_usage(bytes(tmp_path)) >= UNMEASURABLE


@pytest.mark.parametrize("machine", ARCHITECTURES)
def test_every_jump_of_the_filter_stays_inside_it(machine: str) -> None:
    steps = list(struct.iter_unpack("HBBI", filter_program(machine)))
    for index, (code, jump_true, jump_false, _) in enumerate(steps):
        if code in (0x15, 0x35, 0x45):
            assert index + 1 + max(jump_true, jump_false) < len(steps)
    assert steps[-1][0] == 0x06
