"""Batches without data: a streaming source without rows, which has Spark run a batch when time asks for one.

For its own stateful operators Spark runs a batch although no data has come: once the watermark has advanced, and
again and again for timers of processing time. An operator that is a function over Arrow batches is not asked. So
what has timers is given a second source beside its input. Nothing ever comes from that source, but it says that
there is something new when a batch is due, and Spark runs a batch.

The source runs in a Python process of its own on the driver's machine, which ends with the query. What it says is
written to the offset log before the batch, like any source's offset: so it may look at the clock.
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
from pyspark.sql.streaming.datasource import ReadLimit, SupportsTriggerAvailableNow
from pyspark.sql.types import StructType

from .batch_log import batch_times, newest_committed, watermark_after

TICKS: Final = "chandy_ticks"
"""The source's name in Spark."""
_TARGET: Final = "target"
_BATCH: Final = "batch"
_NAMES_REQUIRED: Final = "spark.sql.streaming.queryEvolution.enableSourceEvolution"

Offset = dict[str, int]
"""The last batch that was run because it was due, under ``batch``; -1 if none."""


@attrs.frozen
class TickTarget:
    """Whose batches a source watches, and what for. The coordinator writes it, the source reads it."""

    directory: str
    """The working checkpoint directory of the query."""
    event_time: bool = False
    """Whether a batch is due once the watermark has advanced."""
    period_ms: int | None = None
    """Milliseconds that a query is idle until a batch is due for timers of processing time; None: there are none."""

    def write(self, path: Path) -> None:
        """Put it where a source looks for it; what was there is replaced at once."""
        hidden = path.with_name(f".{path.name}")
        hidden.write_text(json.dumps(attrs.asdict(self)))
        hidden.replace(path)

    @classmethod
    def read(cls, path: Path) -> Self | None:
        """Return what is at ``path``, None if there is nothing yet."""
        try:
            return cls(**json.loads(path.read_text()))
        except FileNotFoundError:
            return None


def is_due(target: TickTarget, newest: int, idle_ms: float) -> bool:
    """Say whether another batch must run although there may be no data.

    Args:
        target: what is watched.
        newest: the newest committed batch, which is the newest planned one.
        idle_ms: milliseconds since that batch has been seen to have committed.
    """
    directory = Path(target.directory)
    if target.event_time and watermark_after(directory, newest) > batch_times(directory, newest).watermark_ms:
        return True
    return target.period_ms is not None and idle_ms >= target.period_ms


class TickReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Says when a batch is due; there are never any rows."""

    def __init__(self, target: Path, clock: Callable[[], float] = time.monotonic) -> None:
        """Make a reader.

        Args:
            target: where the ``TickTarget`` is, or will be.
            clock: seconds, never going back.
        """
        self._target = target
        self._clock = clock
        self._newest = -1
        self._since = clock()
        self._available_now = False
        self._looked = False

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802 (Spark's name)
        """Take note that the query is to end: it does timers of processing time that are due now, and no later ones."""
        self._available_now = True

    def initialOffset(self) -> Offset:  # noqa: N802
        """Return the offset before all batches."""
        return {_BATCH: -1}

    def latestOffset(self, start: Offset, limit: ReadLimit) -> Offset:  # noqa: N802
        """Return an offset other than ``start`` if a batch is due. Spark asks before it plans a batch."""
        target = TickTarget.read(self._target)
        if target is None:
            return start
        newest = newest_committed(Path(target.directory))
        if newest != self._newest:
            self._newest, self._since = newest, self._clock()
        if self._available_now and target.period_ms is not None:
            # Spark asks until no source has anything new: timers might keep a query that is to end running for ever.
            target = attrs.evolve(target, period_ms=None if self._looked else 0)
            self._looked = True
        due = newest >= 0 and is_due(target, newest, (self._clock() - self._since) * 1000)
        return {_BATCH: newest + 1} if due else start

    def partitions(self, start: Offset, end: Offset) -> Sequence[InputPartition]:
        """Return no partition: so no task is run to read nothing."""
        return []

    def read(self, partition: InputPartition) -> Iterator[tuple[Any, ...]]:
        """Yield nothing."""
        return iter(())

    def commit(self, end: Offset) -> None:
        """Do nothing: there is nothing to forget."""

    def stop(self) -> None:
        """Do nothing: nothing is held."""


class TickSource(DataSource):
    """The source, as Spark finds it by its name."""

    def __init__(self, options: MutableMapping[str, str]) -> None:
        self.options = options

    @classmethod
    def name(cls) -> str:
        """Return the name for ``format``."""
        return TICKS

    def schema(self) -> str:
        """Return the schema of the rows that never come."""
        return f"{_BATCH} long"

    def streamReader(self, schema: StructType) -> TickReader:  # noqa: N802
        """Return a reader for one run of a query."""
        return TickReader(Path(self.options[_TARGET]))


def with_ticks(df: DataFrame, target: Path, name: str) -> DataFrame:
    """Return a streaming DataFrame with the same columns and rows, for which Spark also runs batches that are due.

    Columns keep their event time; all are nullable. It costs a batch some 10 ms if it is due, else about 1 ms.

    Args:
        df: the input of an operator that has timers.
        target: where the ``TickTarget`` of the query will be when it runs; while there is none, nothing is due.
        name: tells this source from others in the query's offset log; letters, digits and underscores.
    """
    spark = df.sparkSession
    spark.dataSource.register(TickSource)
    reader = spark.readStream.format(TICKS).option(_TARGET, str(target))
    # Where names are not required, they are refused.
    if spark.conf.get(_NAMES_REQUIRED, "false") == "true":
        reader = reader.name(name)
    nothing = [F.lit(None).cast(column.dataType).alias(column.name) for column in df.schema]
    return df.unionAll(reader.load().select(*nothing))
