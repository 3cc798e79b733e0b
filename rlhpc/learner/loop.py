"""The learner's job: supervised stage, then one optimisation step per wave, each checkpointed and published.

Every change of state is durable before the next begins, so the process may be killed at any instant; run again, it goes
on from the newest valid checkpoint and computes the same numbers. It meets the rollout workers only on disk.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

from rlhpc.errors import CheckpointError, PreemptedError
from rlhpc.learner.checkpoint import begin_checkpoint, finish_checkpoint, latest_valid_checkpoint
from rlhpc.learner.losses import AlgorithmSettings
from rlhpc.learner.megatron import Learner, from_first_rank, process_groups
from rlhpc.learner.megatron_state import load_state, save_state
from rlhpc.learner.progress import Progress, progress_from_json
from rlhpc.learner.publish import write_policy
from rlhpc.learner.settings import LearnerSettings
from rlhpc.learner.sft import supervised_samples, supervised_steps
from rlhpc.learner.shape import read_shape
from rlhpc.learner.step import train_on_wave
from rlhpc.paths import RunPaths
from rlhpc.policies import publish_policy
from rlhpc.trajectory.segment import read_wave_trajectories
from rlhpc.types import Wave, WaveKind
from rlhpc.waves import list_waves, wave_finished

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class Surroundings:
    """What connects the learner with the world around it; only rank 0 uses it."""

    log: Callable[[int, dict[str, float]], None]
    """Takes a step and its metrics. After a kill a step may come again, with the same numbers, times aside."""
    should_stop: Callable[[], bool] = lambda: False
    """The campaign wants its jobs to end."""
    preempted: Callable[[], bool] = lambda: False
    """The scheduler takes the machine away."""
    poll_seconds: float = 0.5
    """Time between looks for a finished wave."""


def run_learner(
    paths: RunPaths,
    source: Path,
    *,
    algorithm: AlgorithmSettings,
    settings: LearnerSettings,
    steps: int,
    surroundings: Surroundings,
) -> int:
    """Learn until ``steps`` optimisation steps are done or the campaign stops; all ranks call it.

    Args:
        paths: The run directory.
        source: Hugging Face directory that training begins with.
        algorithm: The objective.
        settings: Everything else of the learner.
        steps: Optimisation steps of the whole run, those of earlier processes included.
        surroundings: Metrics out, signals in.

    Returns:
        The number of optimisation steps that are done.

    Raises:
        PreemptedError: the scheduler takes the machine away; the state is saved.
    """
    with process_groups(settings.parallel, seed=settings.seed, threads=settings.threads):
        job = _Job(paths=paths, source=source, algorithm=algorithm, settings=settings, surroundings=surroundings)
        learner, progress = job.resume()
        if not progress.sft.complete:
            progress = job.supervise(learner, progress)
        while progress.sft.complete and progress.step < steps:
            wave = job.wait_for(WaveKind.TRAIN, progress.step + 1)
            if wave is None:
                break
            progress = job.learn(learner, progress, wave)
        return progress.step


@dataclass(frozen=True, slots=True, kw_only=True)
class _Job:
    """The fixed facts of one learner process; the model and its progress are passed along."""

    paths: RunPaths
    source: Path
    algorithm: AlgorithmSettings
    settings: LearnerSettings
    surroundings: Surroundings

    def resume(self) -> tuple[Learner, Progress]:
        """The state of the newest valid checkpoint or of the source model; publishes what is not yet published."""
        found = from_first_rank(lambda: latest_valid_checkpoint(self.paths.checkpoints, self.paths.set_aside))
        progress = Progress() if found is None else _progress_of(found.path, found.progress)
        in_sft = self.settings.sft.steps > progress.sft.steps and not progress.sft.complete
        learner = Learner(read_shape(self.source), (self.settings.sft if in_sft else self.settings).optimizer)
        if found is None:
            learner.load_hugging_face(self.source)
        else:
            load_state(learner, found.path)
            logger.info("resumed %s: supervised step %d, step %d", found.path, progress.sft.steps, progress.step)
        if not in_sft:
            progress = replace(progress, sft=replace(progress.sft, complete=True))
            self.publish(learner, progress)
        return learner, progress

    def supervise(self, learner: Learner, progress: Progress) -> Progress:
        """Train on the reference wave and publish version 0; returns early when the campaign stops.

        Raises:
            PreemptedError: after saving the state.
        """
        wave = self.wait_for(WaveKind.REFERENCE)
        if wave is None:
            return progress
        samples = supervised_samples(read_wave_trajectories(self.paths, wave))
        for sft, metrics in supervised_steps(learner, samples, self.settings, progress.sft):
            progress = replace(progress, sft=sft)
            self.log(sft.steps, metrics)
            stop, preempted = self.signals()
            if sft.complete:
                learner.reset_optimizer(self.settings.optimizer)
            if sft.complete or stop or preempted or sft.steps % self.settings.sft.checkpoint_every == 0:
                self.save(learner, progress)
            if preempted:
                raise PreemptedError(f"preempted after supervised step {sft.steps}; run again to go on")
            if stop:
                break
        if progress.sft.complete:
            self.publish(learner, progress)
        return progress

    def learn(self, learner: Learner, progress: Progress, wave: Wave) -> Progress:
        """Take the optimisation step of a wave: train, log, save, publish."""
        metrics = train_on_wave(
            learner,
            read_wave_trajectories(self.paths, wave),
            algorithm=self.algorithm,
            settings=self.settings,
            temperature=wave.sampling.temperature or 1.0,
            seed=self.settings.seed + wave.step,
        )
        progress = replace(progress, step=wave.step, consumed_waves=(*progress.consumed_waves, wave.number))
        self.log(progress.step, metrics | {"staleness": float(wave.step - 1 - wave.policy_version)})
        self.save(learner, progress)
        self.publish(learner, progress)
        return progress

    def wait_for(self, kind: WaveKind, step: int | None = None) -> Wave | None:
        """Wait until the wave of this kind (and step) is rolled out; None when the campaign stops first.

        Raises:
            PreemptedError: the last checkpoint is the state.
        """
        while True:
            wave = from_first_rank(lambda: self.finished_wave(kind, step))
            stop, preempted = self.signals()
            if preempted:
                raise PreemptedError(f"preempted while waiting for a {kind} wave; run again to go on")
            if wave is not None or stop:
                return None if stop else wave
            time.sleep(self.surroundings.poll_seconds)

    def finished_wave(self, kind: WaveKind, step: int | None) -> Wave | None:
        """The wave, if it exists and all its groups are done."""
        waves = (wave for wave in list_waves(self.paths) if wave.kind is kind and step in (None, wave.step))
        return next((wave for wave in waves if wave_finished(self.paths, wave)), None)

    def signals(self) -> tuple[bool, bool]:
        """(stop, preempted) as rank 0 sees them, so that all ranks act alike."""
        return from_first_rank(lambda: (self.surroundings.should_stop(), self.surroundings.preempted()))

    def log(self, step: int, metrics: dict[str, float]) -> None:
        """Hand metrics on, once for all ranks."""
        from_first_rank(lambda: self.surroundings.log(step, metrics))

    def save(self, learner: Learner, progress: Progress) -> None:
        """Write a checkpoint; all ranks write their shards."""
        unfinished = from_first_rank(lambda: begin_checkpoint(self.paths.checkpoints, progress.checkpoint_number))
        save_state(learner, unfinished)
        keep = max(2, self.settings.checkpoint_keep)  # a damaged newest one needs a predecessor
        from_first_rank(lambda: finish_checkpoint(unfinished, progress.to_json(), keep=keep))

    def publish(self, learner: Learner, progress: Progress) -> None:
        """Publish the weights as version ``progress.step`` unless that version is already there."""
        version, weights = progress.step, learner.hugging_face_weights()
        metadata = {"step": progress.step, "supervised_steps": progress.sft.steps}
        from_first_rank(
            lambda: publish_policy(
                self.paths, version, lambda folder: write_policy(folder, weights, self.source), metadata
            )
        )


def _progress_of(path: Path, values: object) -> Progress:
    try:
        return progress_from_json(values)  # type: ignore[arg-type]
    except (KeyError, TypeError) as error:
        raise CheckpointError(f"{path}: progress.json has another format ({error!r}); start a new run") from error
