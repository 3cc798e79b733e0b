"""Renames the symbol-version need GLIBC_2.38 of ELF files to GLIBC_2.34, so that an older glibc loads them.

Used by install-apptainer.sh for files whose only 2.38 symbols come from a library of its own.
Usage: rename_symbol_version.py FILE...
"""

import struct
import sys
from pathlib import Path

OLD, NEW = b"GLIBC_2.38", b"GLIBC_2.34"
PT_LOAD, PT_DYNAMIC, DT_NULL, DT_STRTAB, DT_VERNEED, DT_VERNEEDNUM = 1, 2, 0, 5, 0x6FFFFFFE, 0x6FFFFFFF


def rename(path: Path) -> None:
    """Point the record of ``OLD`` at the name and hash of ``NEW``. Raises ValueError if that can't be done."""
    data = bytearray(path.read_bytes())
    if data[:5] != b"\x7fELF\x02":
        raise ValueError(f"{path} is no 64-bit ELF file")
    dynamic, offset_of = read_dynamic(data)
    strings, need = offset_of(dynamic[DT_STRTAB]), offset_of(dynamic[DT_VERNEED])
    renamed = 0
    for _ in range(dynamic[DT_VERNEEDNUM]):
        _, count, _, auxiliary, following = struct.unpack_from("<HHIII", data, need)
        records = read_records(data, need + auxiliary, count, strings)
        if OLD in records:
            at = records[OLD][0]
            _, new_hash, new_name = records[NEW]
            struct.pack_into("<I", data, at, new_hash)
            struct.pack_into("<I", data, at + 8, new_name)
            renamed += 1
        need += following
    if renamed != 1:
        raise ValueError(f"{path} needs {OLD.decode()} from {renamed} libraries; expected exactly 1")
    path.write_bytes(data)


def read_dynamic(data):
    """The dynamic section as {tag: value}, and a function from virtual address to file offset."""
    (program_headers,) = struct.unpack_from("<Q", data, 32)
    size, count = struct.unpack_from("<HH", data, 54)
    segments, dynamic_at = [], 0
    for index in range(count):
        header = struct.unpack_from("<IIQQQQQQ", data, program_headers + index * size)
        kind, _, offset, address, _, length, _, _ = header
        if kind == PT_LOAD:
            segments.append((address, offset, length))
        elif kind == PT_DYNAMIC:
            dynamic_at = offset

    def offset_of(address):
        return next(address - start + offset for start, offset, length in segments if start <= address < start + length)

    entries = {}
    while True:
        tag, value = struct.unpack_from("<qQ", data, dynamic_at)
        if tag == DT_NULL:
            return entries, offset_of
        entries.setdefault(tag, value)
        dynamic_at += 16


def read_records(data, at, count, strings):
    """Version name -> (offset of its record, hash, offset of the name), for one needed library."""
    records = {}
    for _ in range(count):
        hashed, _, _, name, following = struct.unpack_from("<IHHII", data, at)
        end = data.index(0, strings + name)
        records[bytes(data[strings + name : end])] = (at, hashed, name)
        at += following
    return records


if __name__ == "__main__":
    for argument in sys.argv[1:]:
        rename(Path(argument))
