"""The contestants on a cluster: counters by key, Chandy's and Spark's, and what feeds them batch by batch."""

from __future__ import annotations

import contextlib
import tempfile
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, Final

import attrs
import numpy as np
import pyarrow as pa
from pyspark.sql import DataFrame
from pyspark.sql.streaming.query import StreamingQuery
from pyspark.sql.streaming.stateful_processor import StatefulProcessor

from chandy.coordinator import CheckpointConfig, CheckpointCoordinator, CheckpointedQuery, FixedDelay

from ..counters import OUTPUT, RowCounter
from ..file_source import NOTHING, reported_entry, reported_source, write_file
from ..report import Options
from .arena import TASKS, Arena
from .standalone import wait_for

AGGREGATE: Final = "Chandy aggregate"
STANDBY: Final = "Chandy aggregate, with a standby"
NO_CHANGELOG: Final = "Chandy aggregate, without changelogs"
ROWS: Final = "Chandy transform_with_state"
COUNT: Final = "Spark groupBy().count()"
SPARK_ROWS: Final = "PySpark transformWithState"

UID: Final = "counts"
SHARDS: Final = 12
_SETTINGS: Final[dict[str, dict[str, Any]]] = {STANDBY: {"standbys": 1}, NO_CHANGELOG: {"changelog": False}}
"""Of ``CheckpointConfig``."""
_BATCH_SECONDS: Final = 300.0
"""A batch that takes longer has failed."""
_STANDBY_SECONDS: Final = 15.0
"""How long standbys may take that a checkpoint has made."""


def has_standbys() -> bool:
    """Return whether this version of Chandy has standbys."""
    return "standbys" in attrs.fields_dict(CheckpointConfig)


def taking_part(options: Options, part: str, contestants: Iterable[str]) -> list[str]:
    """Return the contestants of a part that were chosen and that this version has."""
    return [
        name
        for name in contestants
        if options.takes(f"{part}: {name}") and (name != STANDBY or has_standbys())
    ]


class StreamEndedError(Exception):
    """A contestant's query has failed for good."""


@attrs.frozen
class Running:
    """A contestant's query."""

    query: StreamingQuery | CheckpointedQuery
    coordinator: CheckpointCoordinator | None
    """None: the query is Spark's own."""
    has_standbys: bool = False

    def check(self) -> None:
        """Check that the query runs, or is about to go on.

        Raises:
            StreamEndedError: it has failed.
        """
        if not self.query.isActive:
            raise StreamEndedError(f"the query has ended: {self.query.exception()}")

    def checkpoint(self) -> None:
        """Take a checkpoint, and others until all shards have the standbys that these make.

        Spark's own state is durable with each batch.

        Raises:
            TimeoutError: a shard has no standby that is in sync.
        """
        if (coordinator := self.coordinator) is None:
            return
        coordinator.checkpoint().result(_BATCH_SECONDS)
        until = time.monotonic() + _BATCH_SECONDS
        while self.has_standbys and not self._are_in_sync(coordinator, until):
            # A shard that has just moved gets its standby with the next one.
            coordinator.checkpoint().result(_BATCH_SECONDS)

    @staticmethod
    def _are_in_sync(coordinator: CheckpointCoordinator, until: float) -> bool:
        """Return whether each shard gets a standby in time, with no other checkpoint."""
        try:
            wait_for(
                "a standby of each shard",
                lambda: all(one.standby for one in coordinator.assignment()),
                _STANDBY_SECONDS,
                poll=0.2,
            )
        except TimeoutError:
            if time.monotonic() >= until:
                raise
            return False
        return True


