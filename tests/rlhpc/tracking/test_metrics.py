from __future__ import annotations

import math
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from rlhpc.paths import RunPaths
from rlhpc.tracking.metrics import MetricsCollector, MetricsWriter, merge_metrics, read_metrics, series


@pytest.fixture
def paths(tmp_path: Path) -> RunPaths:
    return RunPaths(tmp_path)


def writer(paths: RunPaths, job: str) -> MetricsWriter:
    return MetricsWriter(paths.job_metrics / f"{job}.jsonl", job)


def test_what_is_written_is_read(paths: RunPaths) -> None:
    writer(paths, "learner").write(3, {"loss": 0.5, "ratio": math.inf})
    (event,) = read_metrics(paths.job_metrics / "learner.jsonl")
    assert (event.step, event.job, event.sequence, event.values) == (3, "learner", 1, {"loss": 0.5, "ratio": None})
    assert abs(event.time - time.time()) < 60


def test_a_restarted_job_goes_on_and_does_not_repeat_a_step_it_does_again(paths: RunPaths) -> None:
    writer(paths, "learner").write(1, {"loss": 0.5})
    again = writer(paths, "learner")
    again.write(1, {"loss": 0.5})
    again.write(1, {"learn_seconds": 2})
    again.write(2, {"loss": 0.4})
    events = read_metrics(paths.job_metrics / "learner.jsonl")
    assert [(event.sequence, event.step) for event in events] == [(1, 1), (2, 1), (3, 2)]


def test_a_torn_last_line_is_passed_over_then_cut_off(paths: RunPaths) -> None:
    file = paths.job_metrics / "learner.jsonl"
    writer(paths, "learner").write(1, {"loss": 0.5})
    with file.open("a") as torn:
        torn.write('{"time": 1, "st')
    assert len(read_metrics(file)) == len(merge_metrics(paths)) == 1
    writer(paths, "learner").write(2, {"loss": 0.4})
    assert [event.step for event in merge_metrics(paths)] == [2]


def test_a_damaged_line_costs_only_itself(paths: RunPaths) -> None:
    lines = writer(paths, "learner")
    for step in range(3):
        lines.write(step, {"loss": 0.5})
    file = paths.job_metrics / "learner.jsonl"
    content = file.read_bytes().splitlines(keepends=True)
    file.write_bytes(content[0] + b"\xff{]\n17\n" + content[2])
    assert [event.step for event in read_metrics(file)] == [0, 2]


def test_lines_of_all_jobs_are_gathered_once(paths: RunPaths) -> None:
    jobs = [writer(paths, job) for job in ("learner", "rollout-0")]
    collector = MetricsCollector(paths)
    for step in range(3):
        for job in jobs:
            job.write(step, {"speed": step})
        assert len(collector.collect()) == 2
    assert collector.collect() == MetricsCollector(paths).collect() == []
    assert sorted((event.job, event.step) for event in read_metrics(paths.metrics)) == [
        (job, step) for job in ("learner", "rollout-0") for step in range(3)
    ]


def test_a_series_takes_the_last_value_of_each_step(paths: RunPaths) -> None:
    first, second = writer(paths, "a"), writer(paths, "b")
    first.write(2, {"speed": 1})
    first.write(1, {"speed": 5, "other": 0})
    merge_metrics(paths)
    second.write(2, {"speed": 3})
    merge_metrics(paths)
    assert series(read_metrics(paths.metrics), "speed") == [(1, 5), (2, 3)]


WRITE = """
import pathlib, sys
from rlhpc.paths import RunPaths
from rlhpc.tracking.metrics import MetricsWriter
paths = RunPaths(pathlib.Path(sys.argv[1]))
writer = MetricsWriter(paths.job_metrics / "learner.jsonl", "learner")
print("ready", flush=True)
for step in range(10**6):
    writer.write(step, {"x" * 500: step})
"""

COLLECT = """
import pathlib, sys
from rlhpc.paths import RunPaths
from rlhpc.tracking.metrics import MetricsCollector
collector = MetricsCollector(RunPaths(pathlib.Path(sys.argv[1])))
print("ready", flush=True)
while True:
    collector.collect()
"""


def test_kill_of_writer_and_collector_at_any_instant_neither_loses_nor_repeats_a_line(paths: RunPaths) -> None:
    chance = random.Random(0)
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    for _ in range(5):
        commands = [[sys.executable, "-c", program, str(paths.root)] for program in (WRITE, COLLECT)]
        processes = [subprocess.Popen(c, stdout=subprocess.PIPE, env=environment) for c in commands]
        for process in processes:
            assert process.stdout is not None
            process.stdout.readline()
        time.sleep(chance.uniform(0.02, 0.2))
        for process in processes:
            process.send_signal(signal.SIGKILL)
            process.communicate()
    merge_metrics(paths)
    written = read_metrics(paths.job_metrics / "learner.jsonl")
    assert len(written) > 5
    assert [event.sequence for event in read_metrics(paths.metrics)] == list(range(1, len(written) + 1))
    assert [event.step for event in written] == list(range(len(written)))
