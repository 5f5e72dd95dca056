"""Which sources of a query Chandy knows more of than that Spark reads them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..sources.query_sources import QuerySources
from ..spark.writer_facts import KAFKA, WriterFacts

if TYPE_CHECKING:
    from ..sources.source import Source


def sources_of(facts: WriterFacts, pipeline: str, query: str) -> QuerySources:
    """Return the sources of a query.

    Args:
        facts: what the query's writer would start.
        pipeline: the name of its pipeline.
        query: its own name.
    """
    found: dict[str, Source] = {}
    for number, source in enumerate(facts.sources):
        if source.name != KAFKA:
            continue
        # Only a driver that reads Kafka loads what asks it.
        from .kafka.reading import reading_of
        from .kafka.source import kafka_source

        made = kafka_source(reading_of(source.options, f"chandy-{pipeline}-{query}"), query)
        if made is not None:
            # The log calls a source by its number, or by the name that it was given.
            found |= {name: made for name in (str(number), source.label) if name}
    return QuerySources(found)
