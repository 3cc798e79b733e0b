from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from hpc.errors import CorruptFileError
from hpc.storage.journal import Journal, read_journal
from rlhpc.trajectory.record import ActionRecord, Record, RoundRecord, decode_record, encode_record
from rlhpc.types import Generation, Trajectory


@pytest.fixture
def records(make_trajectory: Callable[..., Trajectory]) -> list[Record]:
    """Those of one sample, as a worker writes them."""
    written: list[Record] = []
    for r in make_trajectory(sample=2, rounds=4).rounds:
        action = Generation(
            token_ids=r.action_token_ids,
            logprobs=r.behaviour_logprobs,
            finish_reason=r.finish_reason,
            policy_version=r.policy_version,
        )
        written.append(ActionRecord(group_id="000003-0000", sample_index=2, round_index=r.index, generation=action))
        written.append(RoundRecord(group_id="000003-0000", sample_index=2, round=r, snapshot=f"snapshot-{r.index}"))
    return written


def test_records_come_back_from_a_journal_exactly(tmp_path: Path, records: list[Record]) -> None:
    with Journal(tmp_path / "journal") as journal:
        for record in records:
            journal.append(encode_record(record))
    assert [decode_record(data) for data in read_journal(tmp_path / "journal")] == records


@pytest.mark.parametrize("data", [b"", b"no record", encode_record.__name__.encode() * 10])
def test_bytes_that_are_no_record_are_refused(data: bytes) -> None:
    with pytest.raises(CorruptFileError, match=f"{len(data)} bytes"):
        decode_record(data)
