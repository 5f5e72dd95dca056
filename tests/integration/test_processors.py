"""Processors with everything that PySpark's handle has, over checkpoints and restarts."""
# The methods have PySpark's names.
# ruff: noqa: N802, N803

from __future__ import annotations

import json
import sys
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from pyspark import cloudpickle
from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql.streaming import StatefulProcessor

from chandy.coordinator import CheckpointCoordinator
from chandy.coordinator.query import CheckpointedQuery
from chandy.state.errors import DefinitionError

from ..waiting import DEADLINE
from .support import Make

pytestmark = pytest.mark.spark

cloudpickle.register_pickle_by_value(sys.modules[__name__])

TICKS = "k string, n long, t timestamp"
OUTPUT = "k string, what string"


class Ledger(StatefulProcessor):
    """A list and a map that grow beyond one value, a timer for each row, and what it began with."""

    def init(self, handle: Any) -> None:
        self.handle = handle
        self.list = handle.getListState("list", "n long, s string")
        self.map = handle.getMapState("map", "n long", "s string")
        self.old = handle.getValueState("old", "n long")

    def handleInitialState(self, key: Any, initialState: Any, timerValues: Any) -> None:
        self.list.appendValue((initialState.n, "initial"))
        self.old.update((initialState.n,))

    def handleInputRows(self, key: Any, rows: Iterator[Row], timerValues: Any) -> Iterator[Row]:
        for row in rows:
            for n in range(300):
                self.list.appendValue((n, "x" * 20))
                self.map.updateValue((row.n * 300 + n,), ("y" * 20,))
            self.handle.registerTimer(int(row.t.timestamp() * 1000) + 5000)
        batch = self.handle.getQueryInfo().getBatchId()
        yield Row(k=key[0], what=f"{self.told()} old {self.old.get()} in batch {batch}")

    def handleExpiredTimer(self, key: Any, timerValues: Any, expiredTimerInfo: Any) -> Iterator[Row]:
        yield Row(k=key.k, what=f"timer {expiredTimerInfo.getExpiryTimeInMs()} {self.told()}")

    def told(self) -> str:
        items, entries = list(self.list.get()), dict(self.map.iterator())
        assert sorted(entries) == [(n,) for n in range(len(entries))]
        return f"{len(items)} {sum(s == 'initial' for _, s in items)} {len(entries)}"


class NewLedger(Ledger):
    """The next version: one state less."""

    def init(self, handle: Any) -> None:
        self.handle = handle
        self.list = handle.getListState("list", "n long, s string")
        self.map = handle.getMapState("map", "n long", "s string")
        handle.deleteIfExists("old")

    def handleInitialState(self, key: Any, initialState: Any, timerValues: Any) -> None:
        raise AssertionError("the operator has its state from the checkpoint")

    def handleInputRows(self, key: Any, rows: Iterator[Row], timerValues: Any) -> Iterator[Row]:
        info = self.handle.getQueryInfo()
        assert isinstance(info.getRunId(), uuid.UUID)
        assert info.getRunId().int
        yield Row(k=key[0], what=f"{len(list(rows))} {self.told()} {list(self.handle.listTimers())}")


@pytest.mark.compat
def test_lists_maps_timers_and_an_initial_state_go_on_from_a_checkpoint_and_a_dropped_state_is_gone(
    make: Make, spark: SparkSession, tmp_path: Path
) -> None:
    folder = tmp_path / "in"
    folder.mkdir()
    outputs: list[tuple[str, str]] = []

    def add(name: str, *rows: tuple[str, int, int]) -> None:
        lines = [json.dumps({"k": k, "n": n, "t": f"1970-01-01T00:00:{second:02}Z"}) for k, n, second in rows]
        (folder / f".{name}").write_text("\n".join(lines))
        (folder / f".{name}").rename(folder / f"{name}.json")

    def take(df: DataFrame, batch: int) -> None:
        outputs.extend((row.k, row.what) for row in df.collect())

    def start(coordinator: CheckpointCoordinator, processor: StatefulProcessor) -> CheckpointedQuery:
        rows = spark.readStream.schema(TICKS).option("maxFilesPerTrigger", 1).json(str(folder))
        ledger = coordinator.transform_with_state(
            rows.withWatermark("t", "0 seconds"),
            key=["k"],
            processor=processor,
            output=OUTPUT,
            uid="ledger",
            shards=3,
            time_mode="EventTime",
            initial_state=spark.createDataFrame([("a", 7), ("b", 8), ("b", 9)], "k string, n long").groupBy(
                "k"
            ),
        )
        return coordinator.start(ledger.writeStream.foreachBatch(take), name="ledger")

    def taken() -> list[tuple[str, str]]:
        found = sorted(outputs)
        outputs.clear()
        return found

    add("1", ("a", 0, 1), ("c", 0, 2))
    first = make()
    query = start(first, Ledger())
    query.processAllAvailable()
    assert taken() == [("a", "301 1 300 old (7,) in batch 0"), ("c", "300 0 300 old None in batch 0")]
    first.checkpoint().result(DEADLINE)
    # What comes after the checkpoint is done again.
    add("2", ("a", 1, 3))
    query.processAllAvailable()
    assert next(row for row in taken() if row[0] == "a")[1].startswith("601 1 600 old (7,) in batch")
    first.stop(checkpoint=False)

    second = make()
    query = start(second, NewLedger())
    add("3", ("b", 0, 10), ("c", 0, 6))
    query.processAllAvailable()
    second.checkpoint().result(DEADLINE)
    add("4", ("z", 0, 20))
    query.processAllAvailable()
    told = taken()
    for row in [
        ("a", "1 301 1 300 [6000]"),
        ("b", "1 2 2 0 []"),
        ("c", "1 300 0 300 [7000]"),
        ("a", "timer 6000 301 1 300"),
        ("c", "timer 7000 300 0 300"),
    ]:
        assert told.count(row) == 1, (row, told)
    assert list(second._operators.record("ledger").states) == ["list", "map"]


