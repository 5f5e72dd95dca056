"""An Arrow processor sees rows and states of many keys as columns, and what it returns is checked and kept."""

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from pyspark.sql.types import (
    CharType,
    IntegerType,
    LongType,
    StringType,
    StructType,
    TimestampType,
    VarcharType,
)

from chandy.state.errors import AggregateOverflowError, DefinitionError, OutputTypeError, ProcessorError
from chandy.state.operators import chunks
from chandy.state.operators.arrow_processor import ArrowProcessor, ArrowResult, arrow_spec
from chandy.state.operators.dataframe import SHARD
from chandy.state.rpc.messages import BatchTimes
from chandy.state.testing.memory import MemoryShards

from ..pipeline import run_operator

INPUT = StructType().add("k", StringType()).add("v", LongType())
OUTPUT = StructType().add("k", StringType()).add("n", LongType(), False).add("total", LongType())
COUNT = StructType().add("n", LongType(), False)
TIMES = BatchTimes(timestamp_ms=5, watermark_ms=3, late_ms=2)


class ArrowTotals(ArrowProcessor):
    """Counts rows and adds up values; forgets the total of a key whose total is zero."""

    states = {"count": COUNT, "total": StructType().add("sum", LongType())}

    def process(self, given):
        n = pa.array(np.diff(given.bounds))
        n = pc.add(n, pc.fill_null(pc.struct_field(given.states["count"], [0]), 0))
        added = np.bincount(given.numbers, given.rows["v"].to_numpy(), len(given)).astype(np.int64)
        total = pc.add(pa.array(added), pc.fill_null(pc.struct_field(given.states["total"], [0]), 0))
        zero = pc.equal(total, 0)
        states = {
            "count": pa.StructArray.from_arrays([n], ["n"]),
            "total": pa.StructArray.from_arrays([total], ["sum"], mask=zero),
        }
        return ArrowResult(given.keys.append_column("total", total).append_column("n", n), states)


def batch(rows, shard=None):
    """Rows (key, value); a key's shard is its first byte modulo 16."""
    return pa.RecordBatch.from_pydict(
        {
            "k": pa.array([key for key, _ in rows], pa.string()),
            "v": pa.array([value for _, value in rows], pa.int64()),
            SHARD: pa.array([(key or "0").encode()[0] % 16 for key, _ in rows], pa.int32()),
        }
    )


def run(processor, shards, *batches, output=OUTPUT):
    spec = arrow_spec(INPUT, uid="op", processor=processor, output=output)
    parts = run_operator(spec, batches, shards.begin(TIMES))
    return [row for part in parts for row in part.to_pylist()]


def of(function, states=ArrowTotals.states):
    """A processor that is this function."""
    return type("Of", (ArrowProcessor,), {"states": states, "process": lambda self, given: function(given)})()


def test_states_of_one_batch_are_seen_by_the_next():
    shards = MemoryShards()
    first = run(ArrowTotals(), shards, batch([("a", 1), ("b", 2)]), batch([("a", 3)]))
    assert sorted(first, key=str) == [{"k": "a", "n": 2, "total": 4}, {"k": "b", "n": 1, "total": 2}]
    second = run(ArrowTotals(), shards, batch([("a", 1), (None, 8)]))
    assert sorted(second, key=str) == [{"k": "a", "n": 3, "total": 5}, {"k": None, "n": 1, "total": 8}]


def test_only_values_that_differ_are_written_and_null_removes():
    shards = MemoryShards()
    run(ArrowTotals(), shards, batch([("a", 4), ("b", 5)]))
    assert len(shards.held) == len(shards.written) == 4
    run(ArrowTotals(), shards, batch([("a", -4), ("b", 0)]))
    assert len(shards.written) == 3
    assert len(shards.held) == 3
    run(of(lambda given: ArrowResult()), shards, batch([("a", 9)]))
    assert shards.written == []


def test_a_key_comes_in_one_call_with_all_its_rows_in_their_order(monkeypatch):
    monkeypatch.setattr(chunks, "CHUNK", 2)
    calls = []

    def keep(given):
        assert given.batch == 7
        assert given.times == TIMES
        rows, bounds = given.rows["v"].to_pylist(), given.bounds.tolist()
        calls.append(
            {
                key: rows[start:stop]
                for key, start, stop in zip(given.keys["k"].to_pylist(), bounds, bounds[1:], strict=False)
            }
        )
        assert given.rows["k"].to_pylist() == given.keys["k"].take(pa.array(given.numbers)).to_pylist()
        return ArrowResult()

    run(
        of(keep), MemoryShards(), batch([("a", 1), ("b", 2), ("a", 3)]), batch([("c", 4), ("a", 5), ("d", 6)])
    )
    assert [len(call) for call in calls] == [2, 2]
    assert {**calls[0], **calls[1]} == {"a": [1, 3, 5], "b": [2], "c": [4], "d": [6]}


def test_no_rows_are_no_call():
    run(of(lambda given: pytest.fail("called")), MemoryShards())


