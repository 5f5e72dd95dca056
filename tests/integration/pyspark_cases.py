"""Processors that run under PySpark and under Chandy, and what they are given."""
# The methods have PySpark's names.
# ruff: noqa: N802, N803

from __future__ import annotations

import datetime
import json
import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import attrs
import pandas as pd
import pytest
from pyspark import cloudpickle
from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql import functions as F  # noqa: N812 (its usual name)
from pyspark.sql.streaming import StatefulProcessor

from ..waiting import DEADLINE

cloudpickle.register_pickle_by_value(sys.modules[__name__])


ROCKSDB = "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"
FILES = "org.apache.spark.sql.execution.streaming.checkpointing.FileSystemBasedCheckpointFileManager"
KINDS = "s string, d decimal(9,2), a array<int>, m map<string,long>, x struct<p:int,q:string>, t timestamp"
EVENTS = f"k string, j int, n long, {KINDS}"

Batch = list[dict[str, Any]]

HOUR = 3_600_000


def event(k: str | None, n: int | None = 1, second: int = 0, **more: Any) -> dict[str, Any]:
    time = datetime.datetime.fromtimestamp(second, datetime.UTC)
    return {"k": k, "n": n, "t": time.isoformat()} | more


def rich(k: str | None, j: int | None, n: int | None) -> dict[str, Any]:
    more = {
        "s": "ß" * (n or 0),
        "d": (n or 0) + 0.25,
        "a": [1, None, j],
        "m": {"y": n},
        "x": {"p": j, "q": None},
    }
    return event(k, n, 60 * (n or 0), j=j, **more)


PLAIN = [
    [event("a"), event("b", 5), event(None, 7), event("a", 2), event("", 1)],
    [event("b", -5), event(None, None), event("c", 9)],
    [event("a", 1), event("b", 1), event("c", 1), event(None, 1)],
]

TIMED = [
    [event("a", 1, 10), event("b", 2, 4), event("gone", 1, -5), event("c", 1, 0)],
    [event("a", 2, 12), event("late", 1, 3), event("d", 4, 40), event("b", 1, 11)],
    [event("late", 2, 12), event("late", 2, 10), event("a", 5, 41), event("e", 1, 39), event("b", 3, 60)],
    [event("b", 1, 61), event("late", 3, 40), event("late", 4, 41), event("z", 1, 200), event("e", 2, 62)],
    [event("z", 1, 201)],
]

RICH = [
    [rich("a", 1, 3), rich("a", None, 4), rich(None, 2, None), rich("b", 1, 1)],
    [rich("a", 1, 2), rich(None, 2, 5), rich("a", None, None)],
    [rich("b", 1, 0), rich("b", 2, 2), rich("a", 1, 1)],
]

FULL = [[rich(k, j + 1, j) for j in range(3) for k in "abc"] for _ in range(2)]


# --- rows ---------------------------------------------------------------------------------------------------


class RunningCount(StatefulProcessor):
    """How many rows a key has had, and the sum of those with a value."""

    def init(self, handle: Any) -> None:
        self.state = handle.getValueState("totals", "n long, total long")

    def handleInputRows(self, key: Any, rows: Iterator[Row], timerValues: Any) -> Iterator[Row]:
        n, total = self.state.get() if self.state.exists() else (0, None)
        for row in rows:
            n += 1
            if row.n is not None:
                total = (total or 0) + row.n
        self.state.update((n, total))
        times = (timerValues.getCurrentProcessingTimeInMs(), timerValues.getCurrentWatermarkInMs())
        yield Row(k=key[0], what=str((n, total, times)))


class Sessions(StatefulProcessor):
    """Adds up what comes less than ten seconds apart; tells the sum when nothing more can come."""

    def init(self, handle: Any) -> None:
        self.handle = handle
        self.session = handle.getValueState("session", "total long, until long")

    def handleInputRows(self, key: Any, rows: Iterator[Row], timerValues: Any) -> Iterator[Row]:
        total, until = self.session.get() or (0, None)
        for row in rows:
            total, until = total + row.n, max(until or 0, int(row.t.timestamp() * 1000) + 10_000)
        for timer in self.handle.listTimers():
            self.handle.deleteTimer(timer)
        self.handle.registerTimer(until)
        self.session.update((total, until))
        yield Row(k=key[0], what=f"{total} until {until} at {timerValues.getCurrentWatermarkInMs()}")

    def handleExpiredTimer(self, key: Any, timerValues: Any, expiredTimerInfo: Any) -> Iterator[Row]:
        found = self.session.get()
        self.session.clear()
        timers = sorted(self.handle.listTimers())
        what = f"over {found} {expiredTimerInfo.getExpiryTimeInMs()} {timers} {timerValues.getCurrentWatermarkInMs()}"
        yield Row(k=key.k, what=what)