class Chunks(StatefulProcessor):
    """Tells the sizes of the DataFrames that it gets."""

    def init(self, handle: Any) -> None:
        handle.getValueState("unused", "n long")
        handle.deleteIfExists("unused")

    def handleInputRows(
        self, key: Any, rows: Iterator[pd.DataFrame], timerValues: Any
    ) -> Iterator[pd.DataFrame]:
        yield pd.DataFrame({"k": [key[0]], "what": [str([len(frame) for frame in rows])]})


def test_dataframes_are_no_larger_than_the_session_allows_and_init_declares_and_deletes_a_state(
    make: Make, spark: SparkSession, settings: dict[str, str], tmp_path: Path
) -> None:
    settings["spark.sql.execution.arrow.maxRecordsPerBatch"] = "2"
    (tmp_path / "in").mkdir()
    lines = [json.dumps({"k": k, "n": n}) for k, rows in (("a", 5), ("b", 3)) for n in range(rows)]
    (tmp_path / "in" / "1.json").write_text("\n".join(lines))
    found: dict[str, str] = {}
    coordinator = make()
    chunks = coordinator.transform_with_state_in_pandas(
        spark.readStream.schema(TICKS).json(str(tmp_path / "in")),
        key=["k"],
        processor=Chunks(),
        output=OUTPUT,
        uid="chunks",
        shards=3,
    )
    writer = chunks.writeStream.foreachBatch(
        lambda df, batch: found.update({row.k: row.what for row in df.collect()})
    )
    coordinator.start(writer, name="chunks").processAllAvailable()
    # As on PySpark's own engine.
    assert found == {"a": "[2, 2, 1]", "b": "[2, 1]"}
    assert coordinator._operators.record("chunks").states == {}


class DeclaresInSpark(StatefulProcessor):
    def init(self, handle: Any) -> None:
        handle.getValueState("short", "n long", 1000)

    def handleInputRows(
        self, key: Any, rows: Iterator[pd.DataFrame], timerValues: Any
    ) -> Iterator[pd.DataFrame]:
        yield from rows


class Latest(StatefulProcessor):
    """Keeps of each key how many rows it had, and the latest time, from DataFrames."""

    def init(self, handle: Any) -> None:
        self.state = handle.getValueState("latest", "n long, t timestamp_ntz")

    def handleInputRows(
        self, key: Any, rows: Iterator[pd.DataFrame], timerValues: Any
    ) -> Iterator[pd.DataFrame]:
        n, latest = self.state.get() or (0, pd.Timestamp(0))
        for frame in rows:
            n, latest = n + len(frame), max(latest, frame["t"].max())
        self.state.update((n, latest.to_pydatetime()))
        yield pd.DataFrame({"k": [key[0]], "n": [n], "t": [latest], "d": [{"half": n / 2}]})


@pytest.mark.compat
def test_a_processor_of_data_frames_goes_on_from_a_checkpoint(
    make: Make, spark: SparkSession, settings: dict[str, str], tmp_path: Path
) -> None:
    # The times of its DataFrames are local; what comes out is the same moment again.
    settings["spark.sql.session.timeZone"] = "America/New_York"
    folder = tmp_path / "in"
    folder.mkdir()
    found: list[Row] = []
    for life in range(2):
        lines = [json.dumps({"k": "a", "n": n, "t": 1_700_000_000 + 100 * life + n}) for n in range(3)]
        (folder / f"{life}.json").write_text("\n".join(lines))
        stream = spark.readStream.schema("k string, n long, t long").json(str(folder))
        with make() as coordinator:
            latest = coordinator.transform_with_state_in_pandas(
                stream.selectExpr("k", "n", "timestamp_seconds(t) t"),
                key=["k"],
                processor=Latest(),
                output="k string, n long, t timestamp, d struct<half: double>",
                uid="latest",
            )
            told = latest.selectExpr("k", "n", "unix_seconds(t) t", "d.half half")
            query = coordinator.start(
                told.writeStream.foreachBatch(lambda df, batch: found.extend(df.collect())), name="latest"
            )
            query.processAllAvailable()
            coordinator.checkpoint().result(DEADLINE)
    assert [tuple(row) for row in found] == [("a", 3, 1_700_000_002, 1.5), ("a", 6, 1_700_000_102, 3.0)]


def test_what_cannot_be_is_refused_where_the_operator_is_defined(make: Make, spark: SparkSession) -> None:
    coordinator = make()
    rows = spark.readStream.format("rate").load().withColumnRenamed("value", "n")
    good: dict[str, Any] = {"key": ["n"], "processor": DeclaresInSpark(), "output": "n long", "uid": "u"}
    timed = good | {"time_mode": "ProcessingTime"}
    other = spark.createDataFrame([("a",)], "n string")
    for says, given in [
        ("a time to live needs", good),
        ("argument time_mode", good | {"time_mode": "sometimes"}),
        ("argument output_mode", timed | {"output_mode": "complete"}),
        ("key column n of type", timed | {"initial_state": other}),
        ("a streaming one", timed | {"initial_state": rows}),
        ("a DataFrame with the key column 'n'", timed | {"initial_state": spark.range(1)}),
        ("a DataFrame, grouped or not", timed | {"initial_state": "n"}),
    ]:
        for define in (coordinator.transform_with_state, coordinator.transform_with_state_in_pandas):
            with pytest.raises(DefinitionError, match=says):
                define(rows, **given)
    coordinator.transform_with_state_in_pandas(rows, **timed)
