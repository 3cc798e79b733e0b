from __future__ import annotations

from pathlib import Path

from hpc.storage.set_aside import move_aside


def test_damaged_files_of_one_name_are_all_kept_each_with_its_reason(tmp_path: Path) -> None:
    for content in ("one", "two"):
        file = tmp_path / "000003" / "segment"
        file.parent.mkdir(exist_ok=True)
        file.write_text(content)
        move_aside(file, tmp_path / "set_aside", f"damage {content}")
        assert not file.exists()
    kept = sorted((tmp_path / "set_aside").glob("000003-segment.*[!t]"))
    reasons = {file.read_text(): file.with_name(f"{file.name}.reason.txt").read_text() for file in kept}
    assert reasons.keys() == {"one", "two"}
    assert all(reason.endswith(f"damage {content}\n") for content, reason in reasons.items())


def test_a_file_that_another_has_moved_is_no_fault(tmp_path: Path) -> None:
    move_aside(tmp_path / "gone", tmp_path / "set_aside", "damage")
