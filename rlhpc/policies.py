"""Published policies: Hugging Face directories, complete when they are visible, verified by hash."""

from __future__ import annotations

import hashlib
import logging
import secrets
import shutil
from collections.abc import Callable, Mapping, Set
from pathlib import Path
from typing import Any

from hpc.errors import StorageError
from hpc.storage.atomic import publish_folder, read_json, write_json_atomic
from rlhpc.errors import PolicyError
from rlhpc.paths import RunPaths

logger = logging.getLogger(__name__)

MANIFEST = "policy.json"
"""``{"version", "files": {name: {"sha256", "size"}}, **metadata}``."""


def publish_policy(paths: RunPaths, version: int, write: Callable[[Path], None], metadata: Mapping[str, Any]) -> Path:
    """Make a policy visible to the workers; one that is published already is left as it is.

    Args:
        paths: The run.
        version: Of the policy.
        write: Fills an empty folder with the model's files.
        metadata: JSON-able facts for the manifest, neither ``version`` nor ``files`` among them.

    Returns:
        The published folder.

    Raises:
        PolicyError: there is a folder of this version without a manifest.
    """
    target = paths.policy(version)
    if target.exists():
        return _published(target)
    _remove_leftovers(paths, version)
    temporary = paths.policies / f".{target.name}.{secrets.token_hex(4)}.tmp"
    temporary.mkdir(parents=True)
    write(temporary)
    manifest = {**metadata, "version": version, "files": _fingerprints(temporary)}
    write_json_atomic(temporary / MANIFEST, manifest)
    publish_folder(temporary, target)
    logger.info("policy %d is published in %s", version, target)
    return target


def published_versions(paths: RunPaths) -> list[int]:
    """All complete policies, oldest first."""
    return sorted(int(manifest.parent.name) for manifest in paths.policies.glob(f"[0-9]*/{MANIFEST}"))


def latest_policy_version(paths: RunPaths) -> int | None:
    """The newest published policy; None before the first."""
    return max(published_versions(paths), default=None)


def verify_policy(folder: Path) -> None:
    """Compare a published policy with its manifest.

    Raises:
        PolicyError: it is incomplete or a file differs from what was published.
    """
    try:
        expected = read_json(folder / MANIFEST)["files"]
        found = _fingerprints(folder)
    except (OSError, StorageError, KeyError, TypeError) as error:
        raise PolicyError(f"policy {folder} has no readable {MANIFEST} ({error!r}); publish it again") from error
    damaged = sorted(name for name, fingerprint in expected.items() if found.get(name) != fingerprint)
    if damaged:
        raise PolicyError(f"policy {folder}: {', '.join(damaged)} missing or changed; publish it again")


def remove_old_policies(paths: RunPaths, keep: Set[int] | int) -> None:
    """Delete all policies but the versions in ``keep``, or but the ``keep`` newest ones."""
    versions = published_versions(paths)
    kept = set(versions[max(0, len(versions) - keep) :]) if isinstance(keep, int) else keep
    for version in set(versions) - kept:
        folder = paths.policy(version)
        removed = folder.with_name(f".{folder.name}.{secrets.token_hex(4)}.tmp")
        folder.rename(removed)  # so that nobody sees it half-deleted
        shutil.rmtree(removed)


def _published(folder: Path) -> Path:
    if not (folder / MANIFEST).exists():
        raise PolicyError(f"{folder} exists without {MANIFEST}, so no learner published it; move it away")
    return folder


def _remove_leftovers(paths: RunPaths, version: int) -> None:
    """Of publishers that were killed."""
    for leftover in paths.policies.glob(f".{paths.policy(version).name}.*.tmp"):
        shutil.rmtree(leftover)


def _fingerprints(folder: Path) -> dict[str, dict[str, Any]]:
    files = (file for file in sorted(folder.rglob("*")) if file.is_file() and file != folder / MANIFEST)
    return {str(file.relative_to(folder)): _fingerprint(file) for file in files}


def _fingerprint(file: Path) -> dict[str, Any]:
    with file.open("rb") as content:
        return {"sha256": hashlib.file_digest(content, "sha256").hexdigest(), "size": file.stat().st_size}
