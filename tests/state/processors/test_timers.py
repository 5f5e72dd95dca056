"""Timers fire with the key that they were registered for, once, with the state as the batch has left it."""
# The methods have PySpark's names.
# ruff: noqa: N802, N803

import datetime

import pandas as pd
import pytest
from pyspark.sql import Row
from pyspark.sql.streaming import StatefulProcessor
from pyspark.sql.types import StructType, TimestampType

from chandy.state.errors import ProcessorError
from chandy.state.format import keyspace, parts
from chandy.state.operators.time_mode import TimeMode
from chandy.state.processors import timers
from chandy.state.processors.style import StyleName
from chandy.state.rpc.messages import BatchTimes

from ..pipeline import OneOperator

COUNT = StructType().add("n", "long")


class Remembers(StatefulProcessor):
    """Registers a timer for each number that comes; tells how many rows the key has had when it fires."""

    def init(self, handle):
        self.handle = handle
        self.count = handle.getValueState("count", COUNT)

    def handleInputRows(self, key, rows, timerValues):
        for row in rows:
            self.handle.registerTimer(row.n)
            self.count.update(((self.count.get() or (0,))[0] + 1,))
        return iter([])

    def handleExpiredTimer(self, key, timerValues, expiredTimerInfo):
        time = expiredTimerInfo.getExpiryTimeInMs()
        assert time in list(self.handle.listTimers())
        yield (f"{key.k} at {time}", self.count.get()[0])


def fired(rows):
    return [(row["k"], row["n"]) for row in rows]


@pytest.mark.parametrize("mode", [TimeMode.EVENT, TimeMode.PROCESSING])
def test_a_timer_fires_when_its_time_has_come_once_and_with_the_state_of_then(mode):
    def at(now):
        return BatchTimes(now, 0) if mode is TimeMode.PROCESSING else BatchTimes(10**6, now)

    pipeline = OneOperator(mode)
    rows = [("a", 5), ("a", 200), ("b", 100), ("a", 99), ("a", 99)]
    assert fired(pipeline.batch(Remembers(), rows, at(4))) == []
    assert fired(pipeline.batch(Remembers(), [("a", 7)], at(99))) == [
        ("a at 5", 5),
        ("a at 7", 5),
        ("a at 99", 5),
    ]
    assert fired(pipeline.batch(Remembers(), [], at(99))) == []
    assert fired(pipeline.batch(Remembers(), [], at(100))) == [("b at 100", 1)]
    assert fired(pipeline.batch(Remembers(), [], at(10**6))) == [("a at 200", 5)]
    assert {key[:6] for _, key in pipeline.shards.held} == {keyspace.value_prefix("count")}


class TakesBack(Remembers):
    def handleInputRows(self, key, rows, timerValues):
        for row in rows:
            self.handle.deleteTimer(row.n)
        return iter([])


def test_a_timer_that_is_taken_back_in_the_batch_in_which_it_is_due_does_not_fire():
    pipeline = OneOperator(TimeMode.EVENT)
    pipeline.batch(Remembers(), [("a", 50), ("a", 60), ("b", 50)], BatchTimes(0, 10))
    rows = [("a", 50), ("b", 51)]
    assert fired(pipeline.batch(TakesBack(), rows, BatchTimes(0, 60))) == [("b at 50", 1), ("a at 60", 2)]


def test_timers_of_one_time_mode_sleep_while_the_operator_runs_in_another():
    pipeline = OneOperator(TimeMode.EVENT)
    pipeline.batch(Remembers(), [("a", 50)], BatchTimes(0, 10))
    pipeline.mode = TimeMode.PROCESSING
    assert fired(pipeline.batch(Remembers(), [], BatchTimes(99, 99))) == []
    pipeline.mode = TimeMode.EVENT
    assert fired(pipeline.batch(Remembers(), [], BatchTimes(0, 50))) == [("a at 50", 1)]


class Keys(StatefulProcessor):
    """Whether the key of a timer is that of the rows."""

    def init(self, handle):
        self.handle = handle

    def handleInputRows(self, key, rows, timerValues):
        self.keys = {**getattr(self, "keys", {}), tuple(key): key}
        self.handle.registerTimer(1)
        return iter([])

    def handleExpiredTimer(self, key, timerValues, expiredTimerInfo):
        seen = self.keys[key.k, key.t]
        same = isinstance(key, Row) and key == seen and list(map(repr, key)) == list(map(repr, seen))
        row = (key.k, int(same))
        yield row if self.rows else pd.DataFrame([row])


@pytest.mark.parametrize("style", list(StyleName))
def test_the_key_of_a_timer_has_the_values_of_the_rows_and_the_names_of_the_columns(style):
    schema = StructType().add("k", "string").add("t", TimestampType())
    pipeline = OneOperator(TimeMode.EVENT, style, schema, timezone="America/New_York")
    pipeline.key = ["k", "t"]
    processor = Keys()
    processor.rows = style is StyleName.ROWS
    noon = datetime.datetime(2024, 7, 1, 12, tzinfo=datetime.UTC)
    rows = pipeline.batch(processor, [("a", noon), (None, noon), ("c", None)], BatchTimes(5, 5))
    assert sorted(fired(rows), key=str) == [("a", 1), ("c", 1), (None, 1)]


class LargeValue(Remembers):
    """Updates one large value and a map in parts, and looks at its timers, each time one fires."""

    def init(self, handle):
        super().init(handle)
        self.large = handle.getValueState("large", StructType().add("n", "long").add("s", "string"))
        self.map = handle.getMapState("map", COUNT, COUNT)

    def handleExpiredTimer(self, key, timerValues, expiredTimerInfo):
        n, text = self.large.get() or (0, "x" * 10_000)
        self.large.update((n + 1, text))
        for at in range(10):
            self.map.updateValue((at,), (n,))
        self.handle.deleteTimer(-5)
        yield (key.k, n + 1)


def test_many_timers_of_one_key_cost_no_more_than_as_many_of_others(monkeypatch):
    n, read = 500, []
    monkeypatch.setattr(timers, "times_of", lambda data, of=timers.times_of: read.append(data) or of(data))
    monkeypatch.setattr(parts, "SEGMENT", 60)
    pipeline = OneOperator(TimeMode.EVENT)
    pipeline.batch(LargeValue(), [("a", at) for at in range(1, n + 1)], BatchTimes(0, 0))
    assert len(pipeline.shards.written) == n + 2, "an entry for each timer, their list, and the count"
    assert len(read) <= 2
    assert fired(pipeline.batch(LargeValue(), [], BatchTimes(0, n))) == [("a", at) for at in range(1, n + 1)]
    assert len(pipeline.shards.written) <= n + 20, (
        "an entry for each timer, their list, the value, parts of the map"
    )
    assert len(read) <= 4


class Careless(Remembers):
    def handleInputRows(self, key, rows, timerValues):
        self.handle.registerTimer(next(rows).n * 10**18)
        return iter([])

    def handleExpiredTimer(self, key, timerValues, expiredTimerInfo):
        raise ZeroDivisionError("never mind")


def test_a_time_that_is_none_and_a_handler_that_raises_are_told_with_the_key():
    with pytest.raises(ProcessorError, match="is no time in milliseconds"):
        OneOperator(TimeMode.EVENT).batch(Careless(), [("a", 10)])
    with pytest.raises(ProcessorError, match="never mind") as failed:
        OneOperator(TimeMode.EVENT).batch(Careless(), [("a", -1)])
    assert failed.value.where == "handleExpiredTimer of key ('a',)"
