"""Running aggregates through the whole operator: combined before or not, batch after batch, over many chunks."""

from collections import defaultdict

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pyspark import cloudpickle
from pyspark.sql.types import DoubleType, LongType, StringType, StructType

from chandy.state.aggregation import partial_aggregation
from chandy.state.aggregation.aggregate_operator import aggregation
from chandy.state.aggregation.aggregates import ITSELF, Input
from chandy.state.errors import AggregateOverflowError, DefinitionError
from chandy.state.operators import chunks
from chandy.state.operators.arrow_expiry import TimeToLive
from chandy.state.operators.dataframe import SHARD
from chandy.state.rpc.messages import BatchTimes
from chandy.state.testing.memory import MemoryShards

from ...effort import examples
from ..pipeline import run_operator

INPUT = StructType().add("k", StringType()).add("v", LongType()).add("x", DoubleType())
COLUMNS = {
    "rows": ("*", "count"),
    "n": ("v", "count"),
    "total": ("v", "sum"),
    "least": ("v", "min"),
    "values": ("v", "approx_distinct"),
    "first": ("v", "first"),
}


def made(combine="auto", columns=COLUMNS, by=("k",)):
    return aggregation(INPUT, by, columns, uid="op", combine=combine)


def batch(aggregation, rows):
    """What Spark gives to the first function: the key, the columns that are needed, the shard."""
    keys = pa.array([key for key, _ in rows], pa.string())
    values = pa.array([value for _, value in rows], pa.int64())
    shards = pa.array([(key or "0").encode()[0] % 16 for key, _ in rows], pa.int32())
    table = pa.table({"k": keys, "v": values, "x": pa.nulls(len(rows), pa.float64()), SHARD: shards})
    (found,) = aggregation.arrow_rows(table).combine_chunks().to_batches() or [None]
    return found


def run(aggregation, shards, *tasks, at=None):
    """Run a batch: each of ``tasks`` are the batches of one task before the shuffle."""
    sent = [
        part
        for batches in tasks
        for part in (
            batches if aggregation.combiner is None else aggregation.combiner.function(iter(batches))
        )
    ]
    parts = run_operator(cloudpickle.loads(cloudpickle.dumps(aggregation.spec)), sent, shards.begin(at))
    return {row.pop("k"): row for part in parts for row in part.to_pylist()}, sum(map(len, sent))


def model(rows):
    found = {}
    by_key = defaultdict(list)
    for key, value in rows:
        by_key[key].append(value)
    for key, values in by_key.items():
        known = [value for value in values if value is not None]
        found[key] = {
            "rows": len(values),
            "n": len(known),
            "total": sum(known) if known else None,
            "least": min(known, default=None),
            "values": len(set(known)),
            "first": values[0],
        }
    return found


ROWS = st.lists(
    st.tuples(st.sampled_from(["a", "b", "c", None]), st.none() | st.integers(-5, 5)), min_size=1, max_size=12
)


@settings(max_examples=examples(8))
@given(
    st.lists(st.lists(ROWS, min_size=1, max_size=3), min_size=1, max_size=3),
    st.sampled_from(["auto", True, False]),
    st.integers(1, 8),
    st.integers(1, 12),
)
def test_totals_are_those_of_all_rows_so_far_for_each_key_of_the_batch(batches, combine, sample, most):
    plan, shards, seen = made(combine), MemoryShards(), []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(partial_aggregation, "SAMPLE", sample)
        patch.setattr(partial_aggregation, "ROWS", most)
        patch.setattr(chunks, "CHUNK", 2)
        for parts in batches:
            rows = [row for part in parts for row in part]
            seen += rows
            found, _ = run(plan, shards, [batch(plan, part) for part in parts])
            assert found == {key: row for key, row in model(seen).items() if key in dict(rows)}


