"""A streaming source without rows, which makes Spark run a batch without data when a timer needs one.

For its own stateful operators, Spark runs batches without data: once after the watermark has advanced, and repeatedly
for processing-time timers. It does not do so for an operator that is a function over Arrow batches. So an operator with
timers gets a second source beside its input. This source never returns rows, but it reports a new offset when a batch
is due, and Spark then runs a batch.

The source runs in its own Python process on the driver's machine, which ends with the query. Its offset is written to
the offset log before the batch, as that of any source. So it may depend on the clock.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator, MutableMapping, Sequence
from pathlib import Path
from typing import Any, Final, Self

import attrs
from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812 (its usual name)
from pyspark.sql.datasource import DataSource, DataSourceStreamReader, InputPartition
from pyspark.sql.types import StructType

from ...storage.ids import NO_BATCH, BatchId
from ..pyspark_versions import SupportsTriggerAvailableNow, stream_reader
from ..source_names import named
from .batch_log import batch_times, newest_committed, watermark_after

TICKS: Final = "chandy_ticks"
"""The source's name in Spark."""
_TARGET: Final = "target"
_BATCH: Final = "batch"

Offset = dict[str, int]
"""Under ``batch``, the last batch that ran because it was due; -1 if none."""


@attrs.frozen
class TickTarget:
    """The query that a source watches, and when its batches are due. The coordinator writes it, the source reads it."""

    directory: str
    """The working checkpoint directory of the query."""
    event_time: bool = False
    """Whether a batch is due when the watermark has advanced."""
    period_ms: int | None = None
    """How long a query is idle before a batch is due for processing-time timers; None if it has no such timers."""
    available_now: bool = False
    """Whether the query ends once it has taken what is there."""

    def write(self, path: Path) -> None:
        """Write the target to a file, which replaces an older one atomically."""
        hidden = path.with_name(f".{path.name}")
        hidden.write_text(json.dumps(attrs.asdict(self)))
        hidden.replace(path)

    @classmethod
    def read(cls, path: Path) -> Self | None:
        """Return the target in a file, None if there is no file yet."""
        try:
            return cls(**json.loads(path.read_text()))
        except FileNotFoundError:
            return None


def is_due(target: TickTarget, newest: BatchId, idle_ms: float) -> bool:
    """Return whether another batch must run even if there is no data.

    Args:
        target: the query to watch.
        newest: the newest committed batch, which is also the newest planned one.
        idle_ms: milliseconds since that batch was first seen committed.
    """
    directory = Path(target.directory)
    if target.event_time and watermark_after(directory, newest) > batch_times(directory, newest).watermark_ms:
        return True
    return target.period_ms is not None and idle_ms >= target.period_ms


class TickReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Reports a new offset when a batch is due, and never returns rows."""

    def __init__(self, target: Path, clock: Callable[[], float] = time.monotonic) -> None:
        """Create a reader.

        Args:
            target: the file with the ``TickTarget``, which may not exist yet.
            clock: monotonic, in seconds.
        """
        self._target = target
        self._clock = clock
        self._newest = NO_BATCH
        self._since = clock()
        self._looked = False

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802 (Spark's name)
        """Do nothing: the target says whether the query ends by itself, also to a PySpark that does not call this."""

    def initialOffset(self) -> Offset:  # noqa: N802
        """Return the offset before all batches."""
        return {_BATCH: -1}

    def latestOffset(self, start: Offset, limit: object) -> Offset:  # noqa: N802
        """Return an offset other than ``start`` if a batch is due. Spark asks before it plans a batch."""
        target = TickTarget.read(self._target)
        if target is None:
            return start
        newest = newest_committed(Path(target.directory))
        if newest != self._newest:
            self._newest, self._since = newest, self._clock()
        if target.available_now and target.period_ms is not None:
            # It fires the timers that are due now. Spark asks until no source has a new offset; with a period, the
            # query would never end.
            target = attrs.evolve(target, period_ms=None if self._looked else 0)
            self._looked = True
        due = newest >= 0 and is_due(target, newest, (self._clock() - self._since) * 1000)
        return {_BATCH: newest + 1} if due else start

    def partitions(self, start: Offset, end: Offset) -> Sequence[InputPartition]:
        """Return no partition, so that Spark runs no task."""
        return []

    def read(self, partition: InputPartition) -> Iterator[tuple[Any, ...]]:
        """Yield nothing."""
        return iter(())

    def commit(self, end: Offset) -> None:
        """Do nothing: the source keeps nothing for a batch."""

    def stop(self) -> None:
        """Do nothing: the source has no resources."""


class TickSource(DataSource):
    """The data source that Spark finds by its name."""

    def __init__(self, options: MutableMapping[str, str]) -> None:
        self.options = options

    @classmethod
    def name(cls) -> str:
        """Return the source's name in Spark."""
        return TICKS

    def schema(self) -> str:
        """Return the schema, which Spark demands although there are no rows."""
        return f"{_BATCH} long"

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802
        """Return a reader for one run of a query."""
        return stream_reader(TickReader(Path(self.options[_TARGET])))


def with_ticks(df: DataFrame, target: Path, name: str) -> DataFrame:
    """Return a streaming DataFrame with the same rows, for which Spark also runs the batches that timers need.

    Columns keep their watermark, and all are nullable. A batch takes about 10 ms longer if it is due, otherwise 1 ms.

    Args:
        df: the input of an operator with timers.
        target: the file with the query's ``TickTarget``; until it exists, no batch is due.
        name: the source's name in the query's offset log: letters, digits and underscores.
    """
    spark = df.sparkSession
    spark.dataSource.register(TickSource)
    reader = named(spark, spark.readStream.format(TICKS).option(_TARGET, str(target)), name)
    nothing = [F.lit(None).cast(column.dataType).alias(column.name) for column in df.schema]
    return df.unionAll(reader.load().select(*nothing))
