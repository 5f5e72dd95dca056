"""What a user tests a processor with: batches, time, state by name, kills and new versions, without a JVM."""
# The methods have PySpark's names.
# ruff: noqa: N802, N803

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from pyspark.sql import Row
from pyspark.sql.streaming import StatefulProcessor
from pyspark.sql.types import StructType

from chandy.state import ArrowProcessor, ArrowResult
from chandy.state.errors import (
    DefinitionError,
    NoSuchStateError,
    OutputTypeError,
    ProcessorError,
    StateSchemaError,
    StateTypeError,
)
from chandy.state.testing import OperatorTester

INPUT = StructType().add("k", "string").add("n", "long")
OUTPUT = StructType().add("k", "string").add("total", "long")
NUMBER = StructType().add("n", "long")
WIDER = StructType().add("n", "long").add("rows", "long")
TIMED = StructType().add("k", "string").add("at", "timestamp")


class TestedTotals(StatefulProcessor):
    def init(self, handle: Any) -> None:
        self.handle = handle
        self.total = handle.getValueState("total", NUMBER)
        self.seen = handle.getListState("seen", NUMBER)
        self.by_parity = handle.getMapState("by parity", NUMBER, NUMBER)

    def handleInputRows(self, key: Any, rows: Iterator[Row], timerValues: Any) -> Iterator[Row]:
        (total,) = self.total.get() or (0,)
        for row in rows:
            if row.n < 0:
                raise ValueError("negative")
            total += row.n
            self.seen.appendValue((row.n,))
            self.by_parity.updateValue((row.n % 2,), (row.n,))
        self.total.update((total,))
        yield Row(k=key[0], total=total)


class Wider(TestedTotals):
    def init(self, handle: Any) -> None:
        self.total = handle.getValueState("total", WIDER)

    def handleInputRows(self, key: Any, rows: Iterator[Row], timerValues: Any) -> Iterator[Row]:
        total, count = self.total.get()
        self.total.update((total + sum(row.n for row in rows), (count or 0) + 1))
        yield Row(k=key[0], total=self.total.get()[0])


class OtherTotals(TestedTotals):
    def init(self, handle: Any) -> None:
        self.total = handle.getValueState("total", StructType().add("n", "string"))


class Reminders(StatefulProcessor):
    """Yields a row a second of event time after the last row of a key."""

    def init(self, handle: Any) -> None:
        self.handle = handle
        self.last = handle.getValueState("last", NUMBER)

    def handleInputRows(self, key: Any, rows: Iterator[Row], timerValues: Any) -> Iterator[Row]:
        last = max(int(row.at.replace(tzinfo=UTC).timestamp() * 1000) for row in rows)
        self.last.update((last,))
        self.handle.registerTimer(last + 1000)
        return iter([])

    def handleExpiredTimer(self, key: Any, timerValues: Any, expiredTimerInfo: Any) -> Iterator[Row]:
        yield Row(k=key[0], total=expiredTimerInfo.getExpiryTimeInMs())


class Forgets(StatefulProcessor):
    def init(self, handle: Any) -> None:
        self.total = handle.getValueState("total", NUMBER, ttlDurationMs=1000)

    def handleInputRows(self, key: Any, rows: Iterator[Row], timerValues: Any) -> Iterator[Row]:
        (total,) = self.total.get() or (0,)
        self.total.update((total + sum(row.n for row in rows),))
        yield Row(k=key[0], total=self.total.get()[0])


class CountsByKey(ArrowProcessor):
    states = {"count": NUMBER}

    def process(self, given: Any) -> ArrowResult:
        before = pc.fill_null(pc.struct_field(given.states["count"], "n"), 0)
        n = pc.add(before, pa.array(np.diff(given.bounds)))
        output = given.keys.append_column("total", n)
        return ArrowResult(output, {"count": pa.StructArray.from_arrays([n], ["n"])})


def totals(**more: Any) -> OperatorTester:
    return OperatorTester.of_processor(TestedTotals(), key=["k"], input=INPUT, output=OUTPUT, **more)


def second(number: float) -> datetime:
    return datetime.fromtimestamp(number, UTC)


