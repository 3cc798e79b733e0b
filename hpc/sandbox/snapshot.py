"""Snapshots of a workspace: contents by hash, and a list of what is where.

    <store>/contents/<sha256>      one per distinct file content
    <store>/lists/<id>             one line per entry; <id> is the SHA-256 of what the list says, times left out

So equal workspaces have equal ids, a snapshot costs only what is new, and a restore touches only what differs. No git:
its hooks, configuration and nested repositories are a door for the code that fills the workspace.
"""

from __future__ import annotations

import hashlib
import json
import os
import stat
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from hpc.errors import SandboxError
from hpc.sandbox import tree

CHUNK = 1 << 20
SETTLED_NANOSECONDS = 50_000_000
"""A file changed more recently may change again within the same tick of the file system's clock: hash it again."""


@dataclass(frozen=True, slots=True)
class Entry:
    """One file, folder, link or named pipe of a workspace."""

    path: str
    """Relative; bytes that are no UTF-8 as surrogates."""
    kind: str
    """``file``, ``folder``, ``link`` or ``pipe``."""
    mode: int
    content: str
    """SHA-256 of a file, target of a link, else empty."""
    modified: int = field(default=0, compare=False)
    """Nanoseconds; restored, since build tools look at it, but no part of what makes workspaces equal."""


@dataclass(frozen=True, slots=True)
class _Known:
    """The hash of a file at a time when its status was ``signature``."""

    signature: tuple[int, int, int, int]
    content: str


