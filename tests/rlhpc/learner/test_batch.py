"""From trajectories to tensors: what is left out, what is aligned with what, and how batches are cut."""

import random

import pytest
import torch

from rlhpc.learner.batch import TrainingSample, micro_batches, pad_batch, sample_of, training_samples
from rlhpc.learner.losses import AlgorithmSettings
from rlhpc.types import FinishReason, Round, StopReason, Trajectory, TrajectoryStatus


def played(group: str, sample: int, reward: float, status: TrajectoryStatus = TrajectoryStatus.COMPLETE) -> Trajectory:
    """Two rounds: context 1 2, action 3 4; context 5, action 6."""
    rounds = [((1, 2), (3, 4), (-0.3, -0.4)), ((5,), (6,), (-0.6,))]
    return Trajectory(
        task_id="task",
        group_id=group,
        sample_index=sample,
        seed=0,
        rounds=tuple(
            Round(
                index=index,
                context_token_ids=context,
                action_token_ids=action,
                behaviour_logprobs=logprobs,
                policy_version=0,
                finish_reason=FinishReason.STOP,
                action="",
                observation="",
                rewards={},
                generate_seconds=0.0,
                execute_seconds=0.0,
            )
            for index, (context, action, logprobs) in enumerate(rounds)
        ),
        rewards={},
        reward=reward,
        status=status,
        stop_reason=StopReason.MAX_ROUNDS,
    )


def sample(length: int, index: int = 0) -> TrainingSample:
    return TrainingSample(
        group_id="g",
        sample_index=index,
        token_ids=tuple(range(1, length + 1)),
        loss_mask=(0,) + (1,) * (length - 1),
        behaviour_logprobs=(0.0,) + (-1.0,) * (length - 1),
        advantage=0.5,
    )


def test_tokens_of_the_environment_carry_no_loss() -> None:
    result = sample_of(played("g", 3, 1.0), advantage=0.5)
    assert result.token_ids == (1, 2, 3, 4, 5, 6)
    assert result.loss_mask == (0, 0, 1, 1, 0, 1)
    assert result.behaviour_logprobs == (0.0, 0.0, -0.3, -0.4, 0.0, -0.6)
    assert (result.group_id, result.sample_index, result.advantage) == ("g", 3, 0.5)


def test_invalid_trajectories_are_in_no_sample_and_in_no_baseline() -> None:
    lost = played("g", 2, 100.0, TrajectoryStatus.INVALID)
    samples = training_samples([played("g", 0, 1.0), lost, played("g", 1, 0.0)], AlgorithmSettings(name="dr_grpo"))
    assert [(s.sample_index, s.advantage) for s in samples] == [(0, 0.5), (1, -0.5)]


def test_groups_without_signal_are_left_out() -> None:
    trajectories = [played("same", 0, 1.0), played("mixed", 0, 1.0), played("same", 1, 1.0), played("mixed", 1, 0.0)]
    samples = training_samples(trajectories, AlgorithmSettings())
    assert [(s.group_id, s.sample_index) for s in samples] == [("mixed", 0), ("mixed", 1)]


def test_a_sample_of_zero_advantage_stays_in_a_group_with_signal() -> None:
    """It counts in the denominator."""
    samples = training_samples([played("g", i, i / 2) for i in range(3)], AlgorithmSettings())
    assert [s.advantage == 0.0 for s in samples] == [False, True, False]


def test_position_t_describes_token_t_plus_1() -> None:
    short = sample(3)
    batch = pad_batch([sample_of(played("g", 0, 1.0), advantage=2.0), short])
    assert batch.token_ids.tolist() == [[1, 2, 3, 4, 5, 6], [1, 2, 3, 0, 0, 0]]
    assert batch.loss_mask.tolist() == [[0, 1, 1, 0, 1, 0], [1, 1, 0, 0, 0, 0]]
    assert torch.allclose(batch.behaviour_logprobs[0], torch.tensor([0, -0.3, -0.4, 0, -0.6, 0]))
    assert batch.advantages.tolist() == [[0, 2, 2, 0, 2, 0], [0.5, 0.5, 0, 0, 0, 0]]
    assert batch.token_ids.dtype == torch.int64
    assert {batch.loss_mask.dtype, batch.behaviour_logprobs.dtype, batch.advantages.dtype} == {torch.float32}


@pytest.mark.parametrize("budget", [20, 50, 1000])
def test_micro_batches_hold_every_sample_once_within_the_budget(budget: int) -> None:
    source = random.Random(budget)
    samples = [sample(source.randrange(2, 20), index) for index in range(50)]
    batches = micro_batches(samples, budget)
    assert sorted(s.sample_index for batch in batches for s in batch) == list(range(50))
    assert all(pad_batch(batch).token_ids.numel() <= budget for batch in batches)
    shuffled = random.Random(1).sample(samples, k=50)
    assert micro_batches(shuffled, budget) == batches


def test_a_sample_longer_than_the_budget_is_a_batch_of_its_own() -> None:
    assert [len(batch) for batch in micro_batches([sample(30), sample(4), sample(5)], 10)] == [1, 2]
