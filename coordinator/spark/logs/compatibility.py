"""Refuses the logs of a query that it cannot go on with: those of a newer Spark, and those of other sources."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pyspark

from ....state.pyspark_versions import LOG_VERSIONS
from ....storage.ids import BatchId
from ...errors import RestoreError
from ..listing import numbers_in
from .offset_log import offsets_at, version_of


def check_logs(directory: Path, written_by: str) -> None:
    """Check that Spark can read the offset log and the commit log in a query's checkpoint directory.

    Args:
        written_by: the version of PySpark that has written it.

    Raises:
        RestoreError: a log has a newer format. Names both versions of PySpark.
    """
    for log, newest in LOG_VERSIONS.items():
        for batch in sorted(numbers_in(directory / log)):
            version = _version(directory / log / str(batch))
            if version is not None and version > newest:
                raise RestoreError(
                    f"PySpark {pyspark.__version__} cannot go on from a checkpoint of PySpark {written_by}",
                    f"Spark's log {log!r} in version {newest} at most",
                    f"version {version} in {log}/{batch}",
                    f"restore it with PySpark {written_by}, or another one that is newer than {pyspark.__version__}",
                )


def check_sources(query: str, directory: Path, sources: Sequence[str]) -> None:
    """Check that a query has as many sources as its offset log, which knows them by their order or by their names.

    Args:
        query: the name of the query.
        directory: its checkpoint directory.
        sources: the formats of what it reads now, in the order of Spark's log.

    Raises:
        RestoreError: the log knows them by their order, and the query has more or fewer.
    """
    if (newest := max(numbers_in(directory / "offsets"), default=-1)) < 0:
        return
    logged = offsets_at(directory, BatchId(newest))
    if len(logged) != len(sources) and not any(one.is_named for one in logged):
        raise RestoreError(
            f"query {query!r} cannot go on where it stood",
            f"{len(logged)} sources, because Spark has logged how far it has read each of them, by their order",
            f"{len(sources)}: {', '.join(sources)}",
            "give it the sources that it had, in the same order (timers of a processor are one, too), or another name; "
            "sources with names may come and go: set spark.sql.streaming.queryEvolution.enableSourceEvolution, and "
            "name each by readStream.name(...), from the first start on",
        )


def _version(entry: Path) -> int | None:
    with entry.open(errors="replace") as stream:
        return version_of(stream.readline(20))
