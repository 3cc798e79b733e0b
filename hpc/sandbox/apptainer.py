"""Containers by Apptainer, from an image folder (fast) or a .sif file."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from pathlib import Path

from hpc.errors import SandboxStartError
from hpc.sandbox.container import SERVER_COMMAND, Backend
from hpc.sandbox.folders import SandboxFolders
from hpc.sandbox.protocol import SandboxSpec

ISOLATION = (
    "--containall", "--cleanenv", "--no-home", "--no-mount", "sys,cwd,hostfs,bind-paths", "--no-privs",
    "--net", "--network", "none", "--hostname", "sandbox", "--pwd", "/workspace",
    "--no-init",  # the server is process 1, which no signal from inside can end
)  # fmt: skip


def apptainer_backend() -> Backend:
    """The backend on this machine. Raises SandboxStartError if Apptainer is not installed."""
    program = shutil.which("apptainer")
    if program is None:
        raise SandboxStartError(
            "Apptainer is not installed. Install it (Debian, as root: containers/install-apptainer.sh; on a cluster it "
            "is often 'module load apptainer')."
        )
    root = os.geteuid() == 0

    def command_line(spec: SandboxSpec, folders: SandboxFolders) -> list[str]:
        image = _usable(spec.image)
        # an unprivileged user gets a user namespace; root gets the sandbox's own user instead
        user = ["--security", f"uid:{folders.user},gid:{folders.user}"] if root else []
        return [program, "--quiet", "exec", *ISOLATION, *user, *_binds(folders), str(image), *SERVER_COMMAND]

    return Backend(
        name="apptainer",
        command_line=command_line,
        own_user=root,
        server_takes_user=False,
        memory_folders=("/tmp", "/var/tmp", "/dev"),
    )


def _usable(image: Path | None) -> Path:
    if image is None:
        raise SandboxStartError("apptainer needs an image; containers/README.md tells how to make one.")
    if not image.exists():
        raise SandboxStartError(f"image {image} does not exist; containers/README.md tells how to make one.")
    return image


def _binds(folders: SandboxFolders) -> Iterator[str]:
    for mount in folders.mounts():
        options = "" if mount.writable else ",readonly"
        # --mount takes CSV fields, in which --bind's separators ':' and ',' may appear
        yield from ("--mount", f'type=bind,"source={mount.source}","destination={mount.target}"{options}')
