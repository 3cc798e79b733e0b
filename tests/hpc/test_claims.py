from __future__ import annotations

import json
import os
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from hpc.claims import acquire, holder_of

Start = Callable[..., "subprocess.Popen[str]"]

CLAIM_AND_WAIT = """
import sys
from pathlib import Path
from hpc.claims import acquire
for name in sys.argv[3:]:
    assert acquire(Path(sys.argv[1]), name, sys.argv[2], 3600.0)
print("claimed", flush=True)
input()
"""

CLAIM_WHEN_TOLD = """
import sys
from pathlib import Path
from hpc.claims import acquire
folder, owner, names = Path(sys.argv[1]), sys.argv[2], sys.argv[3:]
print("ready", flush=True)
while not (folder / ".go").exists():
    pass
print(*[name for name in names if acquire(folder, name, owner, 60.0)], flush=True)
input()
"""

COUNT_UNDER_A_CLAIM = """
import sys
from pathlib import Path
from hpc.claims import acquire
folder, counter = Path(sys.argv[1]), Path(sys.argv[3])
done = 0
while done < 25:
    if claim := acquire(folder, "counter", sys.argv[2], 60.0):
        counter.write_text(str(int(counter.read_text()) + 1))
        done += 1
        claim.release()
"""

NAMES = [f"000003-{index:04d}" for index in range(12)]


def later(seconds: float) -> Callable[[], float]:
    return lambda: time.time() + seconds


def race(start: Start, folder: Path) -> list[str]:
    """Four processes claim all names at the same moment; what each of them got, in one list."""
    racers = [start(CLAIM_WHEN_TOLD, folder, f"racer {i}", *NAMES[i * 3 :], *NAMES[: i * 3]) for i in range(4)]
    for racer in racers:
        assert racer.stdout is not None and racer.stdout.readline() == "ready\n"
    (folder / ".go").touch()
    return [name for racer in racers if racer.stdout is not None for name in racer.stdout.readline().split()]


def test_work_is_held_until_it_is_released(tmp_path: Path) -> None:
    claim = acquire(tmp_path, "group", "a", 60.0)
    assert claim is not None and claim.previous_owner is None
    assert acquire(tmp_path, "group", "b", 60.0) is None
    assert acquire(tmp_path, "group", "a", 60.0) is None  # not even twice by the same
    assert holder_of(tmp_path, "group") == "a"
    claim.release()
    assert holder_of(tmp_path, "group") is None and list(tmp_path.iterdir()) == []
    assert acquire(tmp_path, "group", "b", 60.0) is not None


def test_similar_names_are_other_work(tmp_path: Path) -> None:
    assert all(acquire(tmp_path, name, "a", 60.0) for name in ("group", "group.1", "group.1.0", "grou"))


def test_a_lease_that_has_run_out_is_taken_over_and_its_first_owner_notices(tmp_path: Path) -> None:
    first = acquire(tmp_path, "group", "a", 60.0)
    assert acquire(tmp_path, "group", "b", 60.0, later(50)) is None
    second = acquire(tmp_path, "group", "b", 60.0, later(70))
    assert first is not None and second is not None
    assert second.previous_owner == "a" and holder_of(tmp_path, "group") == "b"
    assert not first.renew() and not first.held()
    first.release()  # frees nothing that another holds
    assert second.renew() and holder_of(tmp_path, "group") == "b"
    third = acquire(tmp_path, "group", "c", 60.0, later(140))
    assert third is not None and third.previous_owner == "b"
    third.release()
    assert list(tmp_path.iterdir()) == []


def test_a_slow_owner_does_not_take_the_claim_of_a_later_one_for_its_own(tmp_path: Path) -> None:
    slow = acquire(tmp_path, "group", "a", 60.0)
    taker = acquire(tmp_path, "group", "b", 60.0, later(70))
    assert slow is not None and taker is not None
    taker.release()
    assert acquire(tmp_path, "group", "c", 60.0) is not None
    slow.release()
    assert not slow.renew() and holder_of(tmp_path, "group") == "c"


def test_a_renewed_lease_begins_anew(tmp_path: Path) -> None:
    claim = acquire(tmp_path, "group", "a", 60.0, later(50))
    assert claim is not None and claim.renew()
    assert acquire(tmp_path, "group", "b", 60.0, later(100)) is None
    assert acquire(tmp_path, "group", "b", 60.0, later(120)) is not None


def test_a_released_claim_cannot_be_renewed(tmp_path: Path) -> None:
    claim = acquire(tmp_path, "group", "a", 60.0)
    assert claim is not None
    claim.release()
    assert not claim.renew()


def test_a_killed_process_of_this_machine_costs_no_waiting(tmp_path: Path, start: Start) -> None:
    process = start(CLAIM_AND_WAIT, tmp_path, "worker-0", "group")
    assert process.stdout is not None and process.stdout.readline() == "claimed\n"
    assert acquire(tmp_path, "group", "worker-0", 3600.0) is None  # the same name, but it lives
    process.kill()
    process.wait()
    claim = acquire(tmp_path, "group", "worker-1", 3600.0)
    assert claim is not None and claim.previous_owner == "worker-0"


@pytest.mark.parametrize(("owner", "taken"), [("worker-0", True), ("worker-1", False)])
def test_a_requeued_owner_has_its_claim_back_from_another_machine(tmp_path: Path, owner: str, taken: bool) -> None:
    assert acquire(tmp_path, "group", "worker-0", 60.0) is not None
    [file] = tmp_path.iterdir()
    content = json.loads(file.read_text())
    content["process"] |= {"boot": "of another machine", "host": "node-7"}
    file.write_text(json.dumps(content))
    assert (acquire(tmp_path, "group", owner, 60.0) is not None) is taken


def test_of_four_processes_one_gets_each_piece_of_work(tmp_path: Path, start: Start) -> None:
    assert sorted(race(start, tmp_path)) == NAMES


def test_of_four_processes_one_takes_over_each_lease_that_has_run_out(tmp_path: Path, start: Start) -> None:
    for name in NAMES:
        assert acquire(tmp_path, name, "slow", 60.0)
        os.utime(tmp_path / f"{name}.0", (time.time() - 100, time.time() - 100))
    assert sorted(race(start, tmp_path)) == NAMES


def test_of_four_processes_one_takes_over_the_work_of_a_killed_one(tmp_path: Path, start: Start) -> None:
    process = start(CLAIM_AND_WAIT, tmp_path, "killed", *NAMES)
    assert process.stdout is not None and process.stdout.readline() == "claimed\n"
    process.kill()
    process.wait()
    assert sorted(race(start, tmp_path)) == NAMES


def test_no_two_hold_the_same_work_while_claims_come_and_go(tmp_path: Path, start: Start) -> None:
    counter = tmp_path / "counter"
    counter.write_text("0")
    processes = [start(COUNT_UNDER_A_CLAIM, tmp_path / "claims", f"worker-{i}", counter) for i in range(4)]
    assert [process.wait() for process in processes] == [0, 0, 0, 0]
    assert counter.read_text() == "100"