class SnapshotStore:
    """Saves and restores one workspace. Several stores may share a folder: contents are written atomically."""

    def __init__(self, folder: Path, workspace: Path) -> None:
        self._folder = folder
        self._workspace = os.fsencode(workspace)
        self._known: dict[bytes, _Known] = {}

    def save(self) -> str:
        """Save the workspace and return its identifier. Raises SandboxError if it can't be walked or stored."""
        try:
            entries = list(self._scan())
            identifier = _identifier(entries)
            listing = self._list(identifier)
            if not listing.exists():
                lines = (json.dumps([e.path, e.kind, e.mode, e.content, e.modified]) for e in entries)
                _write_once(listing, "\n".join(lines).encode())
        except OSError as error:
            raise SandboxError(f"workspace {os.fsdecode(self._workspace)} can't be saved: {error}") from error
        return identifier

    def restore(self, identifier: str, owner: int | None) -> None:
        """Make the workspace equal to a snapshot; new entries belong to ``owner``. Raises SandboxError."""
        try:
            wanted = {entry.path: entry for entry in self._read_list(identifier)}
            differing = self._what_differs(wanted)
            tree.unlock(self._workspace)
            self._remove(differing)
            for entry in wanted.values():
                self._put(entry, owner)
            for entry in reversed(wanted.values()):  # children first: a folder's own mode may lock it
                self._finish(entry)
        except (OSError, ValueError) as error:
            raise SandboxError(f"snapshot {identifier} in {self._folder} can't be restored: {error}") from error

    def _scan(self) -> Iterator[Entry]:
        """All entries; new contents are stored on the way."""
        known: dict[bytes, _Known] = {}
        for relative, status in tree.walk(self._workspace):
            path, mode = os.fsdecode(relative), stat.S_IMODE(status.st_mode)
            if stat.S_ISREG(status.st_mode):
                known[relative] = self._hash(relative, status)
                yield Entry(path, "file", mode, known[relative].content, status.st_mtime_ns)
            elif stat.S_ISDIR(status.st_mode):
                yield Entry(path, "folder", mode, "", status.st_mtime_ns)
            elif stat.S_ISLNK(status.st_mode):
                yield Entry(path, "link", 0, os.fsdecode(os.readlink(os.path.join(self._workspace, relative))))
            elif stat.S_ISFIFO(status.st_mode):
                yield Entry(path, "pipe", mode, "")
            # a socket is dead with the process that listened
        self._known = known

    def _hash(self, relative: bytes, status: os.stat_result) -> _Known:
        signature = (status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns)
        known = self._known.get(relative)
        if known is not None and known.signature == signature:
            return known
        content = self._store(os.path.join(self._workspace, relative))
        settled = time.time_ns() - status.st_ctime_ns > SETTLED_NANOSECONDS
        return _Known(signature if settled else (0, 0, 0, 0), content)

    def _store(self, path: bytes) -> str:
        """Hash of a file's content, which is in the store afterwards."""
        with tree.open_regular(path) as descriptor:
            content = hashlib.file_digest(open(descriptor, "rb", closefd=False), "sha256").hexdigest()
            target = self._content(content)
            if not target.exists():
                os.lseek(descriptor, 0, os.SEEK_SET)
                _write_once(target, *iter(lambda: os.read(descriptor, CHUNK), b""))
        return content

    def _what_differs(self, wanted: dict[str, Entry]) -> set[str]:
        """Paths of entries that are not as wanted; folders only if no folder is wanted there."""
        sockets = {os.fsdecode(path) for path, status in tree.walk(self._workspace) if stat.S_ISSOCK(status.st_mode)}
        return sockets | {entry.path for entry in self._scan() if not _stays(entry, wanted.get(entry.path))}

    def _remove(self, paths: set[str]) -> None:
        for path in sorted(paths, reverse=True):  # children before their folder
            absolute = os.path.join(self._workspace, os.fsencode(path))
            if stat.S_ISDIR(os.lstat(absolute).st_mode):
                os.rmdir(absolute)
            else:
                os.unlink(absolute)

    def _put(self, entry: Entry, owner: int | None) -> None:
        """Create an entry that is missing."""
        path = os.path.join(self._workspace, os.fsencode(entry.path))
        if os.path.lexists(path):
            return
        if entry.kind == "folder":
            os.mkdir(path, 0o700)
        elif entry.kind == "link":
            os.symlink(os.fsencode(entry.content), path)
        elif entry.kind == "pipe":
            os.mkfifo(path)
        else:
            _copy_content(self._content(entry.content), path)
        if owner is not None:
            os.chown(path, owner, owner, follow_symlinks=False)

    def _finish(self, entry: Entry) -> None:
        """Set mode and time, once nothing more is put below."""
        path = os.path.join(self._workspace, os.fsencode(entry.path))
        if entry.kind != "link":
            os.chmod(path, entry.mode)
        if entry.kind in ("file", "folder"):
            os.utime(path, ns=(entry.modified, entry.modified))

    def _read_list(self, identifier: str) -> list[Entry]:
        text = self._list(identifier).read_text()
        entries = [Entry(*json.loads(line)) for line in text.splitlines()]
        if _identifier(entries) != identifier:
            raise ValueError("its list is damaged")
        return entries

    def _content(self, name: str) -> Path:
        return self._folder / "contents" / name

    def _list(self, identifier: str) -> Path:
        return self._folder / "lists" / identifier


def _stays(entry: Entry, wanted: Entry | None) -> bool:
    if wanted is None or entry.kind != wanted.kind:
        return False
    return entry.kind == "folder" or entry == wanted


def _identifier(entries: Sequence[Entry]) -> str:
    digest = hashlib.sha256()
    for entry in entries:
        digest.update(json.dumps([entry.path, entry.kind, entry.mode, entry.content]).encode())
    return digest.hexdigest()


def _write_once(target: Path, *chunks: bytes) -> None:
    """Write beside and rename: whoever sees the name sees all of it."""
    target.parent.mkdir(parents=True, exist_ok=True)
    descriptor, temporary = tempfile.mkstemp(dir=target.parent)
    with open(descriptor, "wb") as file:
        for chunk in chunks:
            file.write(chunk)
    os.rename(temporary, target)


def _copy_content(source: Path, target: bytes) -> None:
    with source.open("rb") as reader, open(target, "xb") as writer:
        while chunk := reader.read(CHUNK):
            writer.write(chunk)
