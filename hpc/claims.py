"""Claims on pieces of work, as files on a shared file system that need no lock.

The claim of ``name`` is the file ``name.0``, created whole by link, so that one of many wins. It expires when its
mtime is older than the lease. Taking over ``name.0`` is creating ``name.1``, again by link, so that again one of
many wins; the highest number holds. Nothing is ever replaced, hence no taker can remove the claim of another.
Clocks of the machines must agree to within a fraction of the lease.
"""

from __future__ import annotations

import json
import os
import secrets
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path

from hpc.process_identity import ProcessIdentity, is_dead, this_process
from hpc.storage.atomic import create_exclusive, read_json

Clock = Callable[[], float]


@dataclass(frozen=True, slots=True, kw_only=True)
class Claim:
    """A claim that its owner holds until it releases it or another takes it over."""

    folder: Path
    name: str
    owner: str
    generation: int
    """How often the work was taken over since it was last free."""
    token: str
    """Tells this claim from later ones of the same generation."""
    previous_owner: str | None
    """From whom it was taken over, None if it was free."""
    clock: Clock

    def renew(self) -> bool:
        """Begin a new lease; False if another has taken over and the work is no longer ours."""
        if not self.held():
            return False
        now = self.clock()
        try:
            os.utime(_file(self.folder, self.name, self.generation), (now, now))
        except FileNotFoundError:
            return False
        return self.held()

    def held(self) -> bool:
        """Whether no other has taken over, and it was not released."""
        holder = _newest_holder(self.folder, self.name)
        return holder is not None and holder.token == self.token

    def release(self) -> None:
        """Free the work, unless another holds it by now."""
        if self.held():
            for generation in range(self.generation + 1):
                _file(self.folder, self.name, generation).unlink(missing_ok=True)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Holder:
    """What a claim file says, and how old its lease is."""

    owner: str
    token: str
    process: ProcessIdentity
    generation: int
    renewed: float


def acquire(folder: Path, name: str, owner: str, lease_seconds: float, clock: Clock = time.time) -> Claim | None:
    """Claim a piece of work; None while another holds it.

    A claim is taken over when its lease has expired; at once when its process was on this machine and is dead, or
    when its owner has our name on another machine (we are the requeued one).

    Args:
        folder: The claims of one kind of work; made if needed.
        name: The piece of work; no slash, no leading dot.
        owner: Unique among living owners.
        lease_seconds: How long the claim holds without being renewed; the same for all owners.
        clock: Seconds since the epoch.
    """
    holder = _newest_holder(folder, name)
    if holder is not None and not _may_be_taken(holder, owner, lease_seconds, clock):
        return None
    claim = Claim(
        folder=folder,
        name=name,
        owner=owner,
        generation=0 if holder is None else holder.generation + 1,
        token=secrets.token_hex(8),
        previous_owner=None if holder is None else holder.owner,
        clock=clock,
    )
    if not _create(claim):
        return None
    if not claim.held() or _holder(folder, name, claim.generation - 1) != holder:
        _file(folder, name, claim.generation).unlink(missing_ok=True)  # it was renewed or released meanwhile
        return None
    return claim


def holder_of(folder: Path, name: str) -> str | None:
    """Owner of the newest claim, expired or not; None if the work is free."""
    holder = _newest_holder(folder, name)
    return None if holder is None else holder.owner


def _may_be_taken(holder: _Holder, owner: str, lease_seconds: float, clock: Clock) -> bool:
    here = this_process()
    requeued = holder.owner == owner and holder.process.boot != here.boot
    return requeued or is_dead(holder.process) or clock() - holder.renewed > lease_seconds


def _create(claim: Claim) -> bool:
    content = {"owner": claim.owner, "token": claim.token, "process": asdict(this_process())}
    return create_exclusive(_file(claim.folder, claim.name, claim.generation), json.dumps(content).encode())


def _newest_holder(folder: Path, name: str) -> _Holder | None:
    generation = _newest_generation(folder, name)
    return None if generation is None else _holder(folder, name, generation)


def _holder(folder: Path, name: str, generation: int) -> _Holder | None:
    path = _file(folder, name, generation)
    try:
        renewed, content = path.stat().st_mtime, read_json(path)
    except FileNotFoundError:
        return None
    return _Holder(
        owner=content["owner"],
        token=content["token"],
        process=ProcessIdentity(**content["process"]),
        generation=generation,
        renewed=renewed,
    )


def _newest_generation(folder: Path, name: str) -> int | None:
    try:
        names = os.listdir(folder)
    except FileNotFoundError:
        return None
    parts = (entry.rpartition(".") for entry in names)
    return max((int(generation) for stem, _, generation in parts if stem == name), default=None)


def _file(folder: Path, name: str, generation: int) -> Path:
    return folder / f"{name}.{generation}"
