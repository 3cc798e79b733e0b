"""Waves on disk: what is to be rolled out, and which segment holds each finished group."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from hpc.storage.atomic import create_exclusive, read_json, write_json_atomic
from rlhpc.errors import RlhpcError
from rlhpc.paths import RunPaths
from rlhpc.types import Group, SamplingParameters, Wave, WaveKind


def open_wave(paths: RunPaths, wave: Wave) -> None:
    """Let the workers see a wave. Opening the same wave again changes nothing.

    Raises:
        RlhpcError: another wave has this number.
    """
    file = paths.wave_file(wave.number)
    if file.exists():
        if read_wave(paths, wave.number) != wave:
            raise RlhpcError(f"{file} holds another wave {wave.number}; a wave never changes once it is open")
        return
    paths.claims(wave.number).mkdir(parents=True, exist_ok=True)
    paths.done(wave.number).mkdir(exist_ok=True)
    write_json_atomic(file, asdict(wave))


def read_wave(paths: RunPaths, number: int) -> Wave:
    """One wave.

    Raises:
        CorruptFileError: its file is not JSON.
        FileNotFoundError: it is not open.
    """
    return _wave_from_json(read_json(paths.wave_file(number)))


def list_waves(paths: RunPaths) -> list[Wave]:
    """All open waves, by number."""
    return [_wave_from_json(read_json(file)) for file in sorted(paths.waves.glob("*/wave.json"))]


def mark_done(paths: RunPaths, number: int, group_id: str, segment_name: str) -> None:
    """Say that a sealed segment of the wave holds the group; of two segments the one marked first counts."""
    create_exclusive(paths.done(number) / group_id, segment_name.encode())


def unmark_done(paths: RunPaths, number: int, group_id: str) -> None:
    """Let the group be rolled out again."""
    (paths.done(number) / group_id).unlink(missing_ok=True)


def done_groups(paths: RunPaths, number: int) -> dict[str, str]:
    """Finished groups of a wave, sorted, each with the name of the segment that holds it."""
    found: dict[str, str] = {}
    for marker in sorted(paths.done(number).glob("[!.]*")):
        _read_marker(marker, found)
    return found


def wave_finished(paths: RunPaths, wave: Wave) -> bool:
    """Whether all groups are done."""
    done = done_groups(paths, wave.number)
    return all(group.group_id in done for group in wave.groups)


def _read_marker(marker: Path, found: dict[str, str]) -> None:
    try:
        found[marker.name] = marker.read_text()
    except FileNotFoundError:
        pass  # unmarked since it was listed


def _wave_from_json(values: Mapping[str, Any]) -> Wave:
    return Wave(
        number=values["number"],
        kind=WaveKind(values["kind"]),
        step=values["step"],
        policy_version=values["policy_version"],
        seed=values["seed"],
        sampling=SamplingParameters(**values["sampling"]),
        groups=tuple(Group(**group) for group in values["groups"]),
    )
