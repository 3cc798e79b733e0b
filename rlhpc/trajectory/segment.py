"""Segments: sealed files of finished trajectories. Sealing, reading, and collecting those of a wave."""

from __future__ import annotations

import logging
from collections.abc import Collection, Sequence
from pathlib import Path

from hpc.errors import CorruptFileError
from hpc.storage.arrays import read_arrays, write_arrays
from hpc.storage.set_aside import move_aside
from rlhpc.paths import RunPaths
from rlhpc.trajectory.columns import component_names, from_arrays, to_arrays
from rlhpc.trajectory.schema import SCHEMA, SCHEMA_VERSION
from rlhpc.types import Trajectory, Wave
from rlhpc.waves import done_groups, unmark_done

logger = logging.getLogger(__name__)


def seal_segment(path: Path, trajectories: Sequence[Trajectory], writer: str) -> None:
    """Write trajectories as one file that is durable and whole when it becomes visible.

    Args:
        path: From ``RunPaths.segment``; an existing segment is replaced.
        trajectories: Finished ones. Their floats are stored as float32.
        writer: Name of the worker, for people.
    """
    components = component_names(trajectories)
    attributes = {
        "schema": SCHEMA,
        "schema_version": SCHEMA_VERSION,
        "component_names": components,
        "writer": writer,
        "trajectories": len(trajectories),
        "rounds": sum(len(trajectory.rounds) for trajectory in trajectories),
        "tokens": sum(len(trajectory.token_ids) for trajectory in trajectories),
    }
    write_arrays(path, to_arrays(trajectories, components), attributes)


def read_segment(path: Path) -> list[Trajectory]:
    """All trajectories of a segment, in the order in which they were sealed.

    Raises:
        CorruptFileError: the file is damaged or has another schema.
        FileNotFoundError: it does not exist.
    """
    arrays, attributes = read_arrays(path)
    schema = (attributes.get("schema"), attributes.get("schema_version"))
    if schema != (SCHEMA, SCHEMA_VERSION):
        raise CorruptFileError(
            f"{path} has schema {schema}, not {(SCHEMA, SCHEMA_VERSION)}; read it with its own version"
        )
    return from_arrays(arrays, attributes["component_names"])


def read_wave_trajectories(paths: RunPaths, wave: Wave) -> list[Trajectory]:
    """Trajectories of the wave's finished groups, each once, sorted by group and sample.

    A group counts as its done marker names the segment, so that a group sealed twice is read once. A damaged segment
    is moved to ``paths.set_aside`` and its groups' markers are removed, so that they are rolled out again: whoever
    needs the whole wave asks ``wave_finished`` once more after reading.
    """
    done = done_groups(paths, wave.number)
    found = []
    for segment_name in sorted(set(done.values())):
        groups = {group_id for group_id, name in done.items() if name == segment_name}
        found += _read_groups(paths, wave.number, segment_name, groups)
    return sorted(found, key=lambda trajectory: (trajectory.group_id, trajectory.sample_index))


def _read_groups(paths: RunPaths, number: int, segment_name: str, groups: Collection[str]) -> list[Trajectory]:
    path = paths.trajectories(number) / segment_name
    try:
        found = [trajectory for trajectory in read_segment(path) if trajectory.group_id in groups]
    except CorruptFileError as damage:
        logger.warning("%s; its groups %s are rolled out again", damage, sorted(groups))
        move_aside(path, paths.set_aside, str(damage))
        found = []
    except FileNotFoundError:
        logger.warning("segment %s is gone; its groups %s are rolled out again", path, sorted(groups))
        found = []
    for group_id in set(groups) - {trajectory.group_id for trajectory in found}:
        unmark_done(paths, number, group_id)
    return found
