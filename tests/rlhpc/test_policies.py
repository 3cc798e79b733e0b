from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from rlhpc.errors import PolicyError
from rlhpc.paths import RunPaths
from rlhpc.policies import (
    latest_policy_version,
    publish_policy,
    published_versions,
    remove_old_policies,
    verify_policy,
)

PUBLISH_AND_HANG = """
import sys, time
from pathlib import Path
from rlhpc.paths import RunPaths
from rlhpc.policies import publish_policy
def write(folder):
    (folder / "model.safetensors").write_bytes(b"half")
    print("writing", flush=True)
    time.sleep(600)
publish_policy(RunPaths(Path(sys.argv[1])), 3, write, {})
"""


@pytest.fixture
def paths(tmp_path: Path) -> RunPaths:
    return RunPaths(tmp_path)


def write(folder: Path) -> None:
    (folder / "model.safetensors").write_bytes(b"weights" * 100)
    (folder / "config.json").write_text("{}")
    (folder / "extra").mkdir()
    (folder / "extra" / "tokens").write_text("a b c")


def test_a_published_policy_is_complete_and_described(paths: RunPaths) -> None:
    assert latest_policy_version(paths) is None
    folder = publish_policy(paths, 3, write, {"step": 3})
    assert folder == paths.policy(3) and latest_policy_version(paths) == 3
    verify_policy(folder)
    manifest = json.loads((folder / "policy.json").read_text())
    assert (manifest["version"], manifest["step"]) == (3, 3)
    assert manifest["files"].keys() == {"config.json", "extra/tokens", "model.safetensors"}
    assert manifest["files"]["model.safetensors"]["size"] == 700
    assert list(paths.policies.iterdir()) == [folder]


def test_publishing_again_changes_nothing(paths: RunPaths) -> None:
    publish_policy(paths, 3, write, {})
    assert publish_policy(paths, 3, lambda folder: pytest.fail("written twice"), {}) == paths.policy(3)


def test_a_killed_publisher_is_not_seen_and_the_next_one_cleans_up(paths: RunPaths) -> None:
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    command = [sys.executable, "-c", PUBLISH_AND_HANG, str(paths.root)]
    with subprocess.Popen(command, env=environment, stdout=subprocess.PIPE) as publisher:
        assert publisher.stdout is not None and publisher.stdout.readline() == b"writing\n"
        publisher.kill()
    assert latest_policy_version(paths) is None and not paths.policy(3).exists()
    verify_policy(publish_policy(paths, 3, write, {}))
    assert list(paths.policies.iterdir()) == [paths.policy(3)]


def test_a_changed_or_missing_file_is_named(paths: RunPaths) -> None:
    folder = publish_policy(paths, 3, write, {})
    (folder / "model.safetensors").write_bytes(b"weighty" * 100)
    (folder / "extra" / "tokens").unlink()
    with pytest.raises(PolicyError, match="extra/tokens, model.safetensors missing or changed"):
        verify_policy(folder)


@pytest.mark.parametrize("manifest", ["", "[]", "{}", None])
def test_a_policy_without_a_readable_manifest_is_refused(paths: RunPaths, manifest: str | None) -> None:
    folder = publish_policy(paths, 3, write, {})
    (folder / "policy.json").unlink()
    if manifest is not None:
        (folder / "policy.json").write_text(manifest)
    with pytest.raises(PolicyError, match="policy.json"):
        verify_policy(folder)


def test_a_folder_that_no_learner_published_is_not_taken_for_a_policy(paths: RunPaths) -> None:
    paths.policy(3).mkdir(parents=True)
    with pytest.raises(PolicyError, match="move it away"):
        publish_policy(paths, 3, write, {})


@pytest.mark.parametrize(("keep", "left"), [(2, [3, 4]), (0, []), (9, [0, 1, 2, 3, 4]), ({1, 4, 8}, [1, 4])])
def test_old_policies_are_removed(paths: RunPaths, keep: int | set[int], left: list[int]) -> None:
    for version in range(5):
        publish_policy(paths, version, write, {})
    remove_old_policies(paths, keep)
    assert published_versions(paths) == left
    assert sorted(folder.name for folder in paths.policies.iterdir()) == [f"{version:06d}" for version in left]
