"""Aggregates whose keys live by event time, against a model: any rows, watermarks, restores and declarations."""

from __future__ import annotations

from typing import Any

import attrs
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from pyspark.sql.types import StructField, StructType, TimestampType

from chandy.state.aggregation.event_ttl import lives_by_event_time
from chandy.state.format import keyspace
from chandy.state.format.packing import Packing, expiry_of
from chandy.state.format.schema import from_json, to_json
from chandy.state.format.values import StateName
from chandy.state.operators.arrow_expiry import TimeToLive
from chandy.state.operators.expiry_index import ASLEEP_MS
from chandy.state.testing import OperatorTester
from chandy.state.testing.tester import Point
from chandy.storage.checkpoints.manifest import StateRecord

from ...effort import trying
from .moments import at

INPUT = StructType().add("t", "timestamp").add("k", "string").add("v", "long")
STATE, WHERE = "aggregates", keyspace.value_prefix("aggregates")
# Some rows have no event time, and whole seconds make many a watermark the end of a key.
TIMES = st.none() | st.integers(-12, 12).map(lambda seconds: 1000 * seconds)
"""Before and after the watermark."""
ROWS = st.lists(st.tuples(TIMES, st.sampled_from("abc"), st.integers(0, 9)), max_size=8)
STEPS = st.integers(0, 8).map(lambda seconds: 1000 * seconds)
DECLARED = st.none() | st.builds(
    TimeToLive,
    st.sampled_from([4000, 10_000]),
    st.sampled_from(["last", "first"]),
    st.sampled_from(["t", None]),
)
BATCHES = st.lists(
    st.tuples(ROWS, STEPS, st.booleans(), st.booleans(), st.booleans(), DECLARED), min_size=1, max_size=8
)


def operator(ttl: TimeToLive | None) -> OperatorTester:
    lives = {} if ttl is None else {"ttl_ms": ttl.ms, "ttl_since": ttl.since, "ttl_column": ttl.column}
    return OperatorTester.of_aggregate(by=["k"], input=INPUT, n=("*", "count"), total=("v", "sum"), **lives)


@attrs.define
class Key:
    """What a key has, and the end that it was given: by the watermark, or by processing time."""

    rows: list[int] = attrs.field(factory=list)
    decided: int = 0
    end: int | None = None
    expiry: int | None = None


class KeyModel:
    """What keys are to do: each has its rows until it ends, as the time to live was when they came."""

    def __init__(self) -> None:
        self.keys: dict[str, Key] = {}

    def batch(
        self, rows: list[tuple[int | None, str, int]], now: int, watermark: int, ttl: TimeToLive | None
    ) -> dict[str, tuple[int, int]]:
        self.expire(now)
        for k in {k for _, k, _ in rows}:
            key = self.keys.setdefault(k, Key())
            key.rows += [v for _, own, v in rows if own == k]
            self.renew(key, [t for t, own, _ in rows if own == k and t is not None], now, ttl)
        output = {k: (len(self.keys[k].rows), sum(self.keys[k].rows)) for _, k, _ in rows}
        self.keys = {k: one for k, one in self.keys.items() if one.end is None or one.end > watermark}
        return output

    def renew(self, key: Key, times: list[int], now: int, ttl: TimeToLive | None) -> None:
        if ttl is None or ttl.column is None:
            key.end = None
            keeps = ttl is not None and ttl.since == "first" and key.expiry is not None
            key.expiry = key.expiry if keeps else None if ttl is None else now + ttl.ms
            return
        key.expiry = None
        if times:
            time = max(times) if ttl.since == "last" else min(times)
            if key.end is None or (time >= key.decided if ttl.since == "last" else time < key.decided):
                key.decided, key.end = time, time + ttl.ms

    def expire(self, now: int) -> None:
        self.keys = {k: one for k, one in self.keys.items() if one.expiry is None or one.expiry > now}


def states_of(point: Point) -> dict[str, StateRecord]:
    return {} if point.record is None else point.record.states


def written_anew(point: Point) -> Point:
    """What a ``SavepointWriter`` makes of a checkpoint: it does not know when keys end."""
    held = point.shards.held
    for shard, key in list(held):
        if key.startswith(keyspace.WINDOWS):
            del held[shard, key]
        elif key.startswith(WHERE):
            held[shard, keyspace.timed_key(keyspace.WINDOWS, 0, key.removeprefix(WHERE))] = b""
    return point


