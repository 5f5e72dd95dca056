"""The query that reads a source, as a pipeline has it."""

from __future__ import annotations

from chandy.coordinator.sources.reader import SourceReader
from chandy.storage.checkpoints.proof import Unshared

from ...builders import MemoryStore


def reading_query(name: str = "q") -> SourceReader:
    """Return a query of a pipeline that leads, without a Spark session."""
    return SourceReader(
        spark=None,  # type: ignore[arg-type]
        pipeline="p",
        query=name,
        store=MemoryStore(),
        proof=Unshared(),
        begins_anew=False,
    )
