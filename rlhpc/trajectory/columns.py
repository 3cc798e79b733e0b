"""Trajectories as the arrays of ``schema``, and back. Pure functions.

Floats come back as the nearest float32; everything else comes back exactly.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping, Sequence
from itertools import accumulate, pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rlhpc.trajectory.schema import DTYPES, FINISH_REASONS, STATUSES, STOP_REASONS, TEXTS
from rlhpc.types import Round, Trajectory

Arrays = Mapping[str, NDArray[Any]]


def component_names(trajectories: Iterable[Trajectory]) -> list[str]:
    """All reward components, in the order in which they first occur."""
    rewards = [named for t in trajectories for named in (t.rewards, *(r.rewards for r in t.rounds))]
    return list(dict.fromkeys(name for named in rewards for name in named))


def to_arrays(trajectories: Sequence[Trajectory], components: Sequence[str]) -> dict[str, NDArray[Any]]:
    """Lay trajectories out as arrays, in the given order; ``components`` names the columns of the reward arrays.

    Raises:
        ValueError: a round has not one log-probability per token of its action.
    """
    rounds = [r for trajectory in trajectories for r in trajectory.rounds]
    values = _round_values(rounds) | _trajectory_values(trajectories)
    arrays = {name: np.array(value, dtype=DTYPES[name]) for name, value in values.items()}
    arrays["round_reward"] = _reward_matrix(rounds, components)
    arrays["trajectory_reward"] = _reward_matrix(trajectories, components)
    texts = {
        "task_id": [t.task_id for t in trajectories],
        "group_id": [t.group_id for t in trajectories],
        "detail": [t.detail for t in trajectories],
        "transcript": [json.dumps({"action": r.action, "observation": r.observation}) for r in rounds],
    }
    return arrays | {key: array for name in TEXTS for key, array in _text_arrays(name, texts[name]).items()}


def from_arrays(arrays: Arrays, components: Sequence[str]) -> list[Trajectory]:
    """Undo ``to_arrays``."""
    rounds = _rounds(arrays, components)
    task_ids, group_ids, details = (_texts(arrays, name) for name in ("task_id", "group_id", "detail"))
    return [
        Trajectory(
            task_id=task_ids[i],
            group_id=group_ids[i],
            sample_index=int(arrays["sample_index"][i]),
            seed=int(arrays["seed"][i]),
            rounds=tuple(rounds[start:end]),
            rewards=_named(arrays["trajectory_reward"][i], components),
            reward=float(arrays["reward"][i]),
            status=STATUSES[arrays["status"][i]],
            stop_reason=STOP_REASONS[arrays["stop_reason"][i]],
            detail=details[i],
        )
        for i, (start, end) in enumerate(pairwise(arrays["trajectory_round_offset"]))
    ]


def _round_values(rounds: Sequence[Round]) -> dict[str, list[Any]]:
    for r in rounds:
        if len(r.behaviour_logprobs) != len(r.action_token_ids):
            raise ValueError(
                f"{len(r.behaviour_logprobs)} log-probabilities for {len(r.action_token_ids)} action tokens"
            )
    return {
        "token_ids": [token for r in rounds for token in (*r.context_token_ids, *r.action_token_ids)],
        "loss_mask": [bit for r in rounds for bit in (*[0] * len(r.context_token_ids), *[1] * len(r.action_token_ids))],
        "behaviour_logprob": [p for r in rounds for p in (*[0.0] * len(r.context_token_ids), *r.behaviour_logprobs)],
        "round_token_offset": _offsets(len(r.context_token_ids) + len(r.action_token_ids) for r in rounds),
        "round_index": [r.index for r in rounds],
        "round_policy_version": [r.policy_version for r in rounds],
        "finish_reason": [FINISH_REASONS.index(r.finish_reason) for r in rounds],
        "generate_seconds": [r.generate_seconds for r in rounds],
        "execute_seconds": [r.execute_seconds for r in rounds],
    }


def _trajectory_values(trajectories: Sequence[Trajectory]) -> dict[str, list[Any]]:
    return {
        "trajectory_round_offset": _offsets(len(t.rounds) for t in trajectories),
        "reward": [t.reward for t in trajectories],
        "status": [STATUSES.index(t.status) for t in trajectories],
        "stop_reason": [STOP_REASONS.index(t.stop_reason) for t in trajectories],
        "sample_index": [t.sample_index for t in trajectories],
        "seed": [t.seed for t in trajectories],
    }


def _rounds(arrays: Arrays, components: Sequence[str]) -> list[Round]:
    transcripts = [json.loads(text) for text in _texts(arrays, "transcript")]
    return [
        Round(
            index=int(arrays["round_index"][i]),
            **_tokens(arrays, slice(start, end)),
            policy_version=int(arrays["round_policy_version"][i]),
            finish_reason=FINISH_REASONS[arrays["finish_reason"][i]],
            **transcripts[i],
            rewards=_named(arrays["round_reward"][i], components),
            generate_seconds=float(arrays["generate_seconds"][i]),
            execute_seconds=float(arrays["execute_seconds"][i]),
        )
        for i, (start, end) in enumerate(pairwise(arrays["round_token_offset"]))
    ]


def _tokens(arrays: Arrays, of_round: slice) -> dict[str, Any]:
    tokens, written = arrays["token_ids"][of_round], arrays["loss_mask"][of_round].astype(bool)
    return {
        "context_token_ids": tuple(tokens[~written].tolist()),
        "action_token_ids": tuple(tokens[written].tolist()),
        "behaviour_logprobs": tuple(arrays["behaviour_logprob"][of_round][written].tolist()),
    }


def _reward_matrix(sources: Sequence[Round] | Sequence[Trajectory], components: Sequence[str]) -> NDArray[Any]:
    rows = [[source.rewards.get(name, math.nan) for name in components] for source in sources]
    return np.array(rows, dtype=DTYPES["round_reward"]).reshape(len(rows), len(components))


def _named(row: NDArray[Any], components: Sequence[str]) -> dict[str, float]:
    return {name: value for name, value in zip(components, row.tolist(), strict=True) if not math.isnan(value)}


def _text_arrays(name: str, texts: Sequence[str]) -> dict[str, NDArray[Any]]:
    encoded = [text.encode("utf-8", "surrogatepass") for text in texts]
    return {
        f"{name}_bytes": np.frombuffer(b"".join(encoded), dtype=np.uint8),
        f"{name}_offset": np.array(_offsets(map(len, encoded)), dtype=np.int64),
    }


def _texts(arrays: Arrays, name: str) -> list[str]:
    content = arrays[f"{name}_bytes"].tobytes()
    return [content[a:b].decode("utf-8", "surrogatepass") for a, b in pairwise(arrays[f"{name}_offset"].tolist())]


def _offsets(lengths: Iterable[int]) -> list[int]:
    return list(accumulate(lengths, initial=0))
