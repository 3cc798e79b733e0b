"""A rollout worker: claims groups, plays them, seals their trajectories, until the campaign wants it to end."""

from __future__ import annotations

import logging
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Executor, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from hpc.claims import Claim, acquire
from hpc.sandbox.protocol import Sandbox, SandboxSpec
from hpc.storage.journal import Journal
from rlhpc.errors import PreemptedError, TaskError
from rlhpc.paths import RunPaths
from rlhpc.reward.grading import grade
from rlhpc.rollout.episode import play_group
from rlhpc.rollout.group import begin_group, group_position, to_trajectory
from rlhpc.rollout.ledger import GroupLedger, read_history
from rlhpc.rollout.policy.source import PolicySource
from rlhpc.rollout.recovery import GroupHistory
from rlhpc.rollout.settings import RolloutSettings
from rlhpc.rollout.stage import Stage
from rlhpc.tasks.harbor import initial_workspace
from rlhpc.trajectory.segment import seal_segment
from rlhpc.types import Group, Task, Trajectory, Wave
from rlhpc.waves import done_groups, list_waves, mark_done

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class Worker:
    """What one worker has at hand for as long as it lives."""

    paths: RunPaths
    name: str
    """Unique among living workers; the same after a requeue, so that the worker finds its journal."""
    settings: RolloutSettings
    tasks: Mapping[str, Task]
    open_sandbox: Callable[[SandboxSpec], Sandbox]
    policies: PolicySource
    journal: Journal
    executor: Executor
    should_stop: Callable[[], bool]
    clock: Callable[[], float]


def run_worker(
    paths: RunPaths,
    name: str,
    settings: RolloutSettings,
    tasks: Mapping[str, Task],
    open_sandbox: Callable[[SandboxSpec], Sandbox],
    model: Path,
    *,
    should_stop: Callable[[], bool] = lambda: False,
    clock: Callable[[], float] = time.monotonic,
) -> None:
    """Work until ``paths.stop`` exists or ``should_stop`` says so; what is unfinished then can be resumed.

    Args:
        paths: The run.
        name: Unique among living workers; the same after a requeue, so that the worker finds its journal.
        settings: How episodes are played.
        tasks: By task id.
        open_sandbox: Starts a sandbox; the default image and limits are its business.
        model: Hugging Face directory that the run starts from, for the tokenizer.
        should_stop: Asked between rounds.
        clock: Seconds, for time budgets.

    Raises:
        TaskError: a wave names a task that is not among ``tasks``.
        PolicyError: a wave names a policy that is not published.
    """

    def ending() -> bool:
        return should_stop() or paths.stop.exists()

    with Journal(paths.journal(name)) as journal, ThreadPoolExecutor(settings.parallel_sandboxes) as executor:
        worker = Worker(
            paths=paths,
            name=name,
            settings=settings,
            tasks=tasks,
            open_sandbox=open_sandbox,
            policies=PolicySource(paths, model, settings),
            journal=journal,
            executor=executor,
            should_stop=ending,
            clock=clock,
        )
        while not ending():
            if not _work_once(worker):
                time.sleep(settings.poll_seconds)


def _work_once(worker: Worker) -> bool:
    """Claim and finish one group; False if there is none."""
    for wave, group in open_groups(worker.paths):
        claim = acquire(worker.paths.claims(wave.number), group.group_id, worker.name, worker.settings.lease_seconds)
        if claim is None:
            continue
        with _renewed(claim, worker.settings.lease_seconds / 4):
            # it may have been done since it was listed
            if group.group_id not in done_groups(worker.paths, wave.number):
                _finish_group(worker, wave, group, claim.previous_owner)
        return True
    return False


def open_groups(paths: RunPaths) -> Iterator[tuple[Wave, Group]]:
    """Groups that are not done, oldest wave first."""
    for wave in list_waves(paths):
        done = done_groups(paths, wave.number)
        yield from ((wave, group) for group in wave.groups if group.group_id not in done)