def check_index(point: Point) -> None:
    """Whatever is stored and has an end or an expiry is looked at by then."""
    packing = Packing([from_json(one) for one in states_of(point)[STATE].versions], StateName("", STATE))
    looked_at: dict[tuple[bytes, bytes], int] = {}
    for _, key in point.shards.held:
        if key[:2] in (keyspace.WINDOWS, keyspace.EXPIRY):
            time, named = keyspace.split_timed(key)
            looked_at[key[:2], named] = min(time, looked_at.get((key[:2], named), time))
    for (_, key), value in point.shards.held.items():
        if key.startswith(WHERE):
            fields = dict(zip(packing.schema.names, packing.unpack_row(value), strict=True))
            if (end := fields.get("$end")) is not None:
                assert looked_at[keyspace.WINDOWS, key.removeprefix(WHERE)] <= end
            if (expiry := expiry_of(value)) is not None:
                assert looked_at[keyspace.EXPIRY, key] <= expiry + 10_000 // 8


def shortened(*rows: Any) -> dict[str, Any]:
    """A time to live that is shorter from the second batch on, and a key whose rows come at these times."""
    declared = TimeToLive(4000, "last", "t")
    batches = [
        ([] if t is None else [(t, "a", 1)], 2000, False, False, number > 0, declared)
        for number, t in enumerate(rows)
    ]
    return {"first": TimeToLive(10_000, "last", "t"), "batches": batches}


@trying(25)
@given(first=DECLARED, batches=BATCHES)
@example(**shortened(0, 0, None, None, None))
@example(**shortened(0, -2000, None, None, 0))
def test_a_key_lives_until_the_time_that_its_row_gave_it_whatever_is_declared_later(
    first: TimeToLive | None, batches: list[Any]
) -> None:
    ttl, real, model = first, operator(first), KeyModel()
    now = watermark = 0
    for given_rows, step, is_restored, is_written_anew, is_declared, declared in batches:
        watermark, now = watermark + step, now + 1000 + step // 3
        rows = [(t if t is None else t + watermark, k, v) for t, k, v in given_rows]
        point = real.checkpoint()
        if is_restored:
            # A batch that is lost with its driver has removed nothing.
            real.batch([(at(99_000), "a", 1)], time=now + 60_000, watermark=watermark + 60_000)
        if is_declared:
            ttl, real = declared, operator(declared)
        if is_written_anew and STATE in states_of(point) and lives_by_event_time(states_of(point)[STATE]):
            point = written_anew(point)
        real.restore(point)
        moments = [(t if t is None else at(t), k, v) for t, k, v in rows]
        found = real.batch(moments, time=now, watermark=watermark)
        assert {row.k: (row.n, row.total) for row in found} == model.batch(rows, now, watermark, ttl)
        model.expire(now)
        assert {k for k in "abc" if real.state(STATE, k, time=now) is not None} == set(model.keys)
        check_index(real.checkpoint())
    # Nothing is left of a key that has gone, whatever is declared then.
    for later in (100_000, 200_000, 10_000_000):
        real.batch(time=now + later, watermark=watermark + later)
    lasting = [k for k, one in model.keys.items() if one.end is None and one.expiry is None]
    assert len(real.checkpoint().shards.held) == len(lasting)


@pytest.mark.parametrize("between", [None, TimeToLive(5000)])
def test_state_of_an_earlier_version_ends_by_the_time_to_live_that_is_declared(
    between: TimeToLive | None,
) -> None:
    event = TimeToLive(10_000, "last", "t")
    plain = operator(None)
    plain.batch([(None, "a", 1), (None, "b", 2)])
    point = plain.checkpoint()
    schema = from_json(states_of(point)[STATE].versions[-1])
    stored = StructType([*schema.fields, StructField("$last_time", TimestampType())])
    packing, before = Packing([stored], StateName("", STATE)), Packing([schema], StateName("", STATE))
    for (shard, key), value in list(point.shards.held.items()):
        point.shards.held[shard, key] = packing.pack_row((*before.unpack_row(value), at(1000)))
        entry = keyspace.timed_key(keyspace.WINDOWS, 11_000, key.removeprefix(WHERE))
        point.shards.held[shard, entry] = b""
    assert point.record is not None
    earlier = attrs.evolve(point.record, states={STATE: StateRecord((to_json(stored),))})
    point = attrs.evolve(point, record=earlier)
    tested = operator(between)
    tested.restore(point)
    tested.batch([(None, "c", 1)], watermark=20_000)
    assert tested.state(STATE, "a") is not None, "nobody knows when it was to end"
    later = operator(event)
    later.restore(tested.checkpoint())
    later.batch(watermark=20_000 + ASLEEP_MS)
    assert [later.state(STATE, k) for k in "ab"] == [None, None]
    tested = operator(attrs.evolve(event, ms=3000))
    tested.restore(point)
    (row,) = tested.batch([(at(1500), "a", 1)], watermark=3000)
    assert (row.n, row.total) == (2, 2)
    tested.batch(watermark=4500)
    assert tested.state(STATE, "a") is None
    assert tested.state(STATE, "b") is not None, "an earlier version has put its entry later"
    tested.batch(watermark=11_000)
    assert tested.state(STATE, "b") is None
