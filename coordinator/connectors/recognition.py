"""Which sources of a query Chandy knows more of than that Spark reads them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ...state.reader.names import FORMAT
from ..sources.query_sources import QuerySources
from ..spark.writer_facts import KAFKA, SourceFacts, WriterFacts

if TYPE_CHECKING:
    from ...storage.checkpoints.proof import FenceProof
    from ..sources.source import Source


def sources_of(facts: WriterFacts, pipeline: str, query: str, proof: FenceProof) -> QuerySources:
    """Return the sources of a query.

    Args:
        facts: what the query's writer would start.
        pipeline: the name of its pipeline.
        query: its own name.
        proof: that no successor has taken the pipeline over.

    Raises:
        WriterError: a source cannot be read like this by a query of a pipeline.
    """
    found: dict[str, Source] = {}
    for number, source in enumerate(facts.sources):
        made = _known(source, pipeline, query, proof)
        if made is not None:
            # The log calls a source by its number, or by the name that it was given.
            found |= {name: made for name in (str(number), source.label) if name}
    return QuerySources(found)


def _known(source: SourceFacts, pipeline: str, query: str, proof: FenceProof) -> Source | None:
    # Only a driver that reads from there loads what asks it.
    if source.name == KAFKA:
        from .kafka.reading import reading_of
        from .kafka.source import kafka_source

        return kafka_source(reading_of(source.options, f"chandy-{pipeline}-{query}"), query)
    if source.name == FORMAT:
        from .state_changes import state_changes

        return state_changes(source.options, query, proof)
    return None
