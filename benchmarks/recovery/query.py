"""The query of all contestants on Spark: its session, source and sink, and how parent and child talk to each other.

The parent creates a ``Place``, a folder that both use, and drives the stream with a ``Feed``::

    feed = Feed(course, place)
    last = feed.fill()                   # writes every key once and returns the number of the last file
    feed.await_commit(last, life)        # returns when the batch of file ``last`` committed, in seconds since 1970
    place.ask_to_raise(); feed.next()    # makes the sink raise once, in the next batch

The source takes one file at a time, so each file is one entry of the source's log, with the same number. A file has
been processed when a batch whose offset is that entry or a later one has committed (``file_source``). The parent reads
that from Spark's logs. In the child::

    spark = session(place, **{"spark.some.setting": "value"})
    rows = stream(spark, place)                              # of k long, v string
    writer = into_sink(rows.groupBy("k").agg(...).writeStream.outputMode("update"), place)

The sink sends the event ``raised`` with the number of the batch when it raises. The program that runs the query sends
everything else that the parent must know with ``benchmarks.lives.say``.
"""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING, Final

import attrs
import pyarrow as pa

from .. import stage
from ..file_source import committed_entry, write_file
from ..lives import Life, paths, say
from . import rows
from .scenario import Course

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.readwriter import DataStreamWriter

_POLL_SECONDS: Final = 0.01
_DEADLINE_SECONDS: Final = 900.0


@attrs.frozen
class Place:
    """A contestant's folder, as parent and child know it."""

    folder: Path
    commit_logs: str
    """Pattern, below the folder, of the commit logs of all runs of the query: ``checkpoint/commits``."""

    @property
    def input(self) -> Path:
        """The files that the source reads, one for each batch."""
        return self.folder / "input"

    @property
    def log(self) -> Path:
        """The output of the child, its JVM and its workers."""
        return self.folder / "driver.log"

    def ask_to_raise(self) -> None:
        """Ask the sink to raise in the next batch."""
        self._raise.touch()

    def must_raise(self) -> bool:
        """Return whether the sink must raise now. Each request makes this true once."""
        try:
            self._raise.unlink()
        except FileNotFoundError:
            return False
        return True

    def has_committed(self, file: int) -> bool:
        """Return whether a run of the query has processed a file. Directories of runs may be deleted meanwhile."""
        return any(committed_entry(log.parent) >= file for log in paths(self.folder, self.commit_logs))

    @property
    def _raise(self) -> Path:
        return self.folder / "raise"


class Feed:
    """Writes the files of the stream, one for each batch."""

    def __init__(self, course: Course, place: Place) -> None:
        self._course = course
        self._place = place
        self._written = 0
        place.input.mkdir(parents=True)

    def fill(self) -> int:
        """Write every key once, and return the number of the last file."""
        for table in rows.fill(self._course):
            self._write(table)
        return self._written - 1

    def next(self) -> int:
        """Write the file of a small batch, and return its number."""
        return self._write(rows.touch(self._course, self._written))

    def replayed(self, life: Life) -> None:
        """Write the batches that come after the checkpoint, and wait for each one to commit."""
        for _ in range(self._course.replayed):
            self.await_commit(self.next(), life)

    def await_commit(self, file: int, life: Life) -> float:
        """Wait until the batch of a file has committed, and return the time in seconds since 1970.

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
        write_file(table, self._place.input / f"{number:06}.parquet", number, compression="none")
        return number


class SinkError(Exception):
    """Raised by the sink when the parent asks for it."""


def session(place: Place, **settings: str) -> SparkSession:
    """Start Spark in the contestant's folder, with the settings of all benchmarks and these, by Spark's names."""
    return stage.session(place.folder, settings)


def stream(spark: SparkSession, place: Place) -> DataFrame:
    """Read the files as a stream, one for each batch."""
    return spark.readStream.schema(rows.SCHEMA).option("maxFilesPerTrigger", 1).parquet(str(place.input))


def into_sink(writer: DataStreamWriter, place: Place) -> DataStreamWriter:
    """Compute each batch and drop its rows. Raise after that if the parent has asked for it."""

    def write(batch: DataFrame, number: int) -> None:
        batch.write.format("noop").mode("append").save()
        if place.must_raise():
            say("raised", batch=number)
            raise SinkError(f"asked for in batch {number}")

    return writer.foreachBatch(write)
