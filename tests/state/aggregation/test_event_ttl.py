"""Aggregates whose keys live by event time, against a model, over random rows, watermarks and restores."""

from __future__ import annotations

from typing import Any

from hypothesis import given
from hypothesis import strategies as st
from pyspark.sql.types import StructType

from chandy.state.format import keyspace
from chandy.state.operators.arrow_expiry import Since
from chandy.state.testing import OperatorTester
from chandy.state.testing.tester import Point

from ...effort import trying
from .moments import at

INPUT = StructType().add("t", "timestamp").add("k", "string").add("v", "long")
TTL = 10_000
# Some rows have no event time, and whole seconds make many a watermark the end of a key.
TIMES = st.none() | st.integers(-12, 12).map(lambda seconds: 1000 * seconds)
"""Before and after the watermark."""
ROWS = st.lists(st.tuples(TIMES, st.sampled_from("abc"), st.integers(0, 9)), max_size=8)
STEPS = st.integers(0, 8).map(lambda seconds: 1000 * seconds)
BATCHES = st.lists(st.tuples(ROWS, STEPS, st.booleans(), st.booleans()), min_size=1, max_size=8)


class Model:
    """What keys are to do: each has its rows until the watermark has passed the time to live of one of them."""

    def __init__(self, since: Since) -> None:
        self.decides = max if since == "last" else min
        self.rows: dict[str, list[tuple[int | None, int]]] = {}

    def batch(self, rows: list[tuple[int | None, str, int]], watermark: int) -> dict[str, tuple[int, int]]:
        for time, k, v in rows:
            self.rows.setdefault(k, []).append((time, v))
        output = {k: (len(self.rows[k]), sum(v for _, v in self.rows[k])) for _, k, _ in rows}
        ends = {k: self.end(own) for k, own in self.rows.items()}
        self.rows = {k: own for k, own in self.rows.items() if ends[k] is None or ends[k] > watermark}
        return output

    def end(self, own: list[tuple[int | None, int]]) -> int | None:
        times = [time for time, _ in own if time is not None]
        return self.decides(times) + TTL if times else None


def written_anew(point: Point) -> Point:
    """What a ``SavepointWriter`` makes of a checkpoint: it does not know when keys end."""
    held, prefix = point.shards.held, keyspace.value_prefix("aggregates")
    for shard, key in list(held):
        if key.startswith(keyspace.WINDOWS):
            del held[shard, key]
        elif key.startswith(prefix):
            held[shard, keyspace.timed_key(keyspace.WINDOWS, 0, key.removeprefix(prefix))] = b""
    return point


@trying(50)
@given(since=st.sampled_from(["last", "first"]), batches=BATCHES)
def test_a_key_lives_until_the_watermark_has_passed_its_time(since: Since, batches: list[Any]) -> None:
    real = OperatorTester.of_aggregate(
        by=["k"],
        input=INPUT,
        ttl_ms=TTL,
        ttl_since=since,
        ttl_column="t",
        n=("*", "count"),
        total=("v", "sum"),
    )
    model, watermark = Model(since), 0
    for given_rows, step, is_restored, is_written_anew in batches:
        watermark += step
        rows = [(t if t is None else t + watermark, k, v) for t, k, v in given_rows]
        if is_restored:
            # A batch that is lost with its driver has removed nothing.
            point = real.checkpoint()
            real.batch([(at(99_000), "a", 1)], watermark=watermark + 60_000)
            real.restore(point)
        if is_written_anew:
            real.restore(written_anew(real.checkpoint()))
        found = real.batch([(t if t is None else at(t), k, v) for t, k, v in rows], watermark=watermark)
        assert {row.k: (row.n, row.total) for row in found} == model.batch(rows, watermark)
        assert {k for k in "abc" if real.state("aggregates", k) is not None} == set(model.rows)
        held = real.checkpoint().shards.held
        # The invariant of the index: whatever is to go is looked at by then.
        looked_at = [keyspace.split_timed(key)[0] for _, key in held if key.startswith(keyspace.WINDOWS)]
        ends = [end for end in map(model.end, model.rows.values()) if end is not None]
        assert all(any(time <= end for time in looked_at) for end in ends)
    # Nothing is left of a key that has gone.
    real.batch(watermark=10_000_000)
    lasting = {k for k, own in model.rows.items() if model.end(own) is None}
    assert len(real.checkpoint().shards.held) == len(lasting)
