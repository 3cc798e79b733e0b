"""Weights, optimizer and random state of a Learner in Megatron-Core's distributed checkpoint format.

All ranks call both functions; each writes and reads its own shards, so another parallel layout can load them.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from torch.distributed.checkpoint import state_dict_saver
from torch.distributed.checkpoint.filesystem import FileSystemWriter

from rlhpc.learner.megatron import Learner

from megatron.core import dist_checkpointing  # isort: skip  (after learner.megatron, which prepares the CPU)
from megatron.core.dist_checkpointing.mapping import ShardedStateDict  # isort: skip
from megatron.core.dist_checkpointing.strategies import torch as torch_strategies  # isort: skip


def save_state(learner: Learner, folder: Path) -> None:
    """Write the state into an existing empty folder; on return every file is flushed to disk."""
    dist_checkpointing.save(_state(learner, loading=False), str(folder), _InProcessSave("torch_dist", 1))


def load_state(learner: Learner, folder: Path) -> None:
    """Give a newly made learner weights, optimizer and random state from a folder that ``save_state`` wrote."""
    updates = dist_checkpointing.load_common_state_dict(str(folder))["updates"]
    learner.updates = updates
    loaded = dist_checkpointing.load(_state(learner, loading=True), str(folder))
    learner.model.load_state_dict(loaded["model"])
    if updates:
        learner.optimizer.load_state_dict(loaded["optimizer"])
    torch.set_rng_state(loaded["random"])


def _state(learner: Learner, *, loading: bool) -> dict[str, Any]:
    model = learner.model.sharded_state_dict()
    state = {"model": model, "updates": learner.updates, "random": torch.get_rng_state()}
    if learner.updates:  # before its first update the optimizer has no state
        state["optimizer"] = learner.optimizer.sharded_state_dict(model, is_loading=loading)
    return state


class _InProcessSave(torch_strategies.TorchDistSaveShardedStrategy):  # type: ignore[misc]
    """Megatron's format, written by this process.

    Megatron's own writer starts two more processes per save, and one of them outlives a SIGKILL of the learner.
    """

    def save(self, sharded_state_dict: ShardedStateDict, checkpoint_dir: str | Path) -> None:
        """Write all shards of this rank."""
        state, _, _ = torch_strategies._replace_state_dict_keys_with_sharded_keys(sharded_state_dict, True)
        state_dict_saver.save(
            torch_strategies.mcore_to_pyt_state_dict(state, False),
            storage_writer=FileSystemWriter(checkpoint_dir, sync_files=True),
            planner=torch_strategies.MCoreSavePlanner(dedup_replicated_tensors=False, flatten_state_dict=False),
        )
