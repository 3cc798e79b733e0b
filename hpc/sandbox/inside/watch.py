"""Measures what runs inside this container and compares it with the limits."""

from __future__ import annotations

import os
import stat
import time

PAGE = os.sysconf("SC_PAGE_SIZE")
FIRST_PAUSE, LONGEST_PAUSE = 0.005, 0.04
"""Seconds between two looks: short at first, so that a bomb is caught small, then rarer, so that waiting is cheap."""


class Watch:
    """Says which limit the running command has passed."""

    def __init__(self, limits: dict[str, int], disk_folders: list[bytes]) -> None:
        self._limits = limits
        self._disk_folders = disk_folders
        self._pause = FIRST_PAUSE
        self._next = time.monotonic() + FIRST_PAUSE
        self._next_disk = self._next

    def breach(self) -> str:
        """Name of the limit that is passed, or an empty string. Looks only when it is time again."""
        now = time.monotonic()
        if now < self._next:
            return ""
        self._pause = min(self._pause * 1.5, LONGEST_PAUSE)
        self._next = now + self._pause
        return self.processes_or_memory() or self._disk(now)

    def processes_or_memory(self) -> str:
        """Name of the limit that is passed at this moment, or an empty string."""
        identifiers, tasks, resident = usage()
        if tasks > self._limits["processes"]:
            return "processes"
        if resident > self._limits["memory"] and proportional_memory(identifiers) > self._limits["memory"]:
            return "memory"
        return ""

    def _disk(self, now: float) -> str:
        if now < self._next_disk:
            return ""
        used = sum(disk_usage(folder) for folder in self._disk_folders)
        taken = time.monotonic() - now
        self._next_disk = now + max(10 * taken, LONGEST_PAUSE)  # a large tree is looked at less often
        return "disk" if used > self._limits["disk"] else ""


def usage() -> tuple[list[int], int, int]:
    """(process ids, number of threads, resident bytes with shared pages counted again), without init and this one."""
    identifiers, tasks, resident = [], 0, 0
    for name in os.listdir("/proc"):
        if not name.isdigit() or int(name) in (1, os.getpid()):
            continue
        try:
            with open("/proc/" + name + "/stat", "rb", buffering=0) as file:
                fields = file.read(4096).rpartition(b")")[2].split()
        except OSError:
            continue  # it ended meanwhile
        identifiers.append(int(name))
        tasks += int(fields[17])
        resident += int(fields[21]) * PAGE
    return identifiers, tasks, resident


def proportional_memory(identifiers: list[int]) -> int:
    """Bytes with shared pages counted once (PSS); exact but slow, so asked only when the quick sum is too high."""
    total = 0
    for identifier in identifiers:
        try:
            with open(f"/proc/{identifier}/smaps_rollup", "rb") as file:
                total += sum(1024 * int(line.split()[1]) for line in file if line.startswith(b"Pss:"))
        except OSError:
            total += _resident(identifier)  # a process may hide its maps; then the quick figure counts
    return total


def _resident(identifier: int) -> int:
    try:
        with open(f"/proc/{identifier}/statm", "rb") as file:
            return int(file.read().split()[1]) * PAGE
    except OSError:
        return 0


def disk_usage(folder: bytes) -> int:
    """Allocated bytes below ``folder``, at least 1 KiB per entry so that empty files count; never follows links."""
    total, pending = 0, [folder]
    while pending:
        for entry in _entries(pending.pop()):
            try:
                status = entry.stat(follow_symlinks=False)
            except OSError:
                continue
            total += max(status.st_blocks * 512, 1024)
            if stat.S_ISDIR(status.st_mode):
                pending.append(entry.path)
    return total


def _entries(folder: bytes) -> list[os.DirEntry[bytes]]:
    try:
        return list(os.scandir(folder))
    except PermissionError:
        return _entries_of_locked(folder)
    except OSError:
        return []


def _entries_of_locked(folder: bytes) -> list[os.DirEntry[bytes]]:
    """Data may hide in a folder without read permission: open it for one look, then lock it again."""
    try:
        mode = os.lstat(folder).st_mode
        os.chmod(folder, 0o700)
        try:
            return list(os.scandir(folder))
        finally:
            os.chmod(folder, stat.S_IMODE(mode))
    except OSError:
        return []
