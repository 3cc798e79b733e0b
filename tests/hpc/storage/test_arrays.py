from __future__ import annotations

import random
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import zarr
from zarr.storage import ZipStore

from hpc.errors import CorruptFileError
from hpc.storage.arrays import read_arrays, write_arrays

Start = Callable[..., "subprocess.Popen[str]"]

ARRAYS = {
    "ids": np.arange(1000, dtype=np.uint32),
    "matrix": np.random.default_rng(0).normal(size=(50, 3)).astype(np.float32),
    "special": np.array([np.nan, np.inf, -0.0]),
    "empty": np.zeros(0, dtype=np.int64),
    "no_columns": np.zeros((4, 0), dtype=np.float32),
}

WRITE_FOR_EVER = """
import sys
from pathlib import Path
import numpy as np
from hpc.storage.arrays import write_arrays
number = 0
while True:
    number += 1
    write_arrays(Path(sys.argv[1]), {"x": np.full(100_000, number)}, {"number": number})
    print("sealed", flush=True)
"""


def same(left: dict[str, np.ndarray], right: dict[str, np.ndarray]) -> bool:
    return left.keys() == right.keys() and all(
        (left[name].dtype, left[name].shape, left[name].tobytes())
        == (right[name].dtype, right[name].shape, right[name].tobytes())
        for name in left
    )


@pytest.fixture
def path(tmp_path: Path) -> Path:
    file = tmp_path / "segments" / "a.zarr.zip"
    write_arrays(file, ARRAYS, {"writer": "worker-0", "names": ["a", "b"]})
    return file


def test_arrays_and_attributes_come_back_bit_for_bit(path: Path) -> None:
    arrays, attributes = read_arrays(path)
    assert same(arrays, ARRAYS)
    assert attributes == {"writer": "worker-0", "names": ["a", "b"]}
    assert list(path.parent.iterdir()) == [path]


def test_some_arrays_can_be_read_alone(path: Path) -> None:
    assert read_arrays(path, ["ids"])[0].keys() == {"ids"}


def test_an_array_larger_than_a_chunk_comes_back(tmp_path: Path) -> None:
    large = {"x": np.arange(3_000_000, dtype=np.float32)}
    write_arrays(tmp_path / "large.zarr.zip", large, {})
    assert same(read_arrays(tmp_path / "large.zarr.zip")[0], large)


def test_any_zarr_reader_opens_the_file(path: Path) -> None:
    with ZipStore(path, mode="r") as store:
        group = zarr.open_group(store, mode="r")
        assert group.metadata.zarr_format == 3
        assert set(group.array_keys()) == set(ARRAYS)
        assert np.array_equal(group["matrix"][:], ARRAYS["matrix"])
        assert group.attrs["writer"] == "worker-0"


def test_a_truncated_file_is_detected(path: Path) -> None:
    data = path.read_bytes()
    for length in (0, 1, 30, len(data) // 2, len(data) - 100, len(data) - 1):
        path.write_bytes(data[:length])
        with pytest.raises(CorruptFileError, match="a.zarr.zip"):
            read_arrays(path)


def test_no_flipped_bit_changes_what_is_read(path: Path) -> None:
    data = path.read_bytes()
    detected = 0
    for position in random.Random(0).sample(range(len(data)), 250):
        path.write_bytes(data[:position] + bytes([data[position] ^ 0x04]) + data[position + 1 :])
        try:
            arrays, attributes = read_arrays(path)
        except CorruptFileError:
            detected += 1
        else:  # a date or a flag that nobody reads
            assert same(arrays, ARRAYS) and attributes["writer"] == "worker-0"
    assert detected > 100


def test_content_that_does_not_match_its_checksum_is_named(path: Path) -> None:
    with ZipStore(path, mode="r") as store:
        attributes = dict(zarr.open_group(store, mode="r").attrs)
    with ZipStore(path, mode="w") as store:
        group = zarr.create_group(store, attributes=attributes)
        for name, array in ARRAYS.items():
            group.create_array(name, data=array + 1 if name == "ids" else array)
    with pytest.raises(CorruptFileError, match="ids does not match its checksum"):
        read_arrays(path)


def test_a_missing_file_is_no_damaged_file(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        read_arrays(tmp_path / "nothing.zarr.zip")


def test_a_killed_writer_leaves_a_whole_file(tmp_path: Path, start: Start) -> None:
    path = tmp_path / "b.zarr.zip"
    writer = start(WRITE_FOR_EVER, path)
    assert writer.stdout is not None and writer.stdout.readline() == "sealed\n"
    for _ in range(20):  # a reader beside the writer sees whole files only
        arrays, attributes = read_arrays(path)
        assert set(arrays["x"].tolist()) == {attributes["number"]}
        time.sleep(0.003)
    writer.kill()
    writer.wait()
    arrays, attributes = read_arrays(path)
    assert set(arrays["x"].tolist()) == {attributes["number"]}