class Alarms(StatefulProcessor):
    """Timers that set, delete and move other timers while they fire."""

    def init(self, handle: Any) -> None:
        self.handle = handle
        self.fired = handle.getListState("fired", "time long")

    def handleInputRows(self, key: Any, rows: Iterator[Row], timerValues: Any) -> Iterator[Row]:
        for row in rows:
            time = int(row.t.timestamp() * 1000)
            for after in (-1, 0, 1, 5000, 5000, 20_000):
                self.handle.registerTimer(time + after)
        yield self.told(key, "rows")

    def handleExpiredTimer(self, key: Any, timerValues: Any, expiredTimerInfo: Any) -> Iterator[Row]:
        time = expiredTimerInfo.getExpiryTimeInMs()
        self.fired.appendValue((time,))
        self.handle.deleteTimer(time + 1)
        if time % 1000 == 0 and time < 45_000:
            self.handle.registerTimer(time + 500)
            self.handle.registerTimer(time + 30_000)
        yield self.told(key, f"at {time}")

    def told(self, key: Any, what: str) -> Row:
        fired = [time for (time,) in self.fired.get()]
        return Row(k=key[0], what=f"{what}: {sorted(self.handle.listTimers())} fired {fired}")


class Windows(StatefulProcessor):
    """Counts the rows of a window, told when it is over."""

    def init(self, handle: Any) -> None:
        self.handle = handle
        self.count = handle.getValueState("count", "n long")

    def handleInputRows(self, key: Any, rows: Iterator[Row], timerValues: Any) -> Iterator[Row]:
        n = (self.count.get() or (0,))[0] + len(list(rows))
        self.count.update((n,))
        end = key[1]["end"]
        self.handle.registerTimer(int(end.timestamp() * 1000))
        yield Row(k=key[0], what=f"{n} until {end.timestamp()}")

    def handleExpiredTimer(self, key: Any, timerValues: Any, expiredTimerInfo: Any) -> Iterator[Row]:
        yield Row(k=key[0], what=f"over {self.count.get()}")
        self.count.clear()


class LastFew(StatefulProcessor):
    """A list that grows, is replaced and is cleared."""

    def init(self, handle: Any) -> None:
        self.list = handle.getListState("last", "n long, s string")

    def handleInputRows(self, key: Any, rows: Iterator[Row], timerValues: Any) -> Iterator[Row]:
        before = self.list.get()
        for row in rows:
            self.list.appendValue((row.n, f"{key[0]}{row.n}"))
            self.list.appendList([(row.n, None), (None, "")])
        yield Row(k=key[0], what=str((list(before), list(self.list.get()), self.list.exists())))
        if len(list(self.list.get())) > 6:
            self.list.put(list(self.list.get())[-2:])
        if key[0] == "c":
            self.list.clear()
            yield Row(k="c", what=str((list(self.list.get()), self.list.exists())))


class Counters(StatefulProcessor):
    """A map of counters."""

    def init(self, handle: Any) -> None:
        self.map = handle.getMapState("counters", "n long, odd boolean", "hits long, note string")

    def handleInputRows(self, key: Any, rows: Iterator[Row], timerValues: Any) -> Iterator[Row]:
        for row in rows:
            at = (row.n, None if row.n is None else row.n % 2 == 1)
            was = self.map.getValue(at)
            self.map.updateValue(at, (1 if was is None else was.hits + 1, key[0]))
            self.map.removeKey((99, True))
        pairs, keys, values = sorted(self.map.iterator(), key=str), self.map.keys(), self.map.values()
        told = (pairs, sorted(keys, key=str), sorted(values, key=str), self.map.exists())
        yield Row(k=key[0], what=str((told, self.map.containsKey((5, True)), self.map.getValue((5, True)))))
        if key[0] == "b":
            self.map.removeKey((5, True))
        if key[0] == "c":
            self.map.clear()
            yield Row(k="c", what=str((list(self.map.keys()), self.map.exists())))


