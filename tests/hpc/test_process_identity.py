from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Callable
from dataclasses import replace

from hpc.process_identity import ProcessIdentity, is_dead, this_process

Start = Callable[..., "subprocess.Popen[str]"]

SAY_WHO_I_AM = """
import dataclasses, json
from hpc.process_identity import this_process
print(json.dumps(dataclasses.asdict(this_process())), flush=True)
input()
"""


def identity(process: subprocess.Popen[str]) -> ProcessIdentity:
    assert process.stdout is not None
    return ProcessIdentity(**json.loads(process.stdout.readline()))


def test_this_process_lives() -> None:
    assert not is_dead(this_process())


def test_a_killed_process_is_dead_also_before_its_parent_looks(start: Start) -> None:
    process = start(SAY_WHO_I_AM)
    who = identity(process)
    assert who.pid == process.pid and not is_dead(who)
    process.kill()
    os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)  # it has ended, and its parent may still ask how
    assert is_dead(who)
    process.wait()
    assert is_dead(who)


def test_a_process_id_given_to_another_process_is_no_sign_of_life() -> None:
    assert is_dead(replace(this_process(), started=1))


def test_of_other_machines_nothing_is_known() -> None:
    assert not is_dead(replace(this_process(), boot="another", pid=2**22 + 1))
