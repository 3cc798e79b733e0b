from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from hpc.errors import LaunchError
from hpc.job import JobHandle, JobSpec, JobState, JobStatus, Resources
from hpc.launch import LocalLauncher, SlurmLauncher
from hpc.submission import log_files

SAVES_WHEN_TOLD = """
import pathlib, sys
from hpc.preemption import StopFlag
import time
stop, folder = StopFlag.install(), pathlib.Path(sys.argv[1])
if (folder / "saved").exists():
    sys.exit(0)
(folder / "started").write_text("")
while not stop.requested():
    time.sleep(0.02)
(folder / "saved").write_text(stop.signal_name)
sys.exit(75)
"""


@pytest.fixture(autouse=True)
def our_packages(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(filter(None, sys.path)))


@pytest.fixture
def launcher(tmp_path: Path) -> Iterator[LocalLauncher]:
    made = LocalLauncher(tmp_path / "jobs here")
    yield made
    until(lambda: made.cancel(made.running()) or not made.running())


def until(condition: Callable[[], object], seconds: float = 60.0) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "waited in vain"
        time.sleep(0.05)


def finished(launcher: LocalLauncher, *handles: JobHandle) -> list[JobStatus]:
    until(lambda: all(status.finished for status in launcher.poll(handles).values()))
    return list(launcher.poll(handles).values())


def python(name: str, program: str, *arguments: object, array: int = 1, **resources: object) -> JobSpec:
    command = (sys.executable, "-c", program, *map(str, arguments))
    return JobSpec(name=name, command=command, array=array, resources=Resources(**resources))  # type: ignore[arg-type]


def test_each_element_of_an_array_knows_its_index_its_environment_and_its_end(launcher: LocalLauncher) -> None:
    program = "import os; print(os.environ['HPC_ARRAY_INDEX'], os.environ['COLOUR'], os.environ['HPC_ENDS_AT'])"
    handles = launcher.submit(
        python("greet", program, array=2, environment={"COLOUR": "it's \"red\""}, setup=("export UNUSED=1",))
    )
    assert [status.state for status in finished(launcher, *handles)] == [JobState.SUCCEEDED] * 2
    for index, handle in enumerate(handles):
        log = log_files(handle)[0].read_text()
        assert f"{index} it's \"red\" " in log
    assert launcher.running() == ()


def test_a_command_that_fails_is_a_failed_job_with_its_exit_code(launcher: LocalLauncher) -> None:
    (status,) = finished(launcher, *launcher.submit(python("fails", "raise SystemExit(3)")))
    assert status.state is JobState.FAILED
    assert "exit code 3" in status.detail


def test_a_set_up_line_that_fails_fails_the_job(launcher: LocalLauncher) -> None:
    (status,) = finished(launcher, *launcher.submit(python("fails", "print('not reached')", setup=("false",))))
    assert status.state is JobState.FAILED


def test_a_cancelled_job_saves_its_state_first(launcher: LocalLauncher, tmp_path: Path) -> None:
    handles = launcher.submit(python("works", SAVES_WHEN_TOLD, tmp_path))
    until((tmp_path / "started").exists)
    launcher.cancel(handles)
    assert [status.state for status in finished(launcher, *handles)] == [JobState.PREEMPTED]
    assert (tmp_path / "saved").read_text() == "SIGTERM"


def test_a_job_near_the_end_of_its_time_saves_its_state_and_is_requeued(
    launcher: LocalLauncher, tmp_path: Path
) -> None:
    handles = launcher.submit(python("works", SAVES_WHEN_TOLD, tmp_path, time_minutes=1, signal_seconds=56))
    assert [status.state for status in finished(launcher, *handles)] == [JobState.SUCCEEDED]
    assert (tmp_path / "saved").read_text() == "SIGUSR2"


def test_a_command_that_heeds_no_signal_is_killed_after_its_grace_time(launcher: LocalLauncher, tmp_path: Path) -> None:
    program = "import pathlib, signal, sys, time; signal.signal(15, signal.SIG_IGN)\n"
    program += "pathlib.Path(sys.argv[1]).write_text(''); time.sleep(600)"
    handles = launcher.submit(python("deaf", program, tmp_path / "started", signal_seconds=1))
    until((tmp_path / "started").exists)
    launcher.cancel(handles)
    (status,) = finished(launcher, *handles)
    assert status.state is JobState.FAILED
    assert "SIGKILL" in status.detail


