"""The supervised stage: every sample as often as any other, early stop, and it learns."""

from collections import Counter
from collections.abc import Callable
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rlhpc.errors import NothingToDoError
from rlhpc.learner.megatron import Learner
from rlhpc.learner.progress import Progress, SftProgress, progress_from_json
from rlhpc.learner.settings import LearnerSettings, OptimizerSettings, SftSettings
from rlhpc.learner.sft import advanced, batch_indices, supervised_samples, supervised_steps
from rlhpc.types import StopReason, Trajectory

SETTINGS = LearnerSettings(
    sft=SftSettings(steps=30, batch_size=4, optimizer=OptimizerSettings(learning_rate=3e-3, warmup_steps=5))
)


@given(st.integers(1, 20), st.integers(1, 25), st.integers(0, 5))
def test_each_pass_shows_every_sample_once(count: int, batch_size: int, seed: int) -> None:
    drawn = [index for step in range(count) for index in batch_indices(count, batch_size, step, seed)]
    assert Counter(drawn) == Counter({index: batch_size for index in range(count)})


def test_another_seed_gives_another_order() -> None:
    assert batch_indices(50, 50, 0, seed=1) != batch_indices(50, 50, 0, seed=2)


def test_it_stops_at_the_last_step() -> None:
    progress = SftProgress()
    for _ in range(3):
        assert not progress.complete
        progress = advanced(progress, 1.0, SftSettings(steps=3))
    assert progress.complete


def test_it_stops_once_the_moving_average_is_low_not_at_the_first_low_loss() -> None:
    settings = SftSettings(steps=100, stop_at_loss=0.5)
    progress = advanced(SftProgress(), 1.0, settings)
    losses_needed = 0
    while not progress.complete:
        progress = advanced(progress, 0.0, settings)
        losses_needed += 1
    assert losses_needed == 7  # 0.9 ** 7 < 0.5 < 0.9 ** 6


def test_progress_survives_json() -> None:
    progress = Progress(sft=SftProgress(steps=3, average_loss=0.25, complete=True), step=2, consumed_waves=(4, 5))
    assert progress_from_json(progress.to_json()) == progress


def test_only_solved_trajectories_are_taught(make_trajectory: Callable[..., Trajectory]) -> None:
    solved, failed = make_trajectory(), replace(make_trajectory(), stop_reason=StopReason.MAX_ROUNDS)
    assert len(supervised_samples([solved, failed])) == 1
    with pytest.raises(NothingToDoError):
        supervised_samples([failed])


def test_the_loss_falls_and_the_first_one_is_the_mean_negative_log_likelihood(
    make_learner: Callable[[], Learner], make_trajectory: Callable[..., Trajectory]
) -> None:
    trajectories = [make_trajectory(group=group) for group in range(4)]
    logprobs = [value for t in trajectories for r in t.rounds for value in r.behaviour_logprobs]
    samples = supervised_samples(trajectories)
    metrics = [values for _, values in supervised_steps(make_learner(), samples, SETTINGS, SftProgress())]
    assert len(metrics) == 30
    assert metrics[0]["sft_loss"] == pytest.approx(-sum(logprobs) / len(logprobs), abs=1e-4)
    assert metrics[-1]["sft_loss"] < metrics[0]["sft_loss"] - 1.0
    assert [m["sft_learning_rate"] for m in metrics[:6]] == pytest.approx([6e-4, 1.2e-3, 1.8e-3, 2.4e-3, 3e-3, 3e-3])
