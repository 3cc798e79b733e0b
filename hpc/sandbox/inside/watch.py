"""Measures what runs inside this container and compares it with the limits."""

from __future__ import annotations

import os
import stat
import time

PAGE = os.sysconf("SC_PAGE_SIZE")
FIRST_PAUSE, LONGEST_PAUSE = 0.005, 0.04
"""Seconds between two looks: short at first, so that a bomb is caught small, then rarer, so that waiting is cheap."""
LONGEST_PATH = 3800
"""Bytes; a name in a folder with a longer path may exceed PATH_MAX."""
UNMEASURABLE = 1 << 62
"""Size of a tree whose paths are too long to look at; only malice makes such a tree."""


class Watch:
    """Says which limit the running command has passed. One for all commands of a sandbox."""

    def __init__(self, limits: dict[str, int], disk_folders: list[bytes]) -> None:
        self._limits = limits
        self._disk_folders = disk_folders
        self._tolerated_disk = limits["disk"]
        self.begin()

    def begin(self) -> None:
        """A new command: look often at first."""
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

    def tolerate_disk(self) -> None:
        """What lies there after a breach must not stop the next command, which may be the one that tidies up."""
        used = self._used_disk()
        if used < UNMEASURABLE:
            self._tolerated_disk = max(used, self._limits["disk"])

    def _used_disk(self) -> int:
        return sum(disk_usage(folder) for folder in self._disk_folders) + nameless_usage()

    def _disk(self, now: float) -> str:
        if now < self._next_disk:
            return ""
        used = self._used_disk()
        taken = time.monotonic() - now
        self._next_disk = now + max(10 * taken, LONGEST_PAUSE)  # a large tree is looked at less often
        if used > self._tolerated_disk:
            return "disk"
        self._tolerated_disk = max(used, self._limits["disk"])
        return ""


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


def disk_usage(root: bytes) -> int:
    """Allocated bytes below ``root``, at least 1 KiB per entry so that empty files count; never follows links.

    Data may hide in folders without permissions: they are opened for the look and locked again.
    """
    total, pending = 0, [root]
    locked: list[tuple[bytes, int]] = []
    while pending:
        folder = pending.pop()
        if len(folder) > LONGEST_PATH:
            total += UNMEASURABLE
            break
        for path, status in _look_into(folder, locked):
            total += max(status.st_blocks * 512, 1024)
            if stat.S_ISDIR(status.st_mode):
                pending.append(path)
    for path, mode in reversed(locked):
        _change_mode(path, mode)
    return total


def nameless_usage() -> int:
    """Allocated bytes of open files without a name: deleted ones, and memory files, which no resident set shows."""
    sizes: dict[tuple[int, int], int] = {}
    for identifier in usage()[0]:
        try:
            descriptors = [entry.path for entry in os.scandir(f"/proc/{identifier}/fd")]
        except OSError:
            continue  # it ended meanwhile; the filter keeps processes from hiding (PR_SET_DUMPABLE)
        for descriptor in descriptors:
            try:
                status = os.stat(descriptor)
            except OSError:
                continue
            if stat.S_ISREG(status.st_mode) and status.st_nlink == 0:
                sizes[status.st_dev, status.st_ino] = status.st_blocks * 512
    return sum(sizes.values())


def _look_into(folder: bytes, locked: list[tuple[bytes, int]]) -> list[tuple[bytes, os.stat_result]]:
    """Path and status of each entry; a locked folder is opened and noted in ``locked``."""
    try:
        mode = stat.S_IMODE(os.lstat(folder).st_mode)
        if mode & 0o700 != 0o700 and _change_mode(folder, 0o700):
            locked.append((folder, mode))
        return [(entry.path, entry.stat(follow_symlinks=False)) for entry in os.scandir(folder)]
    except OSError:
        return []  # it vanished meanwhile, or belongs to someone else


def _change_mode(folder: bytes, mode: int) -> bool:
    try:
        os.chmod(folder, mode)
    except OSError:
        return False
    return True
