"""The state that Spark's reader gives becomes what a processor here would have written, with Spark's own expiry."""
# The methods have PySpark's names.
# ruff: noqa: N802, N803

from __future__ import annotations

from pathlib import Path
from typing import Any

import attrs
import pyarrow as pa
import pytest
from pyspark.sql.streaming import StatefulProcessor
from pyspark.sql.types import StringType, StructField, StructType

from chandy.state.format.schema import to_json
from chandy.state.operators.dataframe import SHARD
from chandy.state.operators.time_mode import TimeMode
from chandy.state.processors.adopted_state import EXPIRY, STATE, VALUE, AdoptedVariable, read_entries
from chandy.state.rpc.messages import BatchTimes
from chandy.storage.checkpoints.manifest import StateKind, StateRecord

from ..pipeline import OneOperator, shard_of

KEY = StructType([StructField("k", StringType())])
N = StructType().add("n", "long")
PAIR = StructType().add("n", "long").add("s", "string")
TTL = 1000


class Shows(StatefulProcessor):
    """Tells all of its state, and each timer that fires."""

    def init(self, handle: Any) -> None:
        self.handle = handle
        self.one = handle.getValueState("one", PAIR, TTL)
        self.some = handle.getListState("some", N, TTL)
        self.named = handle.getMapState("named", N, PAIR, TTL)

    def told(self) -> str:
        entries = sorted((tuple(key), tuple(value)) for key, value in self.named.iterator())
        return str((self.one.get(), [n for (n,) in self.some.get()], entries))

    def handleInputRows(self, key: Any, rows: Any, timerValues: Any) -> Any:
        yield (self.told(), len(list(self.handle.listTimers())))

    def handleExpiredTimer(self, key: Any, timerValues: Any, expiredTimerInfo: Any) -> Any:
        yield (f"timer of {key.k} {self.told()}", expiredTimerInfo.getExpiryTimeInMs())


class Writes(Shows):
    """Writes what the tests take over."""

    def handleInputRows(self, key: Any, rows: Any, timerValues: Any) -> Any:
        now = timerValues.getCurrentProcessingTimeInMs()
        if key[0] == "a":
            self.one.update((1, "x"))
            self.some.put([(n,) for n in range(900)])
            for n in range(300):
                self.named.updateValue((n,), (n, "z" * 40))
        self.handle.registerTimer(now + 500)
        self.handle.registerTimer(now + 9000)
        yield ("", 0)


VARIABLE = AdoptedVariable("", "delays", to_json(KEY), None, None, TimeMode.PROCESSING)
ONE = StateRecord((to_json(PAIR),), ttl_ms=TTL)
SOME = StateRecord((to_json(N),), StateKind.LIST, ttl_ms=TTL)
NAMED = StateRecord((to_json(PAIR),), StateKind.MAP, to_json(N), ttl_ms=TTL)


N_TYPE = pa.struct([("n", pa.int64())])
PAIR_TYPE = pa.struct([("n", pa.int64()), ("s", pa.string())])


def expiring(kind: pa.DataType) -> pa.DataType:
    return pa.struct([(VALUE, kind), (EXPIRY, pa.int64())])


def until(expiry: int, **fields: Any) -> dict[str, Any]:
    return {VALUE: fields, EXPIRY: expiry}


def take(
    pipeline: OneOperator,
    folder: Path,
    name: str | None,
    record: StateRecord | None,
    rows: list[tuple[str, Any]],
    kind: pa.DataType,
) -> None:
    """Put what Spark's reader gives into the pipeline's shards: rows of keys with their state, or with a timer."""
    function = attrs.evolve(VARIABLE, folder=str(folder), name=name, record=record)
    table = pa.table(
        {
            "k": pa.array([key for key, _ in rows], pa.string()),
            STATE: pa.array([state for _, state in rows], kind),
            SHARD: pa.array([shard_of(key) for key, _ in rows], pa.int32()),
        }
    )
    for written in function(iter(table.to_batches())):
        for place in written.to_pylist():
            for key, value in read_entries([place["path"]]).items():
                assert value is not None
                pipeline.shards.held[place["shard"], key] = value


