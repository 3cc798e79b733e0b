"""A group's actions and rounds in the worker's journal, and back."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping
from pathlib import Path

from hpc.storage.journal import Journal, read_journal
from rlhpc.rollout.recovery import GroupHistory
from rlhpc.rollout.stage import RoundKey, StableRound
from rlhpc.trajectory.record import ActionRecord, RoundRecord, decode_record, encode_record
from rlhpc.types import Generation

log = logging.getLogger(__name__)


class GroupLedger:
    """Writes what happens in one group into the journal of the worker that plays it."""

    def __init__(self, journal: Journal, group_id: str) -> None:
        self._journal = journal
        self._group_id = group_id

    def record_actions(self, actions: Mapping[RoundKey, Generation]) -> None:
        """Note the actions that are to be carried out. Durable on return."""
        self._append(
            ActionRecord(group_id=self._group_id, sample_index=sample, round_index=index, generation=action)
            for (sample, index), action in actions.items()
        )

    def record_rounds(self, rounds: Mapping[RoundKey, StableRound]) -> None:
        """Note finished rounds. Durable on return."""
        self._append(
            RoundRecord(group_id=self._group_id, sample_index=sample, round=done.round, snapshot=done.snapshot)
            for (sample, _), done in rounds.items()
        )

    def _append(self, records: Iterable[ActionRecord | RoundRecord]) -> None:
        for record in records:
            self._journal.append(encode_record(record))
        self._journal.sync()


def read_history(journal: Path, group_id: str) -> GroupHistory:
    """What the journal of any worker, living or dead, knows of a group. Only reads; empty if it knows nothing."""
    content = read_journal(journal)
    if content.corrupt_at:
        log.warning("%s is damaged at bytes %s; rounds that are lost are played again", journal, content.corrupt_at)
    records = [record for record in map(decode_record, content.records) if record.group_id == group_id]
    return GroupHistory(
        actions={(r.sample_index, r.round_index): r.generation for r in records if isinstance(r, ActionRecord)},
        rounds={
            (r.sample_index, r.round.index): StableRound(round=r.round, snapshot=r.snapshot)
            for r in records
            if isinstance(r, RoundRecord)
        },
    )
