"""Compares two checkpoints: the progress of their queries, and the state of their operators."""

from __future__ import annotations

from collections.abc import Iterator

import attrs

from ..state.reader.comparing import Change
from ..state.reader.differences import OperatorDifferences, StateDifferences
from ..state.reader.differences import compare as compare_operators
from ..storage.checkpoints.locate import Located
from ..storage.checkpoints.manifest import QueryRecord
from .restore.restore_point import WORKING
from .spark.source_offsets import source_offsets

__all__ = ["Change", "OperatorDifferences", "StateDifferences", "compare_operators", "compare_queries"]


@attrs.frozen
class SourceDifference:
    """How much further one checkpoint has read a source than the other."""

    source: str
    """Its number among the query's sources, or its name."""
    old: str | None
    """The offset as Spark has written it down; None if nothing had been read of the source."""
    new: str | None


@attrs.frozen
class QueryDifferences:
    """How a query differs between two checkpoints."""

    name: str
    change: Change | None
    """Added or removed if only one checkpoint has it, changed if it has gone on; None if it is at the same batch."""
    batches: tuple[int | None, int | None]
    """The last batch in the old and in the new checkpoint; None if it does not have the query, -1 before the first."""
    sources: tuple[SourceDifference, ...]
    """The sources whose offsets differ."""


def compare_queries(old: Located, new: Located) -> Iterator[QueryDifferences]:
    """Compare the progress of the queries in two checkpoints.

    Raises:
        DamagedError, ObjectMissingError: the file with a query's offsets cannot be read.
    """
    before = {record.name: record for record in old.manifest.queries}
    after = {record.name: record for record in new.manifest.queries}
    for name in {**before, **after}:
        yield _compare_query(old, new, name, before.get(name), after.get(name))


def _compare_query(
    old: Located, new: Located, name: str, was: QueryRecord | None, now: QueryRecord | None
) -> QueryDifferences:
    before = source_offsets(old.store, was, WORKING) if was else {}
    after = source_offsets(new.store, now, WORKING) if now else {}
    sources = [
        SourceDifference(source, before.get(source), after.get(source)) for source in {**before, **after}
    ]
    batches = was.batch if was else None, now.batch if now else None
    moved = [source for source in sources if source.old != source.new]
    change: Change | None = None
    if was is None or now is None:
        change = Change.ADDED if was is None else Change.REMOVED
    elif was.batch != now.batch or moved:
        change = Change.CHANGED
    return QueryDifferences(name, change, batches, tuple(moved))
