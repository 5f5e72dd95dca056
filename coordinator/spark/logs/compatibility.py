"""Refuses the logs of a query that the running Spark cannot read, because a newer one has written them."""

from __future__ import annotations

from pathlib import Path

import pyspark

from ....state.pyspark_versions import LOG_VERSIONS
from ...errors import RestoreError
from ..listing import numbers_in
from .offset_log import version_of


def check_logs(directory: Path, written_by: str) -> None:
    """Check that Spark can read the offset log and the commit log in a query's checkpoint directory.

    Args:
        directory: the directory.
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


def _version(entry: Path) -> int | None:
    with entry.open(errors="replace") as stream:
        return version_of(stream.readline(20))