def test_a_killed_job_is_lost_and_its_command_dies_with_it(launcher: LocalLauncher, tmp_path: Path) -> None:
    (handle,) = launcher.submit(python("works", WRITES_PID, tmp_path / "pid"))
    until((tmp_path / "pid").exists)
    os.kill(int(handle.job_id), signal.SIGKILL)
    (status,) = finished(launcher, handle)
    assert status.state is JobState.LOST
    until(lambda: not is_running(int((tmp_path / "pid").read_text())))


WRITES_PID = """
import os, pathlib, sys, time
beside = pathlib.Path(sys.argv[1] + ".new")
beside.write_text(str(os.getpid()))
beside.rename(sys.argv[1])
time.sleep(600)
"""

SUBMITS = f"""
import pathlib, sys, time
from hpc.job import JobSpec, Resources
from hpc.launch import LocalLauncher
command = (sys.executable, "-c", {WRITES_PID!r}, sys.argv[2])
LocalLauncher(pathlib.Path(sys.argv[1])).submit(
    JobSpec(name="works", command=command, resources=Resources(signal_seconds=2))
)
time.sleep(600)
"""


def is_running(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except (FileNotFoundError, ProcessLookupError):
        return False


def submitter(tmp_path: Path) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-c", SUBMITS, str(tmp_path / "jobs"), str(tmp_path / "pid")]
    process = subprocess.Popen(command, process_group=0)
    until((tmp_path / "pid").exists)
    return process


def test_jobs_of_a_killed_submitter_are_found_and_end_themselves(tmp_path: Path) -> None:
    process = submitter(tmp_path)
    restarted = LocalLauncher(tmp_path / "jobs")
    (before,) = restarted.running()
    (tmp_path / "jobs" / "works-0001" / "job.json").unlink()  # as if killed before it could write the record
    (unrecorded,) = restarted.running()
    assert unrecorded == before
    process.kill()
    process.wait()
    until(lambda: restarted.running() == ())
    assert not is_running(int((tmp_path / "pid").read_text()))


def test_killing_the_process_group_of_a_submitter_leaves_nothing_behind(tmp_path: Path) -> None:
    process = submitter(tmp_path)
    os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    until(lambda: not is_running(int((tmp_path / "pid").read_text())))
    assert LocalLauncher(tmp_path / "jobs").running() == ()


def test_rendering_shows_the_script_and_submits_nothing(tmp_path: Path) -> None:
    spec = python(
        "learn", "print()", array=3, partition="gpu", gpus_per_node=2, signal_seconds=120, array_parallelism=2,
        setup=("module load cuda",), srun_arguments=("--mpi=pmix",), additional_parameters={"exclusive": True},
    )
    script = SlurmLauncher(tmp_path / "with space").render(spec)
    for directive in (
        "--partition=gpu", "--gpus-per-node=2", "--array=0-2%2", "--signal=USR2@120", "--requeue", "--exclusive",
        "--mem=2048M", "--time=60", "--job-name=learn", f"--comment='{tmp_path}/with space/learn-0001'",
    ):
        assert f"\n#SBATCH {directive}\n" in script
    assert "\nmodule load cuda\n" in script
    assert "--mpi=pmix" in script
    subprocess.run(["bash", "-n"], input=script, text=True, check=True)
    assert not (tmp_path / "with space").exists()


def test_rendering_a_local_job_gives_its_command_lines(tmp_path: Path) -> None:
    lines = LocalLauncher(tmp_path).render(python("learn", "print('x y')", array=2)).splitlines()
    outputs = [subprocess.run(line, shell=True, capture_output=True, text=True, check=True).stdout for line in lines]
    assert outputs == ["x y\n", "x y\n"]
    assert "HPC_ARRAY_INDEX=1" in lines[1]


def test_a_name_that_would_change_the_paths_of_logs_is_refused(tmp_path: Path) -> None:
    with pytest.raises(LaunchError, match="'100%'"):
        LocalLauncher(tmp_path).submit(JobSpec(name="100%", command=("true",)))
