from __future__ import annotations

import subprocess
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from hpc.errors import CorruptFileError, StorageError
from hpc.storage.atomic import create_exclusive, publish_folder, read_json, write_atomic, write_json_atomic, write_text

Start = Callable[..., "subprocess.Popen[str]"]

REPLACE_FOR_EVER = """
import sys
from pathlib import Path
from hpc.storage.atomic import write_atomic
while True:
    for letter in b"ab":
        write_atomic(Path(sys.argv[1]), bytes([letter]) * 1_000_000)
        print("written", flush=True)
"""

FAIL_TO_WRITE = """
import resource, sys
from pathlib import Path
from hpc.storage.atomic import write_atomic
resource.setrlimit(resource.RLIMIT_FSIZE, (1000, 1000))  # the disk refuses the rest of the file
try:
    write_atomic(Path(sys.argv[1]), b"x" * 5000)
except OSError as error:
    print(type(error).__name__)
"""


def test_what_was_written_is_read(tmp_path: Path) -> None:
    file = tmp_path / "made" / "on the way" / "file.json"
    write_json_atomic(file, {"a": [1, 2.5, None]})
    assert read_json(file) == {"a": [1, 2.5, None]}
    write_text(file, "zweitens: ü")
    assert file.read_text() == "zweitens: ü"
    assert [entry.name for entry in file.parent.iterdir()] == ["file.json"]


def test_a_killed_writer_leaves_the_old_or_the_new_content(tmp_path: Path, start: Start) -> None:
    file = tmp_path / "file"
    for number in range(4):
        writer = start(REPLACE_FOR_EVER, file)
        assert writer.stdout is not None and writer.stdout.readline() == "written\n"
        time.sleep(0.003 * number)
        writer.kill()
        writer.wait()
        content = file.read_bytes()
        assert len(content) == 1_000_000 and len(set(content)) == 1


def test_a_full_disk_leaves_the_old_content_and_no_litter(tmp_path: Path, start: Start) -> None:
    file = tmp_path / "file"
    write_atomic(file, b"old")
    output, _ = start(FAIL_TO_WRITE, file).communicate()
    assert output == "OSError\n"
    assert file.read_bytes() == b"old"
    assert list(tmp_path.iterdir()) == [file]


def test_of_many_creators_one_wins(tmp_path: Path) -> None:
    file, won = tmp_path / "file", []

    def create(name: str) -> None:
        if create_exclusive(file, name.encode()):
            won.append(name)

    threads = [threading.Thread(target=create, args=(f"creator {i}",)) for i in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert won == [file.read_text()]
    assert list(tmp_path.iterdir()) == [file]


def test_a_folder_appears_with_everything_in_it(tmp_path: Path) -> None:
    temporary = tmp_path / "unfinished"
    write_text(temporary / "deep" / "file", "content")
    publish_folder(temporary, tmp_path / "final")
    assert (tmp_path / "final" / "deep" / "file").read_text() == "content"
    assert not temporary.exists()


def test_a_folder_replaces_none(tmp_path: Path) -> None:
    write_text(tmp_path / "new" / "file", "new")
    write_text(tmp_path / "old" / "file", "old")
    with pytest.raises(StorageError, match="old exists already"):
        publish_folder(tmp_path / "new", tmp_path / "old")
    assert (tmp_path / "old" / "file").read_text() == "old"


def test_a_file_that_is_not_json_is_named(tmp_path: Path) -> None:
    (tmp_path / "torn.json").write_text('{"a": ')
    with pytest.raises(CorruptFileError, match="torn.json"):
        read_json(tmp_path / "torn.json")