class Everything(StatefulProcessor):
    """Several states, with values of every kind."""

    def init(self, handle: Any) -> None:
        schema = f"{KINDS}, u date"
        self.value = handle.getValueState("value", schema)
        self.list = handle.getListState("list", schema)
        self.map = handle.getMapState("map", "x struct<p:int,q:string>", schema)

    def handleInputRows(self, key: Any, rows: Iterator[Row], timerValues: Any) -> Iterator[Row]:
        for row in rows:
            x = Row(p=row.x["p"], q=row.x["q"])
            naive = row.t.astimezone().replace(tzinfo=None)
            value = (row.s, row.d, row.a, dict(row.m), x, naive, row.t.date())
            self.list.appendValue(value)
            self.map.updateValue((x,), value)
            self.value.update(value)
        told = (self.value.get(), list(self.list.get()), sorted(self.map.iterator(), key=str))
        yield Row(k=str(key), what=str(told))


class Expiring(StatefulProcessor):
    """States that expire at once, or not at all; timers of processing time that are due at once."""

    def init(self, handle: Any) -> None:
        self.handle = handle
        for ttl, name in ((1, "short"), (HOUR, "long"), (0, "ever")):
            value = handle.getValueState(f"{name}_value", "n long", ttlDurationMs=ttl)
            items = handle.getListState(f"{name}_list", "n long", ttl)
            entries = handle.getMapState(f"{name}_map", "n long", "n long", ttl)
            setattr(self, name, (value, items, entries))

    def handleInputRows(self, key: Any, rows: Iterator[Row], timerValues: Any) -> Iterator[Row]:
        given, now = [row.n for row in rows], timerValues.getCurrentProcessingTimeInMs()
        for name in ("short", "long", "ever"):
            before = self.told(name)
            value, items, entries = getattr(self, name)
            for n in given:
                value.update((n,))
                items.appendValue((n,))
                entries.updateValue((n,), (n,))
            yield Row(k=key[0], what=f"{name} {before} -> {self.told(name)}")
        self.handle.registerTimer(now - 1)
        self.handle.registerTimer(now)
        self.handle.registerTimer(now + HOUR)

    def handleExpiredTimer(self, key: Any, timerValues: Any, expiredTimerInfo: Any) -> Iterator[Row]:
        late = timerValues.getCurrentProcessingTimeInMs() - expiredTimerInfo.getExpiryTimeInMs()
        yield Row(k=key[0], what=f"timer {late} of {len(list(self.handle.listTimers()))} {self.told('long')}")

    def told(self, name: str) -> str:
        value, items, entries = getattr(self, name)
        exist = (value.exists(), items.exists(), entries.exists())
        return str((value.get(), list(items.get()), sorted(entries.iterator(), key=str), exist))


class Begins(StatefulProcessor):
    """Begins with a balance."""

    def init(self, handle: Any) -> None:
        self.balance = handle.getValueState("balance", "n long")
        self.notes = handle.getListState("notes", "s string")

    def handleInitialState(self, key: Any, initialState: Any, timerValues: Any) -> None:
        self.balance.update(((self.balance.get() or (0,))[0] + initialState.n,))
        self.notes.appendValue((f"{key[0]} {initialState.s}",))

    def handleInputRows(self, key: Any, rows: Iterator[Row], timerValues: Any) -> Iterator[Row]:
        n = (self.balance.get() or (0,))[0] + sum(row.n or 0 for row in rows)
        self.balance.update((n,))
        yield Row(k=key[0], what=str((n, sorted(self.notes.get()))))


class Composite(StatefulProcessor):
    """Keys of several columns, with nulls, timestamps and structs in them."""

    def init(self, handle: Any) -> None:
        self.state = handle.getValueState("count", "n long")

    def handleInputRows(self, key: Any, rows: Iterator[Row], timerValues: Any) -> Iterator[Row]:
        (n,) = self.state.get() or (0,)
        self.state.update((n + len(list(rows)),))
        yield Row(k=str(key), what=str(self.state.get()))


class Shapes(StatefulProcessor):
    """Output of every kind."""

    def init(self, handle: Any) -> None:
        self.state = handle.getValueState("count", "n long")

    def handleInputRows(self, key: Any, rows: Iterator[Row], timerValues: Any) -> Iterator[Row]:
        for row in rows:
            yield Row(k=key[0], s=row.s, d=row.d, a=row.a, m=dict(row.m), x=row.x, t=row.t, u=None)


# --- pandas -------------------------------------------------------------------------------------------------


