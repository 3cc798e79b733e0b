"""Choosing a backend and making sandboxes: where users of this package start."""

from __future__ import annotations

import logging
import os
import shutil
from dataclasses import dataclass, replace
from pathlib import Path

from hpc.errors import SandboxStartError
from hpc.sandbox.apptainer import apptainer_backend
from hpc.sandbox.bubblewrap import bubblewrap_backend
from hpc.sandbox.container import Backend, ContainerSandbox
from hpc.sandbox.folders import reap
from hpc.sandbox.protocol import Sandbox, SandboxFactory, SandboxSpec

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """Which container program is used with which image, and why."""

    backend: str
    """``apptainer`` or ``bubblewrap``."""
    image: Path | None
    """None means the host's own system folders."""
    reason: str
    """One sentence for people."""


def default_image() -> Path:
    """Where containers/build-python-image.sh puts the Python image."""
    cache = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
    return Path(cache) / "rlhpc" / "images" / "python"


def choose_backend(name: str = "auto", image: Path | None = None) -> Choice:
    """Settle on a backend that this machine has.

    Args:
        name: ``apptainer``, ``bubblewrap`` or ``auto``: Apptainer if it is there and has an image, else bubblewrap.
        image: Image folder or .sif; None means the built default image or, with bubblewrap, the host's own system.

    Raises:
        SandboxStartError: Nothing fits; the message says what to install.
    """
    if image is not None and not image.exists():
        raise SandboxStartError(f"sandbox image {image} does not exist; containers/README.md tells how to make one.")
    built = image or (default_image() if default_image().exists() else None)
    if name == "auto":
        return _choose_automatically(image, built)
    if name == "apptainer":
        apptainer_backend()
        if built is None:
            raise SandboxStartError(
                f"apptainer has no image: {default_image()} does not exist. Make it with "
                "containers/build-python-image.sh, or name one (containers/README.md)."
            )
        return Choice(backend=name, image=built, reason=f"apptainer with {built}, as asked for.")
    if name == "bubblewrap":
        bubblewrap_backend()
        return Choice(backend=name, image=image, reason=f"bubblewrap with {_describe(image)}, as asked for.")
    raise SandboxStartError(f"there is no sandbox backend {name!r}; choose auto, apptainer or bubblewrap.")


def _choose_automatically(image: Path | None, built: Path | None) -> Choice:
    apptainer, bubblewrap = shutil.which("apptainer"), shutil.which("bwrap")
    if apptainer and built is not None:
        reason = f"apptainer with {built}, since both are there."
        return Choice(backend="apptainer", image=built, reason=reason)
    missing = f"there is no image {default_image()}" if apptainer else "Apptainer is not installed"
    if bubblewrap:
        reason = f"bubblewrap with {_describe(image)}, since {missing}."
        return Choice(backend="bubblewrap", image=image, reason=reason)
    raise SandboxStartError(
        f"no sandbox can be started: {missing} and bubblewrap is not installed. Install bubblewrap (Debian: apt-get "
        "install bubblewrap) or see containers/README.md for Apptainer."
    )


def _describe(image: Path | None) -> str:
    return str(image) if image else "the host's own system folders"


def load_backend(name: str) -> Backend:
    """The backend of that name. Raises SandboxStartError if its program is not installed."""
    return apptainer_backend() if name == "apptainer" else bubblewrap_backend()


def open_sandbox(choice: Choice, spec: SandboxSpec, base: Path, snapshots: Path | None = None) -> Sandbox:
    """A started sandbox; see ``sandbox_factory`` for many. Raises SandboxStartError."""
    sandbox = sandbox_factory(choice, base, snapshots)(spec)
    sandbox.start()
    return sandbox


def sandbox_factory(choice: Choice, base: Path, snapshots: Path | None = None) -> SandboxFactory:
    """A function that makes sandboxes (not started yet) and first clears away what dead owners left in ``base``.

    Args:
        choice: Backend and default image, for specs that name none.
        base: Node-local folder for workspaces; all owners on a node may share it.
        snapshots: Folder that keeps snapshots beyond the life of a sandbox; None means with the sandbox.

    Raises:
        SandboxStartError: The backend's program is not installed.
    """
    backend = load_backend(choice.backend)
    for folder in reap(base):
        log.info("removed %s, whose owner is dead", folder)

    def make(spec: SandboxSpec) -> Sandbox:
        complete = replace(spec, image=spec.image or choice.image)
        return ContainerSandbox(backend, complete, base, snapshots)

    return make
