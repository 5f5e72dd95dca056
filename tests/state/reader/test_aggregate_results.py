"""Changes of an aggregate's state have its results, now and before."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
from pyspark.sql.types import DoubleType, LongType, StringType, StructField, StructType

from chandy.state.aggregation.aggregates import plan
from chandy.state.format.schema import to_json
from chandy.state.reader.aggregate_results import AggregateResults, with_results
from chandy.state.reader.changes import BEFORE, CHANGE

ROWS = StructType().add("k", StringType()).add("v", DoubleType())
AGGREGATES = plan("totals", ROWS, ["k"], {"mean": ("v", "avg"), "n": ("*", "count")})
ACCUMULATORS = tuple(AGGREGATES.state.names)
RESULTS = [StructField(field.name, field.dataType) for field in AGGREGATES.output]


def accumulators(total: float, count: int) -> dict[str, Any]:
    """The accumulators of so many rows with this sum."""
    found = dict.fromkeys(ACCUMULATORS, count)
    (name,) = (field.name for field in AGGREGATES.state if isinstance(field.dataType, DoubleType))
    return found | {name: total}


def finish(row: dict[str, Any], before: dict[str, Any] | None, change: str = "update") -> dict[str, Any]:
    names = {name: f"value_{name}" for name in ACCUMULATORS}
    output = StructType(
        [ROWS["k"], *RESULTS, StructField(CHANGE, StringType()), StructField(BEFORE, StructType(RESULTS))]
    )
    given = ("k", *names.values(), CHANGE, BEFORE)
    convert = AggregateResults(AGGREGATES, given, tuple(names.values()), ACCUMULATORS, to_json(output))
    types = [pa.float64() if isinstance(one.dataType, DoubleType) else pa.int64() for one in AGGREGATES.state]
    inner = pa.struct(list(zip(ACCUMULATORS, types, strict=True)))
    columns = [
        pa.array(["a"]),
        *(pa.array([row.get(name)], type) for name, type in zip(ACCUMULATORS, types, strict=True)),
        pa.array([change]),
        pa.array([before], inner),
    ]
    # The names that Spark gives them do not count.
    batch = pa.RecordBatch.from_arrays(columns, names=[f"column_{at}" for at in range(len(columns))])
    ((found,),) = (out.to_pylist() for out in convert(iter([batch])))
    return dict(found)


def test_accumulators_become_results_at_both_checkpoints() -> None:
    assert isinstance(AGGREGATES.state[0].dataType, LongType | DoubleType)
    found = finish(accumulators(6.0, 4), accumulators(2.0, 1))
    assert found == {"k": "a", "mean": 1.5, "n": 4, CHANGE: "update", BEFORE: {"mean": 2.0, "n": 1}}


def test_what_was_not_there_before_has_no_results() -> None:
    assert finish(accumulators(6.0, 4), None)[BEFORE] is None


def test_a_deletion_has_nothing_to_finish() -> None:
    found = finish({}, accumulators(6.0, 4), "delete")
    assert (found["k"], found["mean"], found["n"], found[BEFORE]) == ("a", None, None, {"mean": 1.5, "n": 4})


def test_changes_have_results_in_place_of_all_that_the_state_has() -> None:
    names = [*ACCUMULATORS, "$time", "$end"]
    stored = [StructField(f"value_{name}", LongType()) for name in names]
    before = StructField(BEFORE, StructType([StructField(name, LongType()) for name in names]))
    change = StructField(CHANGE, StringType())
    value = {name: f"value_{name}" for name in names}
    found = with_results(StructType([ROWS["k"], *stored, change, before]), AGGREGATES, value)
    assert found == StructType([ROWS["k"], *RESULTS, change, StructField(BEFORE, StructType(RESULTS))])
