"""The sandbox that all backends share: one container, one command server, folders of the host.

Backends differ only in the command line that starts the container (bubblewrap.py, apptainer.py).
"""

from __future__ import annotations

import logging
import os
import platform
import socket
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from hpc.errors import SandboxDiedError, SandboxError, SandboxStartError
from hpc.sandbox import folders as folder_layout
from hpc.sandbox import tree
from hpc.sandbox.connection import Connection
from hpc.sandbox.folders import SERVER_MOUNT, SandboxFolders
from hpc.sandbox.protocol import ExecResult, Limit, SandboxLimits, SandboxSpec, shape_of
from hpc.sandbox.seccomp import filter_program
from hpc.sandbox.snapshot import SnapshotStore

log = logging.getLogger(__name__)

START_SECONDS = 60.0
"""A start takes some 30 to 200 ms; on a node where everything starts at once, far more."""
GRACE_SECONDS = 15.0
"""How much longer than a command's own timeout the server may take, before it counts as dead."""
FILE_SECONDS = 120.0
OWN_PROCESSES = 32
"""Room between the watchdog's limit and the kernel's, so that the watchdog can see the breach and name it."""
OWN_ADDRESS_SPACE = 4
"""Address space over memory limit: programs reserve far more than they use; the watchdog measures what they use."""

SERVER_COMMAND = (
    "python3", "-I", "-S", "-c",
    f"import sys; sys.path.insert(0, {SERVER_MOUNT!r}); from hpc.sandbox.inside.server import main; main()",
)  # fmt: skip
ENVIRONMENT = {
    "HOME": "/workspace",
    "PATH": "/usr/local/bin:/usr/bin:/bin",
    "LANG": "C.UTF-8",
    "PYTHONDONTWRITEBYTECODE": "1",  # bytecode is looked up by second and size: an edit within a second would be lost
    "PYTHONHASHSEED": "0",  # so that a replayed action gives the same observation
}
"""What commands see, besides the spec's own variables."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Backend:
    """A container program."""

    name: str
    command_line: Callable[[SandboxSpec, SandboxFolders], list[str]]
    """The command that runs ``SERVER_COMMAND`` in a container. Raises SandboxStartError for an unusable image."""
    own_user: bool
    """Whether each sandbox runs as a user of its own, so that the kernel counts its processes apart."""
    server_takes_user: bool
    """Whether the server switches to that user; else the container program has done so."""
    memory_folders: tuple[str, ...]
    """Folders in memory (such as /tmp) whose size the backend can't limit: the disk watchdog counts them."""