def test_a_hot_key_comes_to_its_task_as_few_rows():
    plan = made()
    hot = [("hot", n % 50) for n in range(30_000)] + [(f"k{n}", n) for n in range(200)]
    tasks = [[batch(plan, hot[start : start + 1000]) for start in range(0, len(hot), 1000)]] * 3
    found, sent = run(plan, MemoryShards(), *tasks)
    assert sent == 3 * 201
    assert found["hot"]["rows"] == 90_000
    assert found["hot"]["values"] == 50


def test_many_rows_of_few_keys_are_held_and_sent_as_few(monkeypatch):
    monkeypatch.setattr(partial_aggregation, "ROWS", 2000)
    plan = made()
    held = []

    def batches():
        for number in range(50):
            held.append(pa.total_allocated_bytes())
            yield batch(plan, [(f"k{n % 7}", n) for n in range(number, number + 500)])

    found, sent = run(plan, MemoryShards(), batches())
    assert sent == 7
    assert sum(row["rows"] for row in found.values()) == 25_000
    assert max(held[10:]) < 2 * max(held[:10])


def test_keys_that_do_not_repeat_are_sent_on_before_all_rows_were_read(monkeypatch):
    monkeypatch.setattr(partial_aggregation, "SAMPLE", 1000)
    plan, read = made(), []

    def batches():
        for number in range(20):
            read.append(number)
            yield batch(plan, [(f"k{number}-{n}", n) for n in range(500)])

    sent = plan.combiner.function(batches())
    first = next(sent)
    assert read == [0, 1]
    assert len(first) + sum(map(len, sent)) == 10_000


def test_keys_that_do_not_repeat_are_combined_all_the_same_if_that_was_asked_for(monkeypatch):
    monkeypatch.setattr(partial_aggregation, "SAMPLE", 100)
    plan = made(combine=True)
    rows = [(f"k{n}", n) for n in range(300)]
    _, sent = run(plan, MemoryShards(), [batch(plan, rows), batch(plan, rows)])
    assert sent == 300


def test_more_keys_than_are_held_are_sent_in_parts(monkeypatch):
    monkeypatch.setattr(partial_aggregation, "ROWS", 1000)
    plan = made(combine=True)
    rows = [(f"k{n}", n) for n in range(700)]
    found, sent = run(plan, MemoryShards(), [batch(plan, rows)] * 6)
    assert 700 < sent <= 3 * 700
    assert {row["rows"] for row in found.values()} == {6}


@pytest.mark.parametrize("combine", ["auto", False])
@pytest.mark.parametrize(("since", "expected"), [("last", [1, 2, 3, 4, 1]), ("first", [1, 2, 1, 2, 1])])
def test_a_key_begins_anew_after_its_time_to_live(since, expected, combine):
    plan = aggregation(
        INPUT, ["k"], {"rows": ("*", "count")}, uid="op", combine=combine, ttl=TimeToLive(100, since)
    )
    shards, seen = MemoryShards(), []
    for time in (0, 99, 198, 297, 397):
        found, _ = run(plan, shards, [batch(plan, [("a", time)])], at=BatchTimes(time))
        seen.append(found["a"]["rows"])
    assert seen == expected
    run(plan, shards, [], at=BatchTimes(1000))
    assert not shards.held


def test_only_what_is_needed_of_a_row_is_asked_for():
    assert made(columns={"n": ("*", "count")}).inputs == {}
    assert list(made(columns={"n": ("v", "sum"), "m": ("v", "max")}).inputs.values()) == [Input("v", ITSELF)]
    (counted,) = made(columns={"n": ("v", "count")}).inputs.values()
    assert counted.expression == "if(`v` is null, null, true)"


def test_what_overflows_names_the_operator_and_keeps_nothing():
    plan, shards = made(columns={"total": ("v", "sum")}), MemoryShards()
    run(plan, shards, [batch(plan, [("a", 2**62)])])
    with pytest.raises(AggregateOverflowError, match=r"sum\(v\) of operator 'op'"):
        run(plan, shards, [batch(plan, [("a", 2**62)])])
    assert shards.applied == 1


def test_a_word_for_combine_that_is_none_is_refused():
    with pytest.raises(DefinitionError, match="'auto', True or False"):
        made(combine="yes")
