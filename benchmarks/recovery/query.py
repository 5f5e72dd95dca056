"""The query that contestants on Spark have in common: its session, source and sink, and how parent and child meet.

The parent gives out a ``Place``, a folder that both know, and drives the stream with a ``Feed``::

    feed = Feed(course, place)
    last = feed.fill()                   # writes the files of the filling; the number of the last one
    feed.await_commit(last, life)        # the moment when the batch of file ``last`` had committed, seconds since 1970
    place.ask_to_raise(); feed.next()    # the sink raises in the next batch, once

The source takes one file at a time, so a file is an entry of the source's log, and both have the same number. A file
has been processed when a batch has committed whose offset is that entry or a later one (``file_source``): Spark's logs
say so, and nobody in the child has to look. In the child::

    spark = session(place, **{"spark.some.setting": "value"})
    rows = stream(spark, place)                              # of k long, v string
    writer = into_sink(rows.groupBy("k").agg(...).writeStream.outputMode("update"), place)

tells ``raised`` with the batch in the moment of raising; whoever runs the query tells with ``benchmarks.lives.say``
what else the parent must know.
"""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import TYPE_CHECKING, Final

import attrs
import pyarrow as pa
import pyarrow.parquet as pq

from .. import stage
from ..file_source import committed_entry
from ..lives import Life, paths, say
from . import rows
from .scenario import Course

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.readwriter import DataStreamWriter

_FIRST_FILE: Final = 1_700_000_000
"""Seconds since 1970 of the first file; any moment would do."""
_POLL_SECONDS: Final = 0.01
_DEADLINE_SECONDS: Final = 900.0


@attrs.frozen
class Place:
    """A contestant's folder, as parent and child know it."""

    folder: Path
    commit_logs: str
    """Pattern, below the folder, of the commit logs that the query has or has had: ``checkpoint/commits``."""

    @property
    def input(self) -> Path:
        """The files that the source takes, one a batch."""
        return self.folder / "input"

    @property
    def log(self) -> Path:
        """What child, JVM and workers print."""
        return self.folder / "driver.log"

    def ask_to_raise(self) -> None:
        """Have the sink raise in the next batch."""
        self._raise.touch()

    def must_raise(self) -> bool:
        """Whether the sink is to raise now; true once each time that it is asked."""
        try:
            self._raise.unlink()
        except FileNotFoundError:
            return False
        return True

    def has_committed(self, file: int) -> bool:
        """Whether a run that is there has processed a file; the query's runs may be going meanwhile."""
        return any(committed_entry(log.parent) >= file for log in paths(self.folder, self.commit_logs))

    @property
    def _raise(self) -> Path:
        return self.folder / "raise"


class Feed:
    """Writes the stream's files, one a batch, as the parent wants them."""

    def __init__(self, course: Course, place: Place) -> None:
        self._course = course
        self._place = place
        self._written = 0
        place.input.mkdir(parents=True)

    def fill(self) -> int:
        """Write every key once; return the number of the last file of these."""
        for table in rows.fill(self._course):
            self._write(table)
        return self._written - 1

    def next(self) -> int:
        """Write the file of a small batch; return its number."""
        return self._write(rows.touch(self._course, self._written))

    def replayed(self, life: Life) -> None:
        """Have the batches commit that come after the checkpoint, one after the other."""
        for _ in range(self._course.replayed):
            self.await_commit(self.next(), life)

    def await_commit(self, file: int, life: Life) -> float:
        """Wait until the batch of a file has committed; return the moment, in seconds since 1970.

        Raises:
            RuntimeError: the child has ended.
            TimeoutError: it took too long.
        """
        deadline = time.monotonic() + _DEADLINE_SECONDS
        while not self._place.has_committed(file):
            if not life.is_alive:
                raise RuntimeError(
                    f"The driver has ended before file {file} was processed: {self._place.log}"
                )
            if time.monotonic() > deadline:
                raise TimeoutError(f"File {file} has not been processed in {_DEADLINE_SECONDS:g} s")
            time.sleep(_POLL_SECONDS)
        return time.time()

    def _write(self, table: pa.Table) -> int:
        number, self._written = self._written, self._written + 1
        # Spark must not see a file that is not whole; it passes over names that begin with a dot.
        hidden, path = (self._place.input / f"{dot}{number:06}.parquet" for dot in (".", ""))
        pq.write_table(table, hidden, compression="none")
        # Spark's file source takes files by modification time.
        os.utime(hidden, (_FIRST_FILE + number, _FIRST_FILE + number))
        hidden.rename(path)
        return number


class SinkError(Exception):
    """What the sink raises when it is asked to."""


def session(place: Place, **settings: str) -> SparkSession:
    """Start Spark as all benchmarks do, in the contestant's folder; settings by Spark's names."""
    return stage.session(place.folder, settings)


def stream(spark: SparkSession, place: Place) -> DataFrame:
    """Read the files as a stream, one a batch."""
    return spark.readStream.schema(rows.SCHEMA).option("maxFilesPerTrigger", 1).parquet(str(place.input))


def into_sink(writer: DataStreamWriter, place: Place) -> DataStreamWriter:
    """Have each batch computed and thrown away; raise after that, where the parent asks for it."""

    def write(batch: DataFrame, number: int) -> None:
        batch.write.format("noop").mode("append").save()
        if place.must_raise():
            say("raised", batch=number)
            raise SinkError(f"asked for in batch {number}")

    return writer.foreachBatch(write)