class ContainerSandbox:
    """A ``Sandbox`` in a container. Used by one thread at a time."""

    def __init__(self, backend: Backend, spec: SandboxSpec, base: Path, snapshots: Path | None = None) -> None:
        """Nothing is started yet.

        Args:
            backend: Container program.
            spec: What to start.
            base: Node-local folder for the workspaces of all sandboxes.
            snapshots: Where snapshots are kept; None means with the sandbox, until it is closed.
        """
        self._backend = backend
        self._spec = spec
        self._base = base
        self._snapshot_folder = snapshots
        self._folders: SandboxFolders | None = None
        self._store: SnapshotStore | None = None
        self._connection: Connection | None = None
        self._ready = False

    def start(self) -> None:
        """Start the container and fill the workspace. Raises SandboxStartError."""
        try:
            self.launch()
            self.fill(self._spec)
        except BaseException:
            self.close()
            raise

    def launch(self) -> None:
        """Begin to start the container, without waiting for it. Raises SandboxStartError."""
        try:
            folders = self._make_folders()
            self._connection = Connection(self._backend.command_line(self._spec, folders), folders.log)
            self._connection.send(self._settings(folders))
        except SandboxStartError:
            raise
        except (OSError, SandboxDiedError) as error:
            reason = self._start_error(str(error))
            self._disconnect()
            raise reason from error

    def _make_folders(self) -> SandboxFolders:
        """The sandbox's folders; those of an earlier container are kept."""
        if self._folders is None:
            self._folders = folder_layout.create_folders(
                self._base, sorted(self._spec.read_only or ()), self._spec.writable, own_user=self._backend.own_user
            )
            self._store = SnapshotStore(self._snapshot_folder or self._folders.snapshots, self._folders.workspace)
        return self._folders

    def fill(self, spec: SandboxSpec) -> None:
        """Put the spec's files, folders and environment in place. Raises SandboxStartError if the shape differs."""
        spec = replace(spec, image=spec.image or self._spec.image)
        if shape_of(spec) != shape_of(self._spec):
            raise SandboxStartError("a started sandbox can't take a spec with other mounts, limits or image")
        self._spec = spec
        folders = self._here()
        try:
            if spec.source is not None:
                folder_layout.fill(folders.workspace, spec.source, self._user)
            for target, source in (spec.read_only or {}).items():
                folder_layout.fill(folders.read_only(target), source, None)
        except OSError as error:
            raise SandboxStartError(f"can't fill the sandbox: {error}") from error
        self._wait_until_ready()
        if spec.files:
            self.write_files(spec.files)

    def execute(self, command: str, timeout: float) -> ExecResult:
        """Run a command as ``Sandbox.execute`` says. Raises SandboxDiedError."""
        variables = {**ENVIRONMENT, **(self._spec.environment or {})}
        environment = [os.fsencode(text) for pair in variables.items() for text in pair]
        request = [b"execute", str(timeout).encode(), command.replace("\0", "").encode(errors="replace"), *environment]
        return _result(self._ask(request, timeout + GRACE_SECONDS))

    def write_files(self, files: Mapping[str, bytes]) -> None:
        """Write files from inside, so that no planted link leads out. Raises SandboxDiedError, SandboxError."""
        fields = [field for path, content in files.items() for field in (os.fsencode(path), content)]
        self._ask([b"write", *fields], FILE_SECONDS)

    def read_files(self, paths: Sequence[str]) -> dict[str, bytes | None]:
        """Read files from inside. Raises SandboxDiedError, SandboxError."""
        answers = self._ask([b"read", *map(os.fsencode, paths)], FILE_SECONDS)
        contents = (answer[len(b"file:") :] if answer.startswith(b"file:") else None for answer in answers)
        return dict(zip(paths, contents, strict=True))

    def snapshot(self) -> str:
        """Save the workspace. Raises SandboxError if it can't be saved, SandboxDiedError after ``close``."""
        self._here()
        assert self._store is not None
        return self._store.save()

    def restore(self, snapshot: str) -> None:
        """Put the workspace back; a container that died is started again. Raises SandboxError, SandboxStartError."""
        self._here()
        assert self._store is not None
        if not self._alive():
            self._disconnect()  # first, so that nothing of the old container writes while we restore
            self._store.restore(snapshot, self._user)
            self.launch()
            self._wait_until_ready()
        else:
            self._store.restore(snapshot, self._user)

    def export_workspace(self, target: Path) -> None:
        """Copy the workspace to the host. Raises SandboxError, OSError."""
        tree.copy(self._here().workspace, target)

    def close(self) -> None:
        """End all processes and remove every trace. Idempotent."""
        self._disconnect()
        if self._folders is not None:
            try:
                self._folders.remove()
            except OSError as error:  # they go when the next owner starts; no reason to lose what was worked out
                log.warning("can't remove %s: %s", self._folders.root, error)
        self._folders = self._store = None

    def _disconnect(self) -> None:
        if self._connection is not None:
            self._connection.close()
        self._connection, self._ready = None, False

    def _here(self) -> SandboxFolders:
        if self._folders is None:
            raise SandboxDiedError("the sandbox is not started, or already closed")
        return self._folders

    @property
    def _user(self) -> int | None:
        return self._here().user if self._backend.own_user else None

    def _alive(self) -> bool:
        try:
            self._ask([b"read"], GRACE_SECONDS)
        except SandboxDiedError:
            return False
        return True

    def _ask(self, request: list[bytes], seconds: float) -> list[bytes]:
        """Send a request and wait for its answer. Raises SandboxDiedError, and SandboxError if it was refused."""
        self._here()
        self._wait_until_ready()
        if self._connection is None:
            raise SandboxDiedError("the sandbox's container died before; restore a snapshot to go on")
        try:
            self._connection.send(request)
            verdict, *answer = self._connection.receive(seconds)
        except SandboxDiedError:
            self._connection.close(patience=0)
            self._connection = None
            raise
        if verdict != b"ok":
            raise SandboxError(answer[0].decode(errors="replace"))
        return answer

    def _wait_until_ready(self) -> None:
        if self._ready or self._connection is None:
            return
        try:
            self._connection.receive(START_SECONDS)
        except SandboxDiedError as error:
            raise self._start_error(str(error)) from error
        self._ready = True

    def _start_error(self, reason: str) -> SandboxStartError:
        complaints = self._here().log.read_text(errors="replace").strip()[-1000:] if self._folders else ""
        image = self._spec.image or "the host's own system"
        return SandboxStartError(
            f"{self._backend.name} with {image} on {socket.gethostname()}: {complaints or reason}. "
            "'rlhpc doctor' tells which backends work here."
        )

    def _settings(self, folders: SandboxFolders) -> list[bytes]:
        limits = self._spec.limits
        disk_folders = ["/workspace", *self._spec.writable, *self._backend.memory_folders]
        watched = {"memory": limits.memory_mib << 20, "processes": limits.processes, "disk": limits.disk_mib << 20}
        return [
            str(folders.user if self._backend.server_takes_user else "").encode(),
            filter_program(platform.machine()),
            _numbers(_rlimits(limits, count_processes=self._backend.own_user or _namespaces_count_processes())),
            _numbers(watched),
            "\0".join(disk_folders).encode(),
            str(limits.output_bytes).encode(),
        ]


def _result(answer: list[bytes]) -> ExecResult:
    numbers, limit, stdout, stderr = answer
    exit_code, duration, peak_kib, truncated = numbers.split()
    return ExecResult(
        exit_code=int(exit_code),
        stdout=stdout.decode(errors="replace"),
        stderr=stderr.decode(errors="replace"),
        duration=float(duration),
        peak_memory=int(peak_kib) / 1024,
        truncated=truncated == b"1",
        timed_out=limit == b"wall_time",
        limit=Limit(limit.decode()) if limit else None,
    )


def _rlimits(limits: SandboxLimits, *, count_processes: bool) -> dict[str, int]:
    values = {
        "RLIMIT_AS": OWN_ADDRESS_SPACE * (limits.memory_mib << 20),
        "RLIMIT_FSIZE": limits.file_size_mib << 20,
        "RLIMIT_NOFILE": 1024,
        "RLIMIT_CORE": 0,
    }
    if count_processes:
        values["RLIMIT_NPROC"] = limits.processes + OWN_PROCESSES
    return values


def _namespaces_count_processes() -> bool:
    """Since Linux 5.14 a user namespace counts its own processes; before, all of the user's on the node count."""
    major, minor = platform.release().split(".")[:2]
    return (int(major), int("".join(filter(str.isdigit, minor)) or 0)) >= (5, 14)


def _numbers(values: Mapping[str, int]) -> bytes:
    return " ".join(f"{name}={value}" for name, value in values.items()).encode()
