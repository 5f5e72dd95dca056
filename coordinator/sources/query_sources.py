"""The sources of one query, and the offsets that Spark's log has of them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path

import attrs

from ...storage.ids import BatchId
from ..spark.logs.offset_log import offsets_at
from ..spark.progress import SOURCES, newest_committed
from .source import Source, Standing


@attrs.frozen
class QuerySources:
    """The sources of a query that are of kinds that Chandy knows."""

    sources: Mapping[str, Source] = attrs.field(factory=dict)
    """By what Spark's offset log calls them."""

    def check(self, directory: Path, replaced: Iterable[Path] = ()) -> None:
        """Check that the sources have what the query of a working directory goes on with.

        Args:
            directory: the working directory.
            replaced: those of the query's runs that this one replaces, which may have read further.

        Raises:
            SourceLostError: one does not.
        """
        if not self.sources or (offsets := self._offsets(directory, newest_committed(directory))) is None:
            return
        for name, source in self.sources.items():
            logs = tuple(one / SOURCES / name for one in (directory, *replaced))
            source.check(Standing(offsets.get(name), logs))

    def completed(self, directory: Path, batch: BatchId) -> None:
        """Tell the sources that a completed checkpoint has the query up to a batch."""
        for name, offset in (self._offsets(directory, batch) or {}).items():
            self.sources[name].completed(offset)

    def close(self) -> None:
        """End what the sources do, in a bounded time."""
        for source in self.sources.values():
            source.close()

    def _offsets(self, directory: Path, batch: BatchId) -> dict[str, str] | None:
        """Return where the sources stood after a batch, as far as they had given anything; None if nobody knows."""
        if not self.sources or batch < 0:
            return {}
        try:
            logged = offsets_at(directory, batch)
        except OSError:
            # Spark keeps the newest batches alone: it has deleted the entry just now.
            return None
        return {
            one.source: one.offset for one in logged if one.source in self.sources and one.offset is not None
        }