def test_it_is_byte_for_byte_what_a_processor_here_writes(tmp_path: Path) -> None:
    here, taken = OneOperator(TimeMode.PROCESSING), OneOperator(TimeMode.PROCESSING)
    here.batch(Writes(), [("a", 0), ("bb", 0)], BatchTimes(4000, 0))
    end = 4000 + TTL
    take(taken, tmp_path, "one", ONE, [("a", until(end, n=1, s="x"))], expiring(PAIR_TYPE))
    some = [until(end, n=n) for n in range(900)]
    take(taken, tmp_path, "some", SOME, [("a", some)], pa.list_(expiring(N_TYPE)))
    named = [({"n": n}, until(end, n=n, s="z" * 40)) for n in range(300)]
    take(taken, tmp_path, "named", NAMED, [("a", named)], pa.map_(N_TYPE, expiring(PAIR_TYPE)))
    timers = [("a", 13_000), ("bb", 4500), ("a", 4500), ("bb", 13_000)]
    take(taken, tmp_path, None, None, timers, pa.int64())
    assert len(taken.shards.held) > 20
    assert taken.shards.held == here.shards.held


def test_each_part_expires_when_spark_would_let_it(tmp_path: Path) -> None:
    pipeline = OneOperator(TimeMode.PROCESSING)
    values = [("a", until(5000, n=1, s="x")), ("bb", until(6000, n=2, s=None))]
    take(pipeline, tmp_path, "one", ONE, values, expiring(PAIR_TYPE))
    some = [("a", [until(5000 + n, n=n) for n in range(4)]), ("bb", [])]
    take(pipeline, tmp_path, "some", SOME, some, pa.list_(expiring(N_TYPE)))
    take(
        *(pipeline, tmp_path, "named", NAMED),
        [("a", [({"n": 7}, until(7000, n=7, s="z")), ({"n": 8}, until(1, n=0, s=""))])],
        pa.map_(N_TYPE, expiring(PAIR_TYPE)),
    )

    def told(now: int) -> list[str]:
        return [row["k"] for row in pipeline.attempt(Shows(), [("a", 0), ("bb", 0)], BatchTimes(now, 0))]

    seven = "[((7,), (7, 'z'))]"
    assert told(4999) == [f"((1, 'x'), [0, 1, 2, 3], {seven})", "((2, None), [], [])"]
    assert told(5002) == [f"(None, [3], {seven})", "((2, None), [], [])"]
    assert told(7000) == ["(None, [], [])"] * 2
    # What has expired is also removed, with nobody asking for it.
    pipeline.batch(Shows(), [], BatchTimes(10**6, 0))
    assert pipeline.shards.held == {}


def test_state_without_a_time_to_live_is_what_it_was(tmp_path: Path) -> None:
    class Plain(StatefulProcessor):
        def init(self, handle: Any) -> None:
            self.one = handle.getValueState("one", PAIR)

        def handleInputRows(self, key: Any, rows: Any, timerValues: Any) -> Any:
            yield (str(self.one.get()), 0)

    pipeline = OneOperator()
    record = StateRecord((to_json(PAIR),))
    take(pipeline, tmp_path, "one", record, [("a", {"n": None, "s": "y"}), ("cc", None)], PAIR_TYPE)
    found = pipeline.batch(Plain(), [("a", 0), ("cc", 0)])
    assert [row["k"] for row in found] == ["(None, 'y')", "None"]


@pytest.mark.parametrize("mode", [TimeMode.PROCESSING, TimeMode.EVENT])
def test_timers_fire_at_their_time(tmp_path: Path, mode: TimeMode) -> None:
    class Fires(StatefulProcessor):
        def init(self, handle: Any) -> None:
            self.handle = handle

        def handleInputRows(self, key: Any, rows: Any, timerValues: Any) -> Any:
            return iter(())

        def handleExpiredTimer(self, key: Any, timerValues: Any, expiredTimerInfo: Any) -> Any:
            yield (key.k, expiredTimerInfo.getExpiryTimeInMs())

    def at(now: int) -> BatchTimes:
        return BatchTimes(now, now)

    pipeline = OneOperator(mode)
    function = attrs.evolve(VARIABLE, mode=mode, folder=str(tmp_path))
    table = pa.table({"k": ["a", "a", "bb"], STATE: [5, 9, 5], SHARD: pa.array([1, 1, 2], pa.int32())})
    for written in function(iter(table.to_batches())):
        for place in written.to_pylist():
            for key, value in read_entries([place["path"]]).items():
                assert value is not None
                pipeline.shards.held[place["shard"], key] = value
    fired = [[(row["k"], row["n"]) for row in pipeline.batch(Fires(), [], at(now))] for now in (4, 8, 9)]
    assert fired == [[], [("a", 5), ("bb", 5)], [("a", 9)]]
    assert pipeline.shards.held == {}
