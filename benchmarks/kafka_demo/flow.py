"""What flows through the demo of Kafka: flights as records, running totals as rows, and where both are."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, Final

import attrs
import pyarrow as pa
from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql.streaming.stateful_processor import StatefulProcessor, StatefulProcessorHandle

from ..servers.kafka import Record
from .check import Totals

FLIGHTS: Final = "flights"
"""The topic of the input."""
TOTALS: Final = "totals"
"""The topic and the table of the output."""
COPY: Final = "aircraft"
"""The topic and the table that have a copy of the state."""
PARTITIONS: Final = 4
PIPELINE: Final = "kafka-demo"
QUERY: Final = "totals"
GROUP: Final = f"chandy-{PIPELINE}-{QUERY}"
"""The consumer group that shows how far the query has come."""
RECORD: Final = "aircraft string, delay int"
OUTPUT: Final = "aircraft string, new long, flights long, delay long"
NO_NUMBER: Final = "unknown"
"""Stands for the aircraft of which no number is known."""


@attrs.frozen
class Places:
    """Where a driver finds everything."""

    root: str
    """The folder for all its files."""
    kafka: str
    """As ``bootstrap.servers``."""
    postgres: str
    """As libpq's connection string."""
    jars: tuple[str, ...]
    """Spark's connector for Kafka."""
    per_batch: int
    """Flights in a batch."""
    flights: int
    """Flights in the whole stream."""

    @property
    def folder(self) -> Path:
        """The folder for all its files."""
        return Path(self.root)

    @property
    def storage(self) -> str:
        """URI where checkpoints go."""
        return (self.folder / "checkpoints").as_uri()


class Count(StatefulProcessor):
    """Per aircraft: how many flights, and the sum of their delays. Each row says, too, how many flights are new in it.

    So the new flights of all rows of an aircraft add up to its flights, unless a row is missing or comes twice.
    """

    def init(self, handle: StatefulProcessorHandle) -> None:
        self._totals = handle.getValueState("totals", "flights long, delay long")

    def handleInputRows(self, key: Any, rows: Iterator[Row], timerValues: Any) -> Iterator[Row]:  # noqa: N802, N803
        flights, delay = self._totals.get() or (0, 0)
        new = 0
        for row in rows:
            new += 1
            delay += row.delay or 0
        self._totals.update((flights + new, delay))
        yield Row(aircraft=key[0], new=new, flights=flights + new, delay=delay)

    def close(self) -> None:
        pass


def records(flights: pa.Table) -> Iterator[tuple[bytes, bytes, None]]:
    """Yield each flight as a record: a key, a value, and no partition."""
    columns = flights.select(["tailnum", "dep_delay"]).to_pydict()
    for number, delay in zip(columns["tailnum"], columns["dep_delay"], strict=True):
        aircraft = number or NO_NUMBER
        yield aircraft.encode(), json.dumps({"aircraft": aircraft, "delay": delay}).encode(), None


def answer(flights: pa.Table) -> Totals:
    """Return what is right after all flights: per aircraft their number and the sum of delays."""
    columns = flights.select(["tailnum", "dep_delay"]).to_pydict()
    found: Totals = {}
    for number, delay in zip(columns["tailnum"], columns["dep_delay"], strict=True):
        aircraft = number or NO_NUMBER
        count, total = found.get(aircraft, (0, 0))
        found[aircraft] = count + 1, total + (delay or 0)
    return found


def newest_values(changes: Iterable[Record]) -> Totals:
    """Return what a topic of changes makes: of each key the value that came last; none if that is null."""
    found: Totals = {}
    for change in changes:
        aircraft = json.loads(change.key or b"")["aircraft"]
        found.pop(aircraft, None)
        if change.value is not None:
            fields = json.loads(change.value)
            found[aircraft] = (fields["flights"], fields["delay"])
    return found


def stream(spark: SparkSession, places: Places) -> DataFrame:
    """Return the flights as Spark reads them from Kafka."""
    reader = spark.readStream.format("kafka").options(
        **{
            "kafka.bootstrap.servers": places.kafka,
            "kafka.isolation.level": "read_committed",
            "subscribe": FLIGHTS,
            "startingOffsets": "earliest",
            "maxOffsetsPerTrigger": str(places.per_batch),
        }
    )
    parsed = reader.load().selectExpr(f"from_json(cast(value AS string), '{RECORD}') AS flight")
    return parsed.select("flight.*")