def test_state_goes_on_from_batch_to_batch_and_is_read_by_name() -> None:
    tester = totals()
    assert tester.batch([("a", 1), {"n": 2, "k": "a"}]) == [Row(k="a", total=3)]
    assert tester.batch([("b", 5)]) == [Row(k="b", total=5)]
    assert tester.batch() == []
    assert tester.batch([("a", 4)]) == [Row(k="a", total=7)]
    assert tester.state("total", "a") == Row(n=7)
    assert tester.state("seen", "a") == [Row(n=1), Row(n=2), Row(n=4)]
    assert tester.state("by parity", "a") == {(0,): Row(n=4), (1,): Row(n=1)}
    assert tester.state("total", "c") is None
    with pytest.raises(NoSuchStateError, match=r"one of total, seen, by parity, found 'sum'"):
        tester.state("sum", "a")


def test_a_batch_that_fails_has_stored_nothing() -> None:
    tester = totals()
    tester.batch([("a", 1)])
    with pytest.raises(ProcessorError, match="negative"):
        tester.batch([("b", 1), ("a", -1)])
    assert (tester.state("total", "a"), tester.state("total", "b")) == (Row(n=1), None)
    assert tester.batch([("a", 2)]) == [Row(k="a", total=3)]


def test_a_killed_pipeline_goes_on_from_its_checkpoint() -> None:
    tester = totals()
    tester.batch([("a", 1)])
    point = tester.checkpoint()
    tester.batch([("a", 10), ("b", 1)])
    for _ in range(2):
        tester.restore(point)
        assert (tester.state("total", "a"), tester.state("total", "b")) == (Row(n=1), None)
        assert tester.batch([("a", 2)]) == [Row(k="a", total=3)]


def test_another_version_of_the_processor_reads_what_the_one_before_has_stored() -> None:
    tester = totals()
    tester.batch([("a", 1)])
    point = tester.checkpoint()
    tester.restore(point, Wider())
    assert tester.batch([("a", 2)]) == [Row(k="a", total=3)]
    assert tester.state("total", "a") == Row(n=3, rows=1)
    # What the new version does not declare stays.
    assert tester.state("seen", "a") == [Row(n=1)]
    with pytest.raises(StateSchemaError, match="'total'"):
        tester.restore(point, OtherTotals())


@pytest.mark.parametrize("batches", [0, 1])
def test_a_state_that_was_deleted_may_be_declared_anew_also_before_a_batch_has_run(batches: int) -> None:
    class Drops(TestedTotals):
        def init(self, handle: Any) -> None:
            handle.deleteIfExists("total")

        def handleInputRows(self, key: Any, rows: Iterator[Row], timerValues: Any) -> Iterator[Row]:
            return iter(())

    tester = totals()
    tester.batch([("a", 1)])
    tester.restore(tester.checkpoint(), Drops())
    for _ in range(batches):
        tester.batch([("b", 1)])
    with pytest.raises(NoSuchStateError):
        tester.state("total", "a")
    # Other has stored nothing that Totals would have to read.
    for version in (OtherTotals(), TestedTotals()):
        tester.restore(tester.checkpoint(), version)
        assert tester.state("total", "a") is None
    assert tester.batch([("a", 2)]) + tester.batch([("a", 3)]) == [Row(k="a", total=2), Row(k="a", total=5)]


def test_timers_of_event_time_fire_by_the_watermark_and_rows_are_late_by_the_one_before() -> None:
    tester = OperatorTester.of_processor(
        Reminders(), key=["k"], input=TIMED, output=OUTPUT, time_mode="EventTime", watermark="at"
    )
    assert tester.batch([("a", second(10)), ("b", second(20))]) == []
    assert (tester.timers("a"), tester.timers("c")) == ([11_000], [])
    assert tester.batch(watermark=10_999) == []
    assert tester.batch(watermark=second(11)) == [Row(k="a", total=11_000)]
    assert tester.timers("a") == []
    # Not late by the watermark of the batch before, and due at once by that of this one.
    assert tester.batch([("c", second(11)), ("d", second(12))], watermark=second(13)) == [
        Row(k="d", total=13_000)
    ]
    with pytest.raises(DefinitionError, match="watermark"):
        tester.batch(watermark=1)


def test_what_has_expired_is_gone() -> None:
    tester = OperatorTester.of_processor(
        Forgets(), key=["k"], input=INPUT, output=OUTPUT, time_mode="ProcessingTime"
    )
    assert tester.batch([("a", 1)], time=second(10)) == [Row(k="a", total=1)]
    assert tester.state("total", "a", time=10_999) == Row(n=1)
    assert tester.state("total", "a", time=second(11)) is None
    assert tester.batch([("a", 5)], time=second(11)) == [Row(k="a", total=5)]


