"""Containers by bubblewrap: namespaces of the host's own system folders, or of an image folder."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterable, Iterator
from pathlib import Path, PurePosixPath

from hpc.errors import SandboxStartError
from hpc.sandbox.container import SERVER_COMMAND, Backend
from hpc.sandbox.folders import SandboxFolders
from hpc.sandbox.protocol import SandboxSpec

SYSTEM_FOLDERS = ("usr", "bin", "sbin", "lib", "lib32", "lib64", "libx32")
"""Of the host, when there is no image. Never its /home, /root, /tmp, /etc as a whole."""
SYSTEM_SETTINGS = (
    "alternatives", "ld.so.cache", "ld.so.conf", "ld.so.conf.d", "localtime", "mime.types", "python3", "ssl/certs",
)  # fmt: skip
"""Files below /etc that programs need and that tell nothing about the host."""
CAP_SYS_ADMIN = 21


def bubblewrap_backend() -> Backend:
    """The backend on this machine. Raises SandboxStartError if bubblewrap is not installed."""
    program = shutil.which("bwrap")
    if program is None:
        raise SandboxStartError("bubblewrap is not installed. Install it (Debian: apt-get install bubblewrap).")
    privileged = may_mount()

    def command_line(spec: SandboxSpec, folders: SandboxFolders) -> list[str]:
        parents = _parents(mount.target for mount in folders.mounts())
        return [program, *_namespaces(privileged), *parents, *_system(spec.image), *_own_mounts(spec, folders),
                *SERVER_COMMAND]  # fmt: skip

    return Backend(
        name="bubblewrap",
        command_line=command_line,
        own_user=privileged,
        server_takes_user=privileged,
        memory_folders=(),
    )


def may_mount() -> bool:
    """Whether this process is root with the right to mount, and so needs no user namespace."""
    status = Path("/proc/self/status").read_text()
    effective = next(line.split()[1] for line in status.splitlines() if line.startswith("CapEff:"))
    return os.geteuid() == 0 and bool(int(effective, 16) >> CAP_SYS_ADMIN & 1)


def _namespaces(privileged: bool) -> list[str]:
    """Own everything; the server is process 1, which no signal from inside can end."""
    options = ["--unshare-ipc", "--unshare-pid", "--unshare-net", "--unshare-uts", "--unshare-cgroup-try",
               "--as-pid-1", "--hostname", "sandbox", "--clearenv", "--setenv", "PATH", "/usr/local/bin:/usr/bin:/bin",
               "--cap-drop", "ALL"]  # fmt: skip
    # as root: no user namespace, but the right to become the sandbox's own user, which ends all other rights
    return options + (["--cap-add", "CAP_SETUID", "--cap-add", "CAP_SETGID"] if privileged else ["--unshare-user"])


def _system(image: Path | None) -> Iterator[str]:
    """The read-only root file system, entry by entry, so that mount points can be made beside them."""
    if image is None:
        yield from _entries(Path("/"), SYSTEM_FOLDERS)
        for name in SYSTEM_SETTINGS:
            yield from ("--ro-bind-try", f"/etc/{name}", f"/etc/{name}")
    elif image.is_dir():
        made_here = ("proc", "dev", "tmp", "sys", "run", "workspace")
        yield from _entries(image, sorted(name for name in os.listdir(image) if name not in made_here))
    else:
        raise SandboxStartError(
            f"bubblewrap needs an image as a folder and {image} is none. Use the apptainer backend, or unpack it with "
            f"'apptainer build --sandbox FOLDER {image}'."
        )


def _entries(root: Path, names: tuple[str, ...] | list[str]) -> Iterator[str]:
    for name in names:
        source = root / name
        if source.is_symlink():
            yield from ("--symlink", os.readlink(source), f"/{name}")
        elif source.exists():
            yield from ("--ro-bind", str(source), f"/{name}")


def _own_mounts(spec: SandboxSpec, folders: SandboxFolders) -> Iterator[str]:
    yield from ("--proc", "/proc", "--dev", "/dev")
    shared, temporary = spec.limits.shared_memory_mib << 20, spec.limits.disk_mib << 20
    yield from ("--perms", "1777", "--size", str(shared), "--tmpfs", "/dev/shm")
    yield from ("--perms", "1777", "--size", str(temporary), "--tmpfs", "/tmp")
    for mount in folders.mounts():
        yield from ("--bind" if mount.writable else "--ro-bind", str(mount.source), mount.target)
    yield from ("--remount-ro", "/dev", "--remount-ro", "/", "--chdir", "/")


def _parents(targets: Iterable[str]) -> Iterator[str]:
    """All folders above mount points, outermost first; made implicitly, they would be closed to other users."""
    above = {str(parent) for target in targets for parent in PurePosixPath(target).parents}
    for folder in sorted(above - {"/"}):
        yield from ("--perms", "0755", "--dir", folder)
