"""One reinforcement-learning step: rewarded actions become likelier; learner and rollout agree on probabilities."""

from collections.abc import Callable
from dataclasses import replace

import pytest
import torch

from rlhpc.learner.losses import AlgorithmSettings
from rlhpc.learner.megatron import Learner
from rlhpc.learner.settings import LearnerSettings, OptimizerSettings
from rlhpc.learner.step import train_on_wave
from rlhpc.types import Trajectory, TrajectoryStatus

Make = Callable[..., Trajectory]


def settings(learning_rate: float, updates_per_wave: int = 1) -> LearnerSettings:
    return LearnerSettings(
        optimizer=OptimizerSettings(learning_rate=learning_rate),
        micro_batch_tokens=200,
        updates_per_wave=updates_per_wave,
    )


def learn(learner: Learner, wave: list[Trajectory], learner_settings: LearnerSettings) -> dict[str, float]:
    return train_on_wave(
        learner, wave, algorithm=AlgorithmSettings(), settings=learner_settings, temperature=1.0, seed=1
    )


@pytest.fixture
def wave(make_trajectory: Make) -> list[Trajectory]:
    """Two groups of four samples; in each, one kind of action is rewarded and the other is not."""
    outcomes = [("good", 1.0), ("good", 1.0), ("evil", 0.0), ("evil", 0.0)]
    return [
        make_trajectory(group=group, sample=sample, actions=(action,), reward=reward)
        for group in range(2)
        for sample, (action, reward) in enumerate(outcomes)
    ]


def gap(learner: Learner, trajectories: list[Trajectory]) -> float:
    """Mean |learner - behaviour| without changing anything."""
    return learn(learner, trajectories, settings(0.0))["logprob_gap"]


def test_rewarded_actions_become_likelier(make_learner: Callable[[], Learner], wave: list[Trajectory]) -> None:
    learner = make_learner()
    for _ in range(5):
        metrics = learn(learner, wave, settings(1e-3))
    assert metrics["reward_mean"] == metrics["solve_rate"] == 0.5
    assert metrics["ratio_max"] > 1.0 and metrics["approx_kl"] > 0.0 and metrics["gradient_norm"] > 0.0
    assert metrics["loss"] < learn(make_learner(), wave, settings(0.0))["loss"]


@pytest.mark.parametrize("updates", [1, 3])
def test_without_learning_rate_nothing_moves_and_both_sides_agree(
    make_learner: Callable[[], Learner], wave: list[Trajectory], updates: int
) -> None:
    learner = make_learner()
    before = learner.hugging_face_weights()
    for _ in range(3):
        metrics = learn(learner, wave, settings(0.0, updates))
        assert metrics["logprob_gap"] < 1e-5
        assert metrics["approx_kl"] == pytest.approx(0.0, abs=1e-6)
        assert metrics["clip_fraction"] == 0.0
    after = learner.hugging_face_weights()
    assert all(torch.equal(before[name], after[name]) for name in before)


def test_the_gap_is_that_before_the_first_update(make_learner: Callable[[], Learner], wave: list[Trajectory]) -> None:
    learner = make_learner()
    assert learn(learner, wave, settings(1e-2, updates_per_wave=4))["logprob_gap"] < 1e-5
    assert learner.updates == 4
    assert gap(learner, wave) > 1e-3


def test_a_wave_gives_the_same_bits_again(make_learner: Callable[[], Learner], wave: list[Trajectory]) -> None:
    first, again = make_learner(), make_learner()
    for learner in (first, again):
        learn(learner, wave, settings(1e-2, updates_per_wave=3))
    weights, weights_again = first.hugging_face_weights(), again.hugging_face_weights()
    assert all(torch.equal(weights[name], weights_again[name]) for name in weights)


def test_a_wave_without_a_valid_trajectory_changes_nothing(
    make_learner: Callable[[], Learner], wave: list[Trajectory]
) -> None:
    learner = make_learner()
    invalid = [replace(trajectory, status=TrajectoryStatus.INVALID, detail="sandbox died") for trajectory in wave]
    metrics = learn(learner, invalid, settings(1e-2))
    assert metrics["invalid_trajectories"] == 8.0 and metrics["tokens"] == 0.0
    assert learner.updates == 0