def test_what_fits_by_its_kind_is_taken():
    schema = StructType().add("at", TimestampType()).add("n", IntegerType()).add("s", StringType())

    def process(given):
        at = pa.array([0], pa.timestamp("ms", "Asia/Tokyo"))
        n, s = pa.array([7], pa.int64()), pa.array(["x"], pa.large_string())
        state = pa.chunked_array([pa.StructArray.from_arrays([s, at, n], ["s", "at", "n"])])
        return ArrowResult(pa.record_batch([n, s, at], names=["n", "s", "at"]), {"all": state})

    (row,) = run(of(process, {"all": schema}), MemoryShards(), batch([("a", 1)]), output=schema)
    assert (row["n"], row["s"], row["at"].timestamp()) == (7, "x", 0)


def test_char_and_varchar_are_strings_in_states_and_output():
    schema = StructType().add("s", VarcharType(3)).add("c", CharType(1))

    def process(given):
        (held,) = given.states.values()
        s = pc.binary_join_element_wise(pc.fill_null(pc.struct_field(held, "s"), ""), "x", "")
        state = pa.StructArray.from_arrays([s, s], ["s", "c"])
        return ArrowResult(pa.table({"s": s, "c": s}), {"all": state})

    shards = MemoryShards()
    for expected in ("x", "xx"):
        assert run(of(process, {"all": schema}), shards, batch([("a", 1)]), output=schema) == [
            {"s": expected, "c": expected}
        ]


def struct(**columns):
    return pa.StructArray.from_arrays([pa.array(v) for v in columns.values()], list(columns))


GOOD = {"k": ["a"], "n": [1], "total": [1]}


@pytest.mark.parametrize(
    ("result", "says"),
    [
        (None, "the result.*expected an ArrowResult, found None"),
        (ArrowResult(output=[1]), "the output.*expected a pyarrow Table"),
        (ArrowResult(output=pa.table({"k": ["a"]})), "expected the columns k, n, total, found k"),
        (
            ArrowResult(output=pa.table(GOOD | {"n": [1.5]})),
            "output column 'n'.*expected int64, found double",
        ),
        (ArrowResult(output=pa.table(GOOD | {"n": ["1"]})), "expected int64, found string"),
        (ArrowResult(output=pa.table(GOOD | {"n": pa.array([None], pa.int64())})), "not null, found 1 nulls"),
        (ArrowResult(states=[1]), "the new states.*expected a dict"),
        (ArrowResult(states={"sum": None}), "state 'sum'.*declared: 'count', 'total'"),
        (ArrowResult(states={"count": None}), "expected a pyarrow struct array, found None"),
        (ArrowResult(states={"count": pa.array([1])}), "state 'count'.*found int64"),
        (ArrowResult(states={"count": struct(n=[1, 2])}), "a value for each of 1 keys, found 2 values"),
        (ArrowResult(states={"count": struct(m=[1])}), "the fields n, found m"),
        (ArrowResult(states={"count": struct(n=[1.0])}), "field 'n' of state 'count'.*found double"),
        (ArrowResult(states={"count": struct(n=[None])}), "not null, found 1 nulls"),
    ],
)
def test_what_does_not_fit_is_refused_and_nothing_is_kept(result, says):
    shards = MemoryShards()
    with pytest.raises(OutputTypeError, match=says):
        run(of(lambda given: result), shards, batch([("a", 1)]))
    assert shards.applied == 0


def test_a_number_that_is_too_big_for_its_column_is_refused():
    output = StructType().add("n", IntegerType())
    with pytest.raises(OutputTypeError, match="int32"):
        run(
            of(lambda given: ArrowResult(pa.table({"n": [2**40]}))),
            MemoryShards(),
            batch([("a", 1)]),
            output=output,
        )


def test_an_error_of_the_processor_has_its_traceback_and_nothing_is_kept():
    def fails(given):
        raise ValueError("user's own")

    shards = MemoryShards()
    with pytest.raises(ProcessorError, match="user's own") as failed:
        run(of(fails), shards, batch([("a", 1)]))
    assert failed.value.where == "process"
    assert "engine.py" not in failed.value.traceback
    assert failed.value.summary.startswith(f"ValueError: user's own, at {__file__}:")
    assert shards.applied == 0


def test_chandys_own_errors_stay_what_they_are():
    def overflows(given):
        raise AggregateOverflowError("op", "sum(v)", "bigint")

    with pytest.raises(AggregateOverflowError):
        run(of(overflows), MemoryShards(), batch([("a", 1)]))


MONTHS = StructType.fromJson(
    {
        "type": "struct",
        "fields": [{"name": "i", "type": "interval year to month", "nullable": True, "metadata": {}}],
    }
)


@pytest.mark.parametrize(
    ("processor", "output", "error", "says"),
    [
        (ArrowTotals, OUTPUT, DefinitionError, "the class ArrowTotals"),
        (print, OUTPUT, DefinitionError, "an instance of chandy.state.ArrowProcessor"),
        (ArrowTotals(), MONTHS, DefinitionError, "the output of operator 'op'"),
        (of(None, {"a": MONTHS}), OUTPUT, DefinitionError, "interval year to month"),
        (of(None, {"a": 1}), OUTPUT, DefinitionError, "state 'a'"),
        (of(None, {"$a": COUNT}), OUTPUT, DefinitionError, "begin with"),
        (of(None, {"": COUNT}), OUTPUT, DefinitionError, "not empty"),
        (of(None, [1]), OUTPUT, DefinitionError, "a dict"),
    ],
)
def test_what_cannot_be_an_operator_is_refused(processor, output, error, says):
    with pytest.raises(error, match=says):
        arrow_spec(INPUT, uid="op", processor=processor, output=output)
