"""What flows through the demo of an upgrade: flights, running totals by aircraft, and the versions of the program."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, Final

import attrs
import pyarrow as pa
from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql.streaming.stateful_processor import StatefulProcessor, StatefulProcessorHandle
from pyspark.sql.types import StructType

from ..flights import INPUT, Day, by_day

PIPELINE: Final = "upgrade-demo"
QUERY: Final = "totals"
OUTPUT: Final = "carrier string, aircraft string, new long, flights long, delay long"
STATE: Final = StructType().add("flights", "long").add("delay", "long")
NO_NUMBER: Final = "unknown"
"""Stands for the aircraft of which no number is known."""
WRONGED: Final = "OO"
"""The carrier whose delays the wrong version leaves out: 32 of a year's 336,776 flights are its."""


class Totals(StatefulProcessor):
    """The old version. Per carrier and aircraft: how many flights, and the sum of their delays.

    Each row says, too, how many flights are new in it. So these add up to the flights, unless a row is missing or comes
    twice.
    """

    def init(self, handle: StatefulProcessorHandle) -> None:
        self._totals = handle.getValueState("totals", STATE)

    def handleInputRows(self, key: Any, rows: Iterator[Row], timerValues: Any) -> Iterator[Row]:  # noqa: N802, N803
        flights, delay = self._totals.get() or (0, 0)
        new = 0
        for row in rows:
            new += 1
            delay += self.delay(row)
        self._totals.update((flights + new, delay))
        yield Row(carrier=key[0], aircraft=key[1], new=new, flights=flights + new, delay=delay)

    @staticmethod
    def delay(row: Row) -> int:
        """Return what a flight adds to the sum."""
        return row.dep_delay or 0

    def close(self) -> None:
        pass


class WrongTotals(Totals):
    """A new version with a mistake that shows with one carrier."""

    @staticmethod
    def delay(row: Row) -> int:
        """Return what a flight adds to the sum."""
        return 0 if row.carrier == WRONGED else row.dep_delay or 0


class NewTotals(StatefulProcessor):
    """A new version that is written in another way, and counts the same."""

    def init(self, handle: StatefulProcessorHandle) -> None:
        self._totals = handle.getValueState("totals", STATE)

    def handleInputRows(self, key: Any, rows: Iterator[Row], timerValues: Any) -> Iterator[Row]:  # noqa: N802, N803
        carrier, aircraft = key
        delays = [row.dep_delay for row in rows]
        before = self._totals.get()
        flights = len(delays) + (before[0] if before else 0)
        delay = sum(filter(None, delays)) + (before[1] if before else 0)
        self._totals.update((flights, delay))
        yield Row(carrier=carrier, aircraft=aircraft, new=len(delays), flights=flights, delay=delay)

    def close(self) -> None:
        pass


VERSIONS: Final[dict[str, type[StatefulProcessor]]] = {
    "old": Totals,
    "wrong": WrongTotals,
    "new": NewTotals,
}
"""By name. That of a new version names its shadow, too."""


def stream(spark: SparkSession, folder: Path) -> DataFrame:
    """Return the flights as a stream, a file a batch."""
    reader = spark.readStream.schema(INPUT).option("maxFilesPerTrigger", 1)
    number = f"coalesce(tailnum, '{NO_NUMBER}') AS aircraft"
    return reader.parquet(str(folder)).selectExpr("carrier", number, "dep_delay")


@attrs.frozen
class Part:
    """Some days of flights, which are one file and one batch."""

    days: tuple[Day, ...]
    flights: pa.Table

    @property
    def shows(self) -> bool:
        """Whether the mistake of the wrong version shows in it."""
        columns = self.flights.select(["carrier", "dep_delay"]).to_pydict()
        return any(
            carrier == WRONGED and delay
            for carrier, delay in zip(columns["carrier"], columns["dep_delay"], strict=True)
        )


def parts(flights: pa.Table, days: int) -> list[Part]:
    """Split the flights, each part with so many days."""
    each = list(by_day(flights))
    return [
        Part(tuple(day for day, _ in some), pa.concat_tables(table for _, table in some))
        for some in (each[at : at + days] for at in range(0, len(each), days))
    ]


def answer(flights: Iterable[pa.Table]) -> dict[str, tuple[int, int]]:
    """Return what is right after all flights: per carrier and aircraft their number and the sum of delays."""
    found: dict[str, tuple[int, int]] = {}
    for some in flights:
        columns = some.select(["carrier", "tailnum", "dep_delay"]).to_pydict()
        for carrier, number, delay in zip(*columns.values(), strict=True):
            key = f"{carrier} {number or NO_NUMBER}"
            count, total = found.get(key, (0, 0))
            found[key] = count + 1, total + (delay or 0)
    return found


def as_rows(written: pa.Table) -> Sequence[dict[str, Any]]:
    """Return rows of the output as ``check`` takes them."""
    return [{"aircraft": f"{row.pop('carrier')} {row.pop('aircraft')}", **row} for row in written.to_pylist()]
