"""Checkpoint folders appear complete or not at all; a damaged one costs one step, never the run."""

import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from rlhpc.errors import CheckpointError
from rlhpc.learner.checkpoint import (
    begin_checkpoint,
    finish_checkpoint,
    latest_valid_checkpoint,
    verify_checkpoint,
)
from rlhpc.learner.megatron import Learner, MicroBatch
from rlhpc.learner.megatron_state import load_state, save_state


def write(folder: Path, number: int, content: bytes = b"weights", keep: int = 2) -> Path:
    unfinished = begin_checkpoint(folder, number)
    (unfinished / "shard").write_bytes(content)
    return finish_checkpoint(unfinished, {"step": number}, keep=keep)


def test_the_newest_is_found_with_its_progress(tmp_path: Path) -> None:
    for number in (9, 10):
        write(tmp_path / "checkpoints", number)
    found = latest_valid_checkpoint(tmp_path / "checkpoints", tmp_path / "aside")
    assert found is not None and (found.number, found.progress) == (10, {"step": 10})


def test_without_any_there_is_none(tmp_path: Path) -> None:
    assert latest_valid_checkpoint(tmp_path / "checkpoints", tmp_path / "aside") is None


def test_only_the_newest_are_kept(tmp_path: Path) -> None:
    for number in range(5):
        write(tmp_path, number, keep=3)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["step-000002", "step-000003", "step-000004"]


def flip_a_bit(path: Path) -> None:
    content = bytearray((path / "shard").read_bytes())
    content[3] ^= 1
    (path / "shard").write_bytes(content)


DAMAGES: dict[str, Callable[[Path], None]] = {
    "bit flip": flip_a_bit,
    "truncation": lambda path: os.truncate(path / "shard", 2),
    "lost file": lambda path: (path / "shard").unlink(),
    "lost manifest": lambda path: (path / "manifest.json").unlink(),
    "torn manifest": lambda path: os.truncate(path / "manifest.json", 20),
    "empty manifest": lambda path: (path / "manifest.json").write_text("[]"),
    "damaged progress": lambda path: os.truncate(path / "progress.json", 3),
}


@pytest.mark.parametrize("damage", DAMAGES.values(), ids=DAMAGES.keys())
def test_a_damaged_newest_one_is_moved_aside_with_a_reason(tmp_path: Path, damage: Callable[[Path], None]) -> None:
    checkpoints, aside = tmp_path / "checkpoints", tmp_path / "aside"
    write(checkpoints, 1)
    damage(write(checkpoints, 2))
    found = latest_valid_checkpoint(checkpoints, aside)
    assert found is not None and found.number == 1
    assert (aside / "checkpoint-step-000002").is_dir()
    assert "step-000002" in (aside / "checkpoint-step-000002.reason.txt").read_text()
    with pytest.raises(CheckpointError):
        verify_checkpoint(aside / "checkpoint-step-000002")


def test_what_a_killed_writer_leaves_is_no_checkpoint(tmp_path: Path) -> None:
    write(tmp_path / "checkpoints", 1)
    code = (
        "import os, signal, sys\n"
        "from pathlib import Path\n"
        "from rlhpc.learner.checkpoint import begin_checkpoint\n"
        "folder = begin_checkpoint(Path(sys.argv[1]), 2)\n"
        "(folder / 'shard').write_bytes(b'half')\n"
        "os.kill(os.getpid(), signal.SIGKILL)"
    )
    killed = subprocess.run([sys.executable, "-c", code, str(tmp_path / "checkpoints")], check=False)
    assert killed.returncode == -signal.SIGKILL
    found = latest_valid_checkpoint(tmp_path / "checkpoints", tmp_path / "aside")
    assert found is not None and found.number == 1
    write(tmp_path / "checkpoints", 2)
    assert sorted(path.name for path in (tmp_path / "checkpoints").iterdir()) == ["step-000001", "step-000002"]


def updated(learner: Learner) -> tuple[float, float]:
    tokens = torch.arange(60).reshape(2, 30) % 256
    selected = torch.arange(20)
    batch = MicroBatch(token_ids=tokens, selected=selected, targets=tokens.flatten()[selected + 1])
    statistics = learner.accumulate(
        [batch],
        lambda index, logprobs, entropies: (-logprobs.mean(), {"loss": -logprobs.mean().item()}),
        temperature=1.0,
    )
    return statistics[0]["loss"], learner.apply(1e-2)


@pytest.mark.parametrize("updates", [0, 3])
def test_training_goes_on_from_a_saved_state_with_the_same_bits(
    make_learner: Callable[[], Learner], tmp_path: Path, updates: int
) -> None:
    learner = make_learner()
    for _ in range(updates):
        updated(learner)
    save_state(learner, tmp_path)
    expected = [updated(learner), updated(learner), torch.rand(1).item()]

    resumed = make_learner()
    torch.rand(1)  # whatever random state there is is replaced
    load_state(resumed, tmp_path)
    assert [updated(resumed), updated(resumed), torch.rand(1).item()] == expected
    for parameter, expected_parameter in zip(resumed.model.parameters(), learner.model.parameters(), strict=True):
        assert torch.equal(parameter, expected_parameter)
