"""Writes a batch in the tasks: once for all sinks of its query, if each of them can publish it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

import attrs

from .contract import Staged, TwoPhaseSink, WriteContext
from .limits import Limits
from .staged import StagedSink, in_utc, refused

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame


_Check = Callable[["pa.Table"], str | None]
"""Says which rows cannot be published; None if all can."""


@attrs.frozen
class Writing:
    """The sinks of a query as its tasks see them. What one sink stages, all of them publish."""

    sinks: tuple[TwoPhaseSink, ...]
    limits: Mapping[str, Limits] = attrs.field(factory=dict)
    """What the targets do not take, by the uid of their sink."""
    takes_digests: bool = False
    """Whether what is staged says the digest of its rows."""

    def for_rows(self, rows: DataFrame) -> Writing:
        """Return the sinks as they take certain rows. See ``TwoPhaseSink.for_rows``."""
        return attrs.evolve(self, sinks=tuple(sink.for_rows(rows) for sink in self.sinks))

    def write(self, batches: Iterator[pa.RecordBatch], context: WriteContext) -> Staged:
        """Write one partition of a batch.

        Raises:
            OutputError: a sink could never publish it.
        """
        checks = [*self._checks()]
        rows = _checked(batches, checks, context.batch) if checks else batches
        if not self.takes_digests:
            return self.sinks[0].write(rows, context)
        # Tasks that take none do not wait for its import.
        from .digest import Digester

        digester = Digester()
        staged = self.sinks[0].write(digester.over(rows), context)
        return attrs.evolve(staged, digest=digester.digest)

    def _checks(self) -> Iterator[tuple[TwoPhaseSink, _Check]]:
        """Yield what is asked of rows, besides what the first sink asks of those that it writes."""
        for sink in self.sinks:
            if sink.uid in self.limits and self.limits[sink.uid] != Limits():
                yield sink, self.limits[sink.uid].broken_by
        for sink in self.sinks[1:]:
            # Most targets can have all rows of the types that they take.
            if isinstance(sink, StagedSink) and type(sink).unpublishable is not StagedSink.unpublishable:
                yield sink, sink.unpublishable


def _checked(
    batches: Iterator[pa.RecordBatch], checks: Sequence[tuple[TwoPhaseSink, _Check]], batch: int
) -> Iterator[pa.RecordBatch]:
    import pyarrow as pa

    for some in batches:
        rows = in_utc(pa.Table.from_batches([some]))
        for sink, check in checks:
            if (found := check(rows)) is not None:
                raise refused(sink, batch, found)
        yield some