@contextlib.contextmanager
def running(
    arena: Arena,
    contestant: str,
    source: DataFrame,
    *,
    interval: str | None = None,
    processor: StatefulProcessor | None = None,
) -> Iterator[Running]:
    """Run a contestant's stream in folders of its own.

    Args:
        arena: the cluster.
        contestant: its name.
        source: a stream of ``k long, v long``.
        interval: time between Chandy's checkpoints; None: only on request.
        processor: what a processor of rows is to do; None: it counts.
    """
    spark = arena.spark
    # A new folder for each stream: the hosts before may still be writing into the old one.
    folder = Path(tempfile.mkdtemp(dir=arena.folder, prefix="stream-"))
    trigger: dict[str, Any] = {"processingTime": "0 seconds"}
    if contestant in (COUNT, SPARK_ROWS):
        if contestant == COUNT:
            frame = source.groupBy("k").count()
        else:
            counter = processor or RowCounter()
            frame = source.groupBy("k").transformWithState(counter, OUTPUT, "Update", "None")
        writer = frame.writeStream.format("noop").outputMode("update").trigger(**trigger)
        native = writer.option("checkpointLocation", str(folder / "checkpoint")).start()
        try:
            yield Running(native, None)
        finally:
            native.stop()
        return
    settings = _SETTINGS.get(contestant, {})
    config = CheckpointConfig(
        interval=interval,
        host_timeout="10 s",
        # Spark fails a batch again and again until it has given a lost machine up.
        restart=FixedDelay("100 ms", attempts=1000),
        shared=True,
        **settings,
    )
    with CheckpointCoordinator(
        spark, pipeline="benchmark", storage=str(folder / "storage"), config=config
    ) as coordinator:
        if contestant == ROWS:
            frame = coordinator.transform_with_state(
                source,
                key=["k"],
                processor=processor or RowCounter(),
                output=OUTPUT,
                uid=UID,
                shards=SHARDS,
                parallelism=TASKS,
            )
        else:
            frame = coordinator.aggregate(
                source, by=["k"], uid=UID, shards=SHARDS, parallelism=TASKS, n=("*", "count")
            )
        writer = frame.writeStream.format("noop").outputMode("append").trigger(**trigger)
        # Streams can live side by side, and no two queries of a session have one name.
        yield Running(coordinator.start(writer, name=folder.name), coordinator, contestant == STANDBY)


class Feed:
    """Gives one query batch after batch, and waits for each to commit."""

    def __init__(self, arena: Arena) -> None:
        self._spark = arena.spark
        self._folder = Path(tempfile.mkdtemp(dir=arena.folder, prefix="files-"))
        self._random = np.random.default_rng(1)
        self._files = 0

    def stream(self) -> DataFrame:
        """Return the stream of ``k long, v long``: a file a batch."""
        reader = self._spark.readStream.schema("k long, v long").option("maxFilesPerTrigger", 1)
        return reader.parquet(str(self._folder))

    def fill(self, keys: int, rows: int) -> None:
        """Give each key once, so many rows a batch; before the query starts."""
        for start in range(0, keys, rows):
            self._add(np.arange(start, min(start + rows, keys)))

    def add(self, keys: int, rows: int) -> None:
        """Give a batch with rows on random keys."""
        self._add(self._random.integers(0, keys, rows))

    def batch(self, stream: Running, keys: int, rows: int) -> float:
        """Give such a batch, and return the seconds until it has committed."""
        begun = time.monotonic()
        self.add(keys, rows)
        self.wait(stream)
        return time.monotonic() - begun

    def wait(self, stream: Running) -> None:
        """Wait until all that was given has committed.

        Raises:
            StreamEndedError: the query has failed.
            TimeoutError: a batch takes too long.
        """
        last = self._files - 1

        def has_committed() -> bool:
            stream.check()
            return self._entry() >= last

        wait_for(f"the batch with file {last}", has_committed, _BATCH_SECONDS, poll=0.02)

    def _add(self, keys: np.ndarray[Any, np.dtype[np.int64]]) -> None:
        table = pa.table({"k": keys, "v": np.zeros(len(keys), np.int64)})
        write_file(table, self._folder / f"{self._files:06}.parquet", self._files)
        self._files += 1

    def _entry(self) -> int:
        # Spark's own query: Chandy's asks state hosts when it is asked, and some of them may be lost.
        reports = (query.lastProgress for query in self._spark.streams.active)
        own = (one for one in reports if one is not None and self._folder.name in reported_source(one))
        return max((reported_entry(one) for one in own), default=NOTHING)
