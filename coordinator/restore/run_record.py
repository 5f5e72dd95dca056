"""The record beside a run's working directory, which tells the next life of its pipeline what the run was."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Final

import attrs

from ...state.local.processes import started_at
from ...state.shards import NotResumable
from ...storage.checkpoints.manifest import OperatorRecord
from ...storage.codec import from_json, to_json
from ...storage.errors import CodecError
from ...storage.logs import logger
from .query_directories import RECORD, WORKING_DIRECTORY
from .restore_point import RestorePoint, same_key

log = logger(__name__)
_BOOT: Final = Path("/proc/sys/kernel/random/boot_id")


@attrs.frozen
class RunRecord:
    """The facts about a run that decide whether it can be resumed."""

    root: str
    """URI of the pipeline's own store."""
    generation: int
    round: int
    """How often this generation had gone back. Only runs of one round are at one cut."""
    base: str
    """The checkpoint that the round began from, as ``base_of`` names it."""
    boot: str
    """The machine, from one of its starts to the next; empty: not known."""
    query: str
    query_id: str
    operators: tuple[OperatorRecord, ...]
    output: str | None
    """The directory of Spark's own file sink; None if the query has another sink."""
    known: tuple[str, ...] = ()
    """The pipeline's queries so far, including this one. Queries that were at one cut resume together."""
    java: int = 0
    """Process id of the JVM that Spark runs in."""
    adopted: str = ""
    """What the query was adopted from, as ``Adoptions`` names it; empty if it was not adopted in this life."""

    def write(self, folder: Path) -> None:
        """Write it beside the run's working directory."""
        new = folder / f".{RECORD}"
        new.write_bytes(to_json(self))
        new.rename(folder / RECORD)


def read_records(place: Path) -> list[tuple[RunRecord, Path]]:
    """Return the records in a coordinator's directory, each with the run's working directory."""
    found = []
    for path in place.glob(f"*/{RECORD}"):
        try:
            found.append((from_json(RunRecord, path.read_bytes()), path.parent / WORKING_DIRECTORY))
        except (OSError, CodecError) as error:
            log.warning("record of a run not read", path=str(path), error=str(error))
    return found


def erase_record(directory: Path) -> None:
    """Delete the record beside a run's working directory, so that no later life resumes the run."""
    (directory.parent / RECORD).unlink(missing_ok=True)


def misfit(
    record: RunRecord, *, generation: int, point: RestorePoint | None, boot: str
) -> NotResumable | None:
    """Return why a run may not be resumed, as far as its record tells; None if it may.

    Args:
        record: the run.
        generation: of the coordinator that would resume it.
        point: the latest checkpoint.
        boot: this machine, as ``boot_id`` names it.
    """
    # Any generation in between may have written into the sinks, from an earlier checkpoint.
    if record.generation != generation - 1:
        return NotResumable(f"ran in life {record.generation} of the pipeline, and this one is {generation}")
    if not boot or record.boot != boot:
        return NotResumable("ran before the machine was restarted, or on another one")
    if grew_from(record, point):
        return None
    return NotResumable(
        f"grew from {record.base or 'the beginning'}, and {base_of(point) or 'the beginning'} is restored"
    )


def grew_from(record: RunRecord, point: RestorePoint | None) -> bool:
    """Return whether a run has gone on from a checkpoint: it began there, or it took the checkpoint itself."""
    taken = point is not None and not point.is_savepoint and point.manifest.generation == record.generation
    return taken or record.base == base_of(point)


def same_operators(were: Sequence[OperatorRecord], operators: Sequence[OperatorRecord]) -> bool:
    """Return whether operators have the same keys, states and shards as before.

    Which states they delete does not matter by itself: the states of the operators differ, or the checkpoint.
    """
    return len(were) == len(operators) and all(
        attrs.evolve(was, key_schema=one.key_schema, deleting=one.deleting) == one
        and same_key(was.key_schema, one.key_schema)
        for was, one in zip(were, operators, strict=True)
    )


def base_of(point: RestorePoint | None) -> str:
    """Return a name that identifies a checkpoint among those of all pipelines; "" for none."""
    return "" if point is None else f"{point.root}#{point.manifest.id}"


def boot_id() -> str:
    """Return an id of this machine and its present start; "" if it has none.

    This is Linux's ``boot_id``, see random(4). After another start, files may lack what had not reached the disk.
    """
    try:
        return _BOOT.read_text().strip()
    except OSError:
        return ""


def may_be_alive(java: int) -> bool:
    """Return whether a JVM may still live. It outlives a killed driver for a moment, and may write into a sink."""
    return started_at(java) is not None
