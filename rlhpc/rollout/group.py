"""A group before and after it is played: fresh or resumed samples in, trajectories out. Pure functions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from rlhpc.reward.components import trajectory_rewards
from rlhpc.reward.weighting import weighted_reward
from rlhpc.rollout.prompt import PromptFormat
from rlhpc.rollout.recovery import GroupHistory, resume_episode
from rlhpc.rollout.seeds import sample_seed
from rlhpc.rollout.settings import RolloutSettings
from rlhpc.rollout.state import Episode, begin_episode
from rlhpc.types import Group, Task, Trajectory, TrajectoryStatus, Wave


def begin_group(
    wave: Wave, group: Group, task: Task, history: GroupHistory, prompt: PromptFormat, settings: RolloutSettings
) -> list[Episode]:
    """All samples of a group, as far as its history goes."""
    ids = prompt.prompt(task.instruction)
    seeds = [sample_seed(wave.seed, wave.number, task.task_id, index) for index in range(group.samples)]
    limit = wave.sampling.max_new_tokens
    fresh = [begin_episode(index, seed, ids, settings, limit) for index, seed in enumerate(seeds)]
    return [resume_episode(episode, history, prompt, settings, limit) for episode in fresh]


def group_position(episodes: Sequence[Episode]) -> int:
    """Rounds whose actions are all known: the next one is where the policy goes on."""
    return min((len(e.rounds) + (e.pending is not None) for e in episodes if e.stop is None), default=0)


def to_trajectory(
    episode: Episode, group: Group, weights: Mapping[str, float], clip: tuple[float, float]
) -> Trajectory:
    """The archive form of a sample that has ended.

    Raises:
        ValueError: it has not ended.
    """
    if episode.stop is None:
        raise ValueError(f"sample {episode.sample_index} of group {group.group_id} has not ended")
    rewards = trajectory_rewards(episode.rounds)
    return Trajectory(
        task_id=group.task_id,
        group_id=group.group_id,
        sample_index=episode.sample_index,
        seed=episode.seed,
        rounds=episode.rounds,
        rewards=rewards,
        reward=weighted_reward(rewards, weights, clip),
        status=TrajectoryStatus.INVALID if episode.detail else TrajectoryStatus.COMPLETE,
        stop_reason=episode.stop,
        detail=episode.detail,
    )