@contextmanager
def _renewed(claim: Claim, seconds: float) -> Iterator[None]:
    """Keep a claim alive in the background, and release it in the end."""
    ended = threading.Event()

    def renew() -> None:
        while not ended.wait(seconds):
            try:
                if not claim.renew():
                    log.warning("claim on %s was taken over; both finish it, the first one counts", claim.name)
                    return
            except OSError as error:  # the file system may be away for a moment
                log.warning("claim on %s could not be renewed: %s", claim.name, error)

    thread = threading.Thread(target=renew, name="renew-claim", daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()
        claim.release()


def _finish_group(worker: Worker, wave: Wave, group: Group, previous_owner: str | None) -> None:
    """Play a group, from where a previous worker left it if one did, and seal it."""
    started = time.monotonic()
    task = _task(worker, group)
    ledger = GroupLedger(worker.journal, group.group_id)
    history = _history(worker, group, previous_owner, ledger)
    episodes = begin_group(wave, group, task, history, worker.policies.prompt, worker.settings)
    stage = _stage(worker, wave, task, ledger, group_position(episodes))
    try:
        finished = play_group(stage, episodes)
    except PreemptedError:
        log.info("group %s is left unfinished; its journal is durable", group.group_id)
        return
    weights, clip = worker.settings.reward_weights, worker.settings.reward_clip
    trajectories = [to_trajectory(episode, group, weights, clip) for episode in finished]
    number = int(group.group_id.rsplit("-", 1)[1])
    segment = worker.paths.segment(wave.number, worker.name, number)
    seal_segment(segment, trajectories, worker.name)
    mark_done(worker.paths, wave.number, group.group_id, segment.name)
    worker.journal.clear()
    log.info("%s", summary(wave, group, trajectories, time.monotonic() - started))


def _task(worker: Worker, group: Group) -> Task:
    try:
        return worker.tasks[group.task_id]
    except KeyError:
        raise TaskError(f"group {group.group_id}: task {group.task_id!r} is not in the task set of this run") from None


def _history(worker: Worker, group: Group, previous_owner: str | None, ledger: GroupLedger) -> GroupHistory:
    """What is known of the group, from this worker's journal or the dead one's, whichever has more.

    A dead worker's records are copied, so that this worker's journal alone is enough for the next.
    """
    own = read_history(worker.paths.journal(worker.name), group.group_id)
    if previous_owner is None or previous_owner == worker.name:
        return own
    other = read_history(worker.paths.journal(previous_owner), group.group_id)
    if len(other.rounds) <= len(own.rounds):
        return own
    log.info("group %s goes on from round records of %s", group.group_id, previous_owner)
    ledger.record_actions(other.actions)
    ledger.record_rounds(other.rounds)
    return other


def _stage(worker: Worker, wave: Wave, task: Task, ledger: GroupLedger, position: int) -> Stage:
    spec = SandboxSpec(source=initial_workspace(task))
    return Stage(
        policy=worker.policies.policy(wave, task, position),
        sampling=wave.sampling,
        prompt=worker.policies.prompt,
        open_sandbox=partial(worker.open_sandbox, spec),
        grade=lambda workspace: grade(task, workspace, worker.open_sandbox),
        ledger=ledger,
        executor=worker.executor,
        settings=worker.settings,
        should_stop=worker.should_stop,
        clock=worker.clock,
    )


def summary(wave: Wave, group: Group, trajectories: Sequence[Trajectory], seconds: float) -> str:
    """One line about a finished group."""
    rounds = [r for trajectory in trajectories for r in trajectory.rounds]
    reasons = Counter(trajectory.stop_reason.value for trajectory in trajectories)
    return (
        f"wave {wave.number} ({wave.kind.value}) group {group.group_id} task {group.task_id}: "
        + ", ".join(f"{count} {reason}" for reason, count in sorted(reasons.items()))
        + f"; {len(rounds)} rounds in {seconds:.1f} s, of these {_generate_seconds(trajectories):.1f} s generating"
    )


def _generate_seconds(trajectories: Sequence[Trajectory]) -> float:
    """Each batch counts once: its seconds stand in every row."""
    by_round: dict[int, float] = {}
    for r in (r for trajectory in trajectories for r in trajectory.rounds):
        by_round[r.index] = max(by_round.get(r.index, 0.0), r.generate_seconds)
    return sum(by_round.values())
