"""Snapshots, copies and removal of workspaces, seen from the host."""

import os
import time
from pathlib import Path

import pytest

from hpc.errors import SandboxError
from hpc.sandbox import tree
from hpc.sandbox.folders import create_folders, reap
from hpc.sandbox.snapshot import SnapshotStore


@pytest.fixture
def workspace(tmp_path: Path) -> Path:
    folder = tmp_path / "workspace"
    folder.mkdir()
    return folder


def test_equal_workspaces_have_equal_identifiers_in_different_stores(tmp_path: Path) -> None:
    identifiers = set()
    for name in ("one", "two"):
        (tmp_path / name / "src").mkdir(parents=True)
        (tmp_path / name / "src" / "a.py").write_text("a")
        identifiers.add(SnapshotStore(tmp_path / f"store-{name}", tmp_path / name).save())
    assert len(identifiers) == 1


@pytest.mark.parametrize("change", ["content", "name", "mode", "link", "folder"])
def test_every_change_gives_another_identifier(change: str, workspace: Path, tmp_path: Path) -> None:
    (workspace / "a").write_text("a")
    (workspace / "l").symlink_to("a")
    store = SnapshotStore(tmp_path / "store", workspace)
    before = store.save()
    if change == "content":
        (workspace / "a").write_text("b")
    elif change == "name":
        (workspace / "a").rename(workspace / "c")
    elif change == "mode":
        (workspace / "a").chmod(0o755)
    elif change == "link":
        (workspace / "l").unlink()
        (workspace / "l").symlink_to("b")
    else:
        (workspace / "d").mkdir()
    after = store.save()
    assert after != before
    store.restore(before, None)
    assert store.save() == before


def test_restore_changes_the_kind_of_entries_back(workspace: Path, tmp_path: Path) -> None:
    (workspace / "x").mkdir()
    (workspace / "x" / "inner").write_text("1")
    (workspace / "y").write_text("2")
    store = SnapshotStore(tmp_path / "store", workspace)
    before = store.save()
    (workspace / "x" / "inner").unlink()
    (workspace / "x").rmdir()
    (workspace / "x").symlink_to("/etc")
    (workspace / "y").unlink()
    (workspace / "y").mkdir()
    store.restore(before, None)
    assert (workspace / "x" / "inner").read_text() == "1" and (workspace / "y").read_text() == "2"


def test_modification_times_come_back(workspace: Path, tmp_path: Path) -> None:
    (workspace / "a").write_text("1")
    os.utime(workspace / "a", ns=(10**18, 10**18))
    store = SnapshotStore(tmp_path / "store", workspace)
    before = store.save()
    (workspace / "a").write_text("2")
    store.restore(before, None)
    assert (workspace / "a").stat().st_mtime_ns == 10**18


def test_another_store_object_restores_from_the_same_folder(workspace: Path, tmp_path: Path) -> None:
    (workspace / "a").write_text("kept")
    saved = SnapshotStore(tmp_path / "store", workspace).save()
    other = tmp_path / "other"
    other.mkdir()
    SnapshotStore(tmp_path / "store", other).restore(saved, None)
    assert (other / "a").read_text() == "kept"


def test_a_missing_or_damaged_snapshot_is_named(workspace: Path, tmp_path: Path) -> None:
    store = SnapshotStore(tmp_path / "store", workspace)
    with pytest.raises(SandboxError, match="0000"):
        store.restore("0000", None)
    saved = store.save()
    (tmp_path / "store" / "lists" / saved).write_text('["a", "link", 0, "/etc", 0]')
    with pytest.raises(SandboxError, match="damaged"):
        store.restore(saved, None)


def test_an_unchanged_workspace_is_not_read_again(workspace: Path, tmp_path: Path) -> None:
    (workspace / "big").write_bytes(os.urandom(40 << 20))
    store = SnapshotStore(tmp_path / "store", workspace)
    store.save()
    time.sleep(0.1)  # until the file's time can tell changes apart
    store.save()
    began = time.perf_counter()
    store.save()
    assert time.perf_counter() - began < 0.01


def test_a_tree_of_malicious_depth_is_refused_and_removed(workspace: Path, tmp_path: Path) -> None:
    here = os.getcwd()
    try:
        os.chdir(workspace)
        for _ in range(1500):
            os.mkdir("deeper")
            os.chdir("deeper")
    finally:
        os.chdir(here)
    with pytest.raises(SandboxError, match="deeper"):
        SnapshotStore(tmp_path / "store", workspace).save()
    tree.remove(workspace)
    assert not workspace.exists()


def test_folders_of_the_living_stay_when_those_of_the_dead_are_removed(tmp_path: Path) -> None:
    mine = create_folders(tmp_path, [], [], own_user=False)
    child = os.fork()
    if child == 0:
        theirs = create_folders(tmp_path, ["/tests"], ["/logs"], own_user=False)
        (theirs.workspace / "file").write_text("left behind")
        os._exit(0)
    os.waitpid(child, 0)
    assert len(list(tmp_path.iterdir())) == 2
    assert len(reap(tmp_path)) == 1
    assert list(tmp_path.iterdir()) == [mine.root]


def test_locked_folders_are_saved_and_stay_locked(workspace: Path, tmp_path: Path) -> None:
    (workspace / "locked" / "inner").mkdir(parents=True)
    (workspace / "locked" / "inner" / "a").write_text("1")
    (workspace / "locked" / "inner").chmod(0o000)
    (workspace / "locked").chmod(0o500)
    store = SnapshotStore(tmp_path / "store", workspace)
    saved = store.save()
    assert store.save() == saved
    (workspace / "locked").chmod(0o700)
    (workspace / "locked" / "inner").chmod(0o700)
    (workspace / "locked" / "inner" / "a").write_text("2")
    (workspace / "locked" / "inner" / "b").write_text("2")
    (workspace / "locked" / "inner").chmod(0o100)
    store.restore(saved, None)
    assert store.save() == saved
    assert (workspace / "locked").stat().st_mode & 0o777 == 0o500
    tree.remove(workspace)
