"""The sources of one query, and the offsets that Spark's log has of them."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import attrs

from ...storage.ids import BatchId
from ..spark.logs.offset_log import offsets_at
from ..spark.progress import newest_committed
from .source import Source


@attrs.frozen
class QuerySources:
    """The sources of a query that are of kinds that Chandy knows."""

    sources: Mapping[str, Source] = attrs.field(factory=dict)
    """By what Spark's offset log calls them."""

    def check(self, directory: Path) -> None:
        """Check that the sources have what the query of a working directory goes on with.

        Raises:
            SourceLostError: one does not.
        """
        if not self.sources or (batch := newest_committed(directory)) < 0:
            return
        for source, offset in self._known(directory, batch):
            source.check(offset)

    def completed(self, directory: Path, batch: BatchId) -> None:
        """Tell the sources that a completed checkpoint has the query up to a batch."""
        if batch >= 0:
            for source, offset in self._known(directory, batch):
                source.completed(offset)

    def close(self) -> None:
        """End what the sources do, in a bounded time."""
        for source in self.sources.values():
            source.close()

    def _known(self, directory: Path, batch: BatchId) -> list[tuple[Source, str]]:
        if not self.sources:
            return []
        try:
            logged = offsets_at(directory, batch)
        except OSError:
            # Spark keeps the newest batches alone: it has deleted the entry just now.
            return []
        return [
            (self.sources[one.source], one.offset)
            for one in logged
            if one.source in self.sources and one.offset is not None
        ]
