"""What a rollout worker's journal holds: actions before they are carried out, rounds after."""

from __future__ import annotations

import json
import zlib
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from hpc.errors import CorruptFileError
from rlhpc.types import FinishReason, Generation, Round


@dataclass(frozen=True, slots=True, kw_only=True)
class ActionRecord:
    """An action that is about to be carried out."""

    group_id: str
    sample_index: int
    round_index: int
    generation: Generation


@dataclass(frozen=True, slots=True, kw_only=True)
class RoundRecord:
    """A round that is over: its action was carried out, tested and rewarded."""

    group_id: str
    sample_index: int
    round: Round
    snapshot: str
    """Of the workspace after the round."""


Record = ActionRecord | RoundRecord


def encode_record(record: Record) -> bytes:
    """Compressed JSON; ids and floats come back exactly."""
    kind = "action" if isinstance(record, ActionRecord) else "round"
    return zlib.compress(json.dumps({"kind": kind, **asdict(record)}, separators=(",", ":")).encode(), level=1)


def decode_record(data: bytes) -> Record:
    """Undo ``encode_record``.

    Raises:
        CorruptFileError: the bytes are no record of this format.
    """
    try:
        values = json.loads(zlib.decompress(data))
        kind = values.pop("kind")
        if kind == "action":
            return ActionRecord(**{**values, "generation": _generation(values["generation"])})
        return RoundRecord(**{**values, "round": _round(values["round"])})
    except (zlib.error, ValueError, KeyError, TypeError) as error:
        raise CorruptFileError(f"a journal record of {len(data)} bytes cannot be understood: {error!r}") from error


def _generation(values: Mapping[str, Any]) -> Generation:
    return Generation(
        token_ids=tuple(values["token_ids"]),
        logprobs=tuple(values["logprobs"]),
        finish_reason=FinishReason(values["finish_reason"]),
        policy_version=values["policy_version"],
    )


def _round(values: Mapping[str, Any]) -> Round:
    tuples = {name: tuple(values[name]) for name in ("context_token_ids", "action_token_ids", "behaviour_logprobs")}
    return Round(**{**values, **tuples, "finish_reason": FinishReason(values["finish_reason"])})
