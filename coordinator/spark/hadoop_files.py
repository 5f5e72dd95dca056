"""Looks for files on any of Hadoop's file systems, as Spark's own driver sees them."""

from __future__ import annotations

from collections.abc import Collection
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import unquote

import attrs
from py4j.protocol import Py4JError

from .local_path import is_local, local_path

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_AT_ONCE: Final = 8
"""How many remote files are looked for at a time. A store answers in milliseconds."""


@attrs.frozen
class HadoopFiles:
    """Files by their URIs, as the log of a file source has them."""

    spark: SparkSession

    def missing(self, uris: Collection[str]) -> tuple[str, ...]:
        """Return those that do not exist, sorted.

        Raises:
            OSError: one cannot be looked for.
        """
        local = [uri for uri in uris if is_local(uri)]
        gone = [uri for uri in local if not _exists(local_path(unquote(uri), role="file of a source"))]
        if remote := [uri for uri in uris if not is_local(uri)]:
            with ThreadPoolExecutor(min(_AT_ONCE, len(remote)), "chandy-sources") as pool:
                there = pool.map(self._exists, remote)
                gone += [uri for uri, found in zip(remote, there, strict=True) if not found]
        return tuple(sorted(gone))

    def _exists(self, uri: str) -> bool:
        jvm: Any = self.spark.sparkContext._jvm
        try:
            path = getattr(jvm, "org.apache.hadoop.fs.Path")(jvm.java.net.URI(uri))
            settings = self.spark._jsparkSession.sessionState().newHadoopConf()
            return bool(path.getFileSystem(settings).exists(path))
        except Py4JError as error:
            raise OSError(f"{uri}: {str(error).partition(chr(10))[0]}") from error


def _exists(path: Path) -> bool:
    try:
        path.stat()
    except (FileNotFoundError, NotADirectoryError):
        return False
    return True
