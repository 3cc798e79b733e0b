"""Names and dtypes of the arrays in a segment: the contract with every other Zarr reader.

n trajectories, r rounds, t tokens, c reward components. Ragged data is flat, with offsets; text is UTF-8 bytes with
offsets: item i of ``x_bytes`` is ``x_bytes[x_offset[i]:x_offset[i + 1]]``.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from numpy.typing import DTypeLike

from rlhpc.types import FinishReason, StopReason, TrajectoryStatus

SCHEMA = "rlhpc.segment"
SCHEMA_VERSION = 1

DTYPES: Mapping[str, DTypeLike] = {
    "token_ids": np.uint32,  # [t]
    "loss_mask": np.uint8,  # [t], 1 where the policy wrote the token
    "behaviour_logprob": np.float32,  # [t], 0 where it did not
    "round_token_offset": np.int64,  # [r+1] into t
    "trajectory_round_offset": np.int64,  # [n+1] into r
    "round_index": np.int32,  # [r], position in the trajectory
    "round_policy_version": np.int32,  # [r]
    "round_reward": np.float32,  # [r, c], NaN where a round lacks the component
    "finish_reason": np.uint8,  # [r], code of FinishReason
    "generate_seconds": np.float32,  # [r]
    "execute_seconds": np.float32,  # [r]
    "trajectory_reward": np.float32,  # [n, c], NaN where a trajectory lacks the component
    "reward": np.float32,  # [n]
    "status": np.uint8,  # [n], code of TrajectoryStatus
    "stop_reason": np.uint8,  # [n], code of StopReason
    "sample_index": np.int32,  # [n]
    "seed": np.int64,  # [n]
}

TEXTS = ("task_id", "group_id", "detail", "transcript")
"""Each is two arrays: ``<name>_bytes`` u8 and ``<name>_offset`` i64. ``transcript`` has one JSON object
``{"action", "observation"}`` per round, the others one text per trajectory."""

# a code is the position; new ones go to the end
FINISH_REASONS = (FinishReason.STOP, FinishReason.LENGTH)
STATUSES = (TrajectoryStatus.COMPLETE, TrajectoryStatus.INVALID)
STOP_REASONS = (
    StopReason.SOLVED,
    StopReason.SUBMITTED,
    StopReason.MAX_ROUNDS,
    StopReason.TOKEN_BUDGET,
    StopReason.TIME_BUDGET,
    StopReason.INFRASTRUCTURE,
)