class FrameCount(StatefulProcessor):
    """Counts rows, and how many are large, in DataFrames; tells what the DataFrames are like."""

    def init(self, handle: Any) -> None:
        self.state = handle.getValueState("count", "n long, large int")

    def handleInputRows(
        self, key: Any, rows: Iterator[pd.DataFrame], timerValues: Any
    ) -> Iterator[pd.DataFrame]:
        n, large = self.state.get() or (0, 0)
        shapes = []
        for frame in rows:
            n, large = n + len(frame), large + (frame["n"] > 1).sum()
            shapes.append(
                [frame.index.tolist(), frame.dtypes.astype(str).to_dict(), repr(frame.to_dict("list"))]
            )
        self.state.update((n, large))
        yield pd.DataFrame({"k": [str(key)], "what": [str((n, int(large), shapes))]})


class FrameShapes(StatefulProcessor):
    """Output of every kind, in DataFrames of several kinds."""

    def init(self, handle: Any) -> None:
        self.list = handle.getListState("sizes", "n long")

    def handleInputRows(
        self, key: Any, rows: Iterator[pd.DataFrame], timerValues: Any
    ) -> Iterator[pd.DataFrame]:
        for frame in rows:
            self.list.appendValue((len(frame),))
            yield frame[["x", "t", "m", "a", "d", "s", "k"]].assign(u=datetime.date(2024, 2, 29), extra=1)
            yield frame.head(0).assign(u=None)
            yield pd.DataFrame()
            yield pd.DataFrame([[key[0], "by position"] + [None] * 6])


class BigFrames(StatefulProcessor):
    """More rows of one key than come in one DataFrame."""

    def init(self, handle: Any) -> None:
        self.state = handle.getMapState("sizes", "n long", "n long")

    def handleInputRows(
        self, key: Any, rows: Iterator[pd.DataFrame], timerValues: Any
    ) -> Iterator[pd.DataFrame]:
        sizes = [len(frame) for frame in rows]
        for size in sizes:
            self.state.updateValue((size,), (1,))
        seen = sorted(size for (size,), _ in self.state.iterator())
        yield pd.DataFrame({"k": [key[0]], "what": [f"{sizes} {seen}"]})


class FrameSessions(StatefulProcessor):
    """Initial state and event-time timers with DataFrames."""

    def init(self, handle: Any) -> None:
        self.handle = handle
        self.state = handle.getValueState("total", "n long")

    def handleInitialState(self, key: Any, initialState: pd.DataFrame, timerValues: Any) -> None:
        self.state.update((int(initialState["n"].sum()),))
        self.handle.registerTimer(int(initialState["n"].max()) * 1000)

    def handleInputRows(
        self, key: Any, rows: Iterator[pd.DataFrame], timerValues: Any
    ) -> Iterator[pd.DataFrame]:
        total = (self.state.get() or (0,))[0]
        for frame in rows:
            total += int(frame["n"].sum())
            self.handle.registerTimer(int(frame["t"].max().timestamp() * 1000) + 1000)
        self.state.update((total,))
        yield pd.DataFrame({"k": [key[0]], "what": [f"{total} {sorted(self.handle.listTimers())}"]})

    def handleExpiredTimer(self, key: Any, timerValues: Any, expiredTimerInfo: Any) -> Iterator[pd.DataFrame]:
        time = expiredTimerInfo.getExpiryTimeInMs()
        yield pd.DataFrame({"k": [key[0]], "what": [f"{self.state.get()} at {time}"]})


# --- both engines -------------------------------------------------------------------------------------------


OUTPUT = "k string, what string"
SHAPES = f"k string, {KINDS}, u date"


@attrs.frozen
class Case:
    """A processor and what it runs over."""

    name: str
    processor: StatefulProcessor
    batches: list[Batch]
    key: tuple[str, ...] = ("k",)
    output: str = OUTPUT
    pandas: bool = False
    time_mode: str = "None"
    output_mode: str = "update"
    prepare: Callable[[DataFrame], DataFrame] = lambda df: df
    initial: Batch | None = None


def watermarked(df: DataFrame) -> DataFrame:
    return df.withWatermark("t", "0 seconds")


def windowed(df: DataFrame) -> DataFrame:
    return watermarked(df).withColumn("w", F.window("t", "10 seconds")).drop("t")


