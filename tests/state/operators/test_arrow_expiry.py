"""Times to live of states in columns: a model of them, whatever is declared from batch to batch."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyspark.sql.types import StructType

from chandy.state.errors import DefinitionError
from chandy.state.format import keyspace
from chandy.state.format.packing import expiry_of
from chandy.state.operators import chunks
from chandy.state.operators.arrow_processor import ArrowProcessor, ArrowResult, arrow_spec
from chandy.state.testing import OperatorTester

from ...effort import trying

INPUT = StructType().add("k", "string").add("n", "long")
STATE = StructType().add("n", "long")


class TwoStates(ArrowProcessor):
    """Adds up a column in two states; a key whose newest value is negative is removed from both."""

    def __init__(self, **ttl_ms: int) -> None:
        self.states = {"count": STATE, "other": STATE}
        self.ttl_ms = ttl_ms

    def process(self, given):
        # A batch has one row of a key.
        value = given.rows.column("n").combine_chunks()
        sums = {}
        for name, held in given.states.items():
            before = pc.fill_null(pc.struct_field(held, "n"), 0)
            total = pc.add(before, value)
            gone = pc.less(value, 0)
            sums[name] = pa.StructArray.from_arrays([total], ["n"], mask=gone)
        output = given.keys.append_column("n", pc.struct_field(sums["count"], "n"))
        return ArrowResult(output, sums)


def operator_with(processor: ArrowProcessor) -> OperatorTester:
    return OperatorTester.of_arrow(processor, key=["k"], input=INPUT, output=INPUT, shards=2)


TTL = st.none() | st.sampled_from([8, 50, 1000])
BATCHES = st.lists(
    st.tuples(
        st.sampled_from([0, 1, 7, 30, 300, 700_000]),
        st.dictionaries(st.sampled_from("abc"), st.sampled_from([1, 1, 1, 2, -1])),
        st.none() | st.fixed_dictionaries({"count": TTL, "other": TTL}),
    ),
    min_size=1,
    max_size=12,
)


@trying(20)
@given(BATCHES)
def test_values_expire_as_they_were_written_and_are_removed_in_time(batches) -> None:
    ttl = {"count": None, "other": None}
    tested = operator_with(TwoStates())
    model = {name: {} for name in ttl}
    longest, now = 0, 1_000_000
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(chunks, "CHUNK", 2)
        for passed, rows, declared in batches:
            now += passed
            if declared is not None:
                ttl = declared
                given = {name: ms for name, ms in ttl.items() if ms is not None}
                tested.restore(tested.checkpoint(), TwoStates(**given))
            tested.batch(list(rows.items()), time=now)
            for name, values in model.items():
                ms = ttl[name]
                longest = max(longest, ms or 0)
                for key, value in rows.items():
                    total, expires = values.get(key, (0, None))
                    if expires is not None and expires <= now:
                        total = 0
                    values[key] = (total + value, None if ms is None else now + ms)
                    if value < 0:
                        del values[key]
                for key in "abc":
                    total, expires = values.get(key, (None, None))
                    live = total is not None and (expires is None or expires > now)
                    found = tested.state(name, key, time=now)
                    assert (found and found.n) == (total if live else None)
            check_stored(tested, now, longest)


def check_stored(tested: OperatorTester, now: int, longest: int) -> None:
    """What has an expiry is in the index, and is gone soon after it."""
    held = tested.checkpoint().shards.held
    index = {}
    for shard, key in held:
        if key.startswith(keyspace.EXPIRY):
            time, name = keyspace.split_timed(key)
            index.setdefault((shard, name), []).append(time)
            assert time > now
    for where, value in held.items():
        if not where[1].startswith(keyspace.EXPIRY) and (expiry := expiry_of(value)) is not None:
            assert expiry + longest / 8 > now
            assert any(time <= expiry + longest / 8 for time in index.get(where, ()))


def test_the_index_costs_nothing_while_a_value_is_renewed() -> None:
    tested = operator_with(TwoStates(count=4000))
    for time in range(0, 10_000, 100):
        tested.batch([("a", 1)], time=time)
        entries = [key for _, key in tested.checkpoint().shards.held if key.startswith(keyspace.EXPIRY)]
        assert len(entries) == 1


def test_a_state_that_is_not_declared_keeps_its_values_and_expires_once_it_is_declared_again() -> None:
    class Other(TwoStates):
        def __init__(self) -> None:
            super().__init__(other=100)
            self.states = {"other": STATE}

        def process(self, given):
            output = given.keys.append_column("n", given.rows.column("n"))
            return ArrowResult(output, {"other": pa.nulls(len(given), given.states["other"].type)})

    tested = operator_with(TwoStates(count=100, other=100))
    tested.batch([("a", 1)], time=0)
    tested.restore(tested.checkpoint(), Other())
    for time in (200, 400, 700_000):
        tested.batch([("b", 1)], time=time)
        held = tested.checkpoint().shards.held
        assert sum(key.startswith(keyspace.value_prefix("count")) for _, key in held) == 1
    tested.restore(tested.checkpoint(), TwoStates(count=100, other=100))
    tested.batch([("b", 1)], time=1_400_000)
    assert tested.state("count", "a", time=0) is None


@pytest.mark.parametrize(
    "ttl", [{"no": 1}, {"count": 0}, {"count": -5}, {"count": True}, {"count": "1 h"}, 5]
)
def test_times_to_live_are_positive_milliseconds_of_declared_states(ttl) -> None:
    processor = TwoStates()
    processor.ttl_ms = ttl
    with pytest.raises(DefinitionError, match="ttl_ms to be a dict of positive milliseconds"):
        arrow_spec(INPUT, uid="op", processor=processor, output=INPUT)


def test_timed_keys_in_columns_are_those_of_single_ones() -> None:
    times = np.array([-5, 0, 1, (1 << 62)], np.int64)
    keys = pa.array([b"", b"k", b"longer", b"\xff" * 3], pa.large_binary())
    made = keyspace.timed_keys(keyspace.EXPIRY, times, keys)
    assert made.to_pylist() == [
        keyspace.timed_key(keyspace.EXPIRY, int(time), key)
        for time, key in zip(times, keys.to_pylist(), strict=True)
    ]
    for part in (made, made.slice(1, 2), made.slice(3)):
        assert keyspace.named_by(part).to_pylist() == [
            keyspace.split_timed(one)[1] for one in part.to_pylist()
        ]