@pytest.mark.parametrize("shards", [1, 7])
def test_an_arrow_processor_is_tested_alike(shards: int) -> None:
    tester = OperatorTester.of_arrow(CountsByKey(), key=["k"], input=INPUT, output=OUTPUT, shards=shards)
    assert sorted(tester.batch([("a", 1), ("b", 1), ("a", 1)])) == [Row("a", 2), Row("b", 1)]
    assert tester.batch([("a", 1)]) == [Row(k="a", total=3)]
    assert tester.state("count", "a") == Row(n=3)


class Frames(StatefulProcessor):
    def init(self, handle: Any) -> None:
        self.total = handle.getValueState("total", NUMBER)

    def handleInputRows(self, key: Any, rows: Iterator[Any], timerValues: Any) -> Iterator[Any]:
        (total,) = self.total.get() or (0,)
        for frame in rows:
            total += int(frame.n.sum())
        self.total.update((total,))
        yield frame.head(1)[["k"]].assign(total=total)


def test_a_processor_of_data_frames_is_tested_alike() -> None:
    tester = OperatorTester.of_processor(Frames(), key=["k"], input=INPUT, output=OUTPUT, pandas=True)
    tester.batch([("a", 1), ("a", 2)])
    assert tester.batch([("a", 4)]) == [Row(k="a", total=7)]


def test_aggregates_are_tested_alike() -> None:
    tester = OperatorTester.of_aggregate(
        by=["k"],
        input=INPUT,
        ttl_ms=1000,
        rows=("*", "count"),
        total=("n", "sum"),
        some=("n", "count"),
        values=("n", "approx_distinct"),
    )
    found = tester.batch([("a", 1), ("a", None), ("b", 5), ("a", 1)], time=0)
    assert sorted(row.asDict().items() for row in found) == sorted(
        row.items()
        for row in [
            {"k": "a", "rows": 3, "total": 2, "some": 2, "values": 1},
            {"k": "b", "rows": 1, "total": 5, "some": 1, "values": 1},
        ]
    )
    point = tester.checkpoint()
    (again,) = tester.batch([("a", 2)], time=999)
    assert (again.rows, again.values) == (4, 2)
    # It is the last row from which a key lives.
    (again,) = tester.batch([("a", 2)], time=1998)
    assert again.rows == 5
    (anew,) = tester.batch([("a", 2)], time=2998)
    assert anew.rows == 1
    tester.restore(point)
    (again,) = tester.batch([("b", 1)], time=500)
    assert (again.rows, again.total) == (2, 6)


def test_what_spark_alone_can_hash_is_refused() -> None:
    schema = StructType().add("k", "string").add("n", "decimal(38,2)")
    with pytest.raises(DefinitionError, match=r"'n', which is decimal\(38,2\)"):
        OperatorTester.of_aggregate(by=["k"], input=schema, values=("n", "approx_distinct"))


def test_keys_that_are_equal_are_one_key() -> None:
    schema = StructType().add("k", "double").add("n", "long")
    output = StructType().add("k", "double").add("total", "long")
    tester = OperatorTester.of_processor(TestedTotals(), key=["k"], input=schema, output=output, shards=64)
    tester.batch([(0.0, 1), (float("nan"), 1)])
    tester.batch([(-0.0, 2), (float("nan"), 2)])
    assert tester.state("total", -0.0) == tester.state("total", float("nan")) == Row(n=3)


def test_mistakes_are_named() -> None:
    with pytest.raises(DefinitionError, match="key"):
        OperatorTester.of_processor(TestedTotals(), key=["other"], input=INPUT, output=OUTPUT)
    with pytest.raises(DefinitionError, match="one of the columns k, n"):
        totals(time_mode="EventTime", watermark="at")
    with pytest.raises(DefinitionError, match="rows of 2 values"):
        totals().batch([("a", 1, 2)])
    with pytest.raises(DefinitionError, match="k string, n bigint"):
        totals().batch([("a", "one")])
    with pytest.raises(StateTypeError, match="'k'"):
        totals().batch([(1, 1)])

    class Wrong(TestedTotals):
        def handleInputRows(self, key: Any, rows: Iterator[Row], timerValues: Any) -> Iterator[Row]:
            yield Row(k=1, total=1)

    tester = OperatorTester.of_processor(Wrong(), key=["k"], input=INPUT, output=OUTPUT)
    with pytest.raises(OutputTypeError):
        tester.batch([("a", 1)])
