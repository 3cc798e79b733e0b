"""Named numpy arrays in one sealed file: a Zarr v3 group in a ZIP archive, with a checksum per array.

Any Zarr v3 reader opens it. Written once, by one process, and never changed (appending loses data silently).
"""

from __future__ import annotations

import hashlib
import zipfile
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import zarr
from numpy.typing import NDArray
from zarr.codecs import ZstdCodec
from zarr.storage import ZipStore

from hpc.errors import CorruptFileError
from hpc.storage.atomic import atomic_path

Arrays = Mapping[str, NDArray[Any]]

_CHECKSUMS = "sha256"
_CHUNK_BYTES = 4 * 2**20
# what zipfile, zarr and its codecs raise for damaged files
_DAMAGE = (zipfile.BadZipFile, ValueError, KeyError, TypeError, IndexError, RuntimeError, OSError, EOFError)


def write_arrays(path: Path, arrays: Arrays, attributes: Mapping[str, Any]) -> None:
    """Write arrays and JSON-able attributes as one file; it is whole when it becomes visible.

    Args:
        path: Ends in ``.zarr.zip`` by custom. An existing file is replaced.
        arrays: Any shapes, numeric or boolean dtypes. Compressed with zstd.
        attributes: Must not hold ``sha256``: there the checksums go.
    """
    if _CHECKSUMS in attributes:
        raise ValueError(f"{path}: the attribute {_CHECKSUMS!r} holds the checksums; choose another name")
    checksums = {name: _checksum(array) for name, array in arrays.items()}
    with atomic_path(path) as beside, ZipStore(beside, mode="w") as store:
        group = zarr.create_group(store, attributes={**attributes, _CHECKSUMS: checksums})
        for name, array in arrays.items():
            group.create_array(name, data=array, chunks=_chunks(array), compressors=ZstdCodec(level=3))


def read_arrays(path: Path, names: Collection[str] | None = None) -> tuple[dict[str, NDArray[Any]], dict[str, Any]]:
    """The named arrays (or all) and the attributes.

    Raises:
        CorruptFileError: the file is truncated or damaged, or an array does not match its checksum.
        FileNotFoundError: it does not exist.
    """
    try:
        _check_archive(path)  # first, because a ZipStore that cannot be opened cannot be closed either
        with ZipStore(path, mode="r") as store:
            group = zarr.open_group(store, mode="r", zarr_format=3)
            attributes: dict[str, Any] = dict(group.attrs)
            checksums: dict[str, str] = attributes.pop(_CHECKSUMS)
            arrays = {name: _read(group, name) for name in (checksums if names is None else names)}
        damaged = [name for name, array in arrays.items() if _checksum(array) != checksums[name]]
    except _DAMAGE as error:
        if not path.exists():
            raise FileNotFoundError(f"{path} does not exist") from error
        raise CorruptFileError(f"{path} is damaged: {error!r}") from error
    if damaged:
        raise CorruptFileError(f"{path} is damaged: {', '.join(damaged)} does not match its checksum")
    return arrays, attributes


def _check_archive(path: Path) -> None:
    with zipfile.ZipFile(path) as archive:
        damaged = archive.testzip()
    if damaged is not None:
        raise zipfile.BadZipFile(f"{damaged} does not match its checksum")


def _read(group: zarr.Group, name: str) -> NDArray[Any]:
    array = group[name]
    if not isinstance(array, zarr.Array):
        raise TypeError(f"{name} is not an array")
    return np.asarray(array[...])


def _chunks(array: NDArray[Any]) -> tuple[int, ...]:
    """Whole rows, about 4 MiB each."""
    row_bytes = max(1, array.itemsize * int(np.prod(array.shape[1:])))
    rows = max(1, min(array.shape[0], _CHUNK_BYTES // row_bytes))
    return (rows, *(max(1, size) for size in array.shape[1:]))


def _checksum(array: NDArray[Any]) -> str:
    """Over dtype, shape and content."""
    digest = hashlib.sha256(f"{array.dtype.str}{array.shape}".encode())
    digest.update(np.ascontiguousarray(array).data if array.size else b"")
    return digest.hexdigest()
