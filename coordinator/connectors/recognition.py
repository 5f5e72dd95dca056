"""Which sources of a query Chandy knows more of than that Spark reads them.

Those of other distributions are declared by entry points of the group ``chandy.sources``: each names, by the format in
lower case that is given to ``readStream``, a ``MakeSource``.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from importlib.metadata import EntryPoint, entry_points
from typing import TYPE_CHECKING, Final

from ...state.reader.names import FORMAT
from ..sinks.place import directory_path
from ..sources.query_sources import QuerySources
from ..sources.reader import SourceReader
from ..sources.remembered import RememberedLosses
from ..spark.local_path import is_local, local_path
from ..spark.writer_facts import KAFKA, SourceFacts, WriterFacts

if TYPE_CHECKING:
    from ..sources.source import Source

GROUP: Final = "chandy.sources"
"""The group of entry points that name the sources of other distributions by their formats."""


MakeSource = Callable[[SourceFacts, SourceReader], "Source | None"]
"""Makes a source of a query; None: there is nothing to do for it. It may raise a ``WriterError``."""


def sources_of(facts: WriterFacts, reader: SourceReader) -> QuerySources:
    """Return the sources of a query.

    Args:
        facts: what the query's writer would start.
        reader: the query.

    Raises:
        WriterError: a source cannot be read like this by a query of a pipeline.
    """
    found: dict[str, Source] = {}
    for number, source in enumerate(facts.sources):
        made = _known(number, source, reader)
        if made is not None:
            # The log calls a source by its number, or by the name that it was given.
            found |= {name: made for name in (str(number), source.label) if name}
    return QuerySources(found)


def _known(number: int, source: SourceFacts, reader: SourceReader) -> Source | None:
    # Only a driver that reads from there loads what asks it.
    if source.name == KAFKA:
        from .kafka.reading import reading_of
        from .kafka.source import kafka_source

        reading = reading_of(source.options, f"chandy-{reader.pipeline}-{reader.query}")
        return kafka_source(reading, reader.query)
    if source.name == FORMAT:
        from .state_changes import state_changes

        return state_changes(source.options, reader.query, reader.proof)
    if source.is_files:
        return _files(number, source, reader)
    declared = declared_sources().get(source.name.lower())
    if declared is None:
        return None
    make: MakeSource = declared.load()
    return make(source, reader)


def _files(number: int, source: SourceFacts, reader: SourceReader) -> Source:
    from ..spark.hadoop_files import HadoopFiles
    from .source_files import FilesSource

    path = source.options.get("path")
    is_made_again = path is not None and is_local(path) and _directory(path) in reader.taken_back
    return FilesSource(
        reader.query,
        path or f"its source of {source.name} files",
        source.ignores_missing_files,
        HadoopFiles(reader.spark),
        RememberedLosses(reader.store, reader.query, number, reader.proof.check_now),
        reader.begins_anew,
        is_made_again,
    )


def _directory(path: str) -> str:
    return directory_path(local_path(path, role="input").as_uri())


@cache
def declared_sources() -> dict[str, EntryPoint]:
    """Return the sources that installed distributions declare, by their formats."""
    return {found.name.lower(): found for found in entry_points(group=GROUP)}