def joined(df: DataFrame) -> DataFrame:
    """Each row with the later ones of its key within two hours, and once without any if there are none."""
    later = watermarked(df).selectExpr("k as other", "t as until")
    within = F.expr("k = other and until > t and until <= t + interval 2 hours")
    return watermarked(df).join(later, within, "leftOuter").select("k", "n", "t")


# A row waits two hours for others of its key, while the watermark of the query goes on.
APART = [
    [event("a", 1, 1), event("alone", 2, 1)],
    [event("z", 1, 3600)],
    [event("z", 1, 3601)],
    [event("a", 1, 3700), event("z", 1, 3602)],
    [event("y", 1, 32400)],
    [event("y", 1, 32401)],
    [event("y", 1, 90000)],
    [event("y", 1, 90001)],
]

BALANCES = [
    {"k": "a", "n": 100, "s": "x"},
    {"k": "a", "n": 20, "s": "y"},
    {"k": "q", "n": 1},
    {"k": None, "n": 5},
]

CASES = [
    Case("running_count", RunningCount(), PLAIN),
    Case("sessions", Sessions(), TIMED, time_mode="EventTime", prepare=watermarked),
    Case("alarms", Alarms(), TIMED, time_mode="eventTime", prepare=watermarked),
    Case("windows", Windows(), TIMED, key=("k", "w"), time_mode="EventTime", prepare=windowed),
    Case("joined", Sessions(), APART, time_mode="EventTime", output_mode="append", prepare=joined),
    Case("lists", LastFew(), PLAIN),
    Case("maps", Counters(), PLAIN),
    Case("everything", Everything(), RICH, key=("k", "j")),
    Case("lives", Expiring(), PLAIN, time_mode="ProcessingTime"),
    Case("initial", Begins(), PLAIN, initial=BALANCES),
    Case("composite", Composite(), RICH, key=("j", "k", "x", "t", "d")),
    Case("shapes", Shapes(), RICH, output=SHAPES),
    Case("frame_count", FrameCount(), FULL, key=("k", "j"), pandas=True),
    Case("frame_shapes", FrameShapes(), FULL, output=SHAPES, pandas=True),
    Case("big_frames", BigFrames(), [[event("a")] * 10_050 + [event("b")]], pandas=True),
    Case(
        "frame_sessions",
        FrameSessions(),
        TIMED,
        pandas=True,
        time_mode="EventTime",
        prepare=watermarked,
        initial=[{"k": "a", "n": 8}, {"k": "b", "n": 500}, {"k": "a", "n": 9}],
    ),
]


class Feed:
    """Files of a case's batches, and what came out of each of its batches on one engine."""

    def __init__(self, folder: Path, case: Case) -> None:
        self.folder = folder
        self.rows: dict[int, list[Any]] = {}
        self.case = case
        folder.mkdir(parents=True)
        for number, batch in enumerate(case.batches):
            path = folder / f"{number:03}.json"
            path.write_text("\n".join(map(json.dumps, batch)))
            os.utime(path, (1e9 + number, 1e9 + number))

    def stream(self, spark: SparkSession) -> DataFrame:
        files = spark.readStream.schema(EVENTS).option("maxFilesPerTrigger", 1).json(str(self.folder))
        return self.case.prepare(files)

    def initial(self, spark: SparkSession) -> DataFrame | None:
        if self.case.initial is None:
            return None
        rows = [(row["k"], row["n"], row.get("s")) for row in self.case.initial]
        return spark.createDataFrame(rows, "k string, n long, s string")

    def take(self, df: DataFrame, batch: int) -> None:
        self.rows.setdefault(batch, []).extend(df.collect())

    def outputs(self) -> list[list[str]]:
        """By batch the rows, sorted, as text."""
        return [sorted(map(str, self.rows.get(batch, []))) for batch in range(len(self.case.batches))]


def on_pyspark(spark: SparkSession, feed: Feed, folder: Path) -> None:
    case, initial = feed.case, feed.initial(spark)
    grouped = feed.stream(spark).groupBy(*case.key)
    run = grouped.transformWithStateInPandas if case.pandas else grouped.transformWithState
    given = None if initial is None else initial.groupBy("k")
    output = run(case.processor, case.output, case.output_mode, case.time_mode, given)
    writer = output.writeStream.outputMode(case.output_mode).foreachBatch(feed.take)
    query = writer.option("checkpointLocation", str(folder)).trigger(availableNow=True).start()
    assert query.awaitTermination(DEADLINE), f"{case.name} did not end on PySpark's engine"
    query.stop()


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("same")
