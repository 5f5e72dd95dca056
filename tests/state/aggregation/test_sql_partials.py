"""Partial results of SQL as accumulators: the same as those of Python, whatever the values."""

import math
from decimal import Decimal

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyspark.sql import types

from chandy.state.aggregation.accumulators import Overflow, arrow_type
from chandy.state.aggregation.aggregates import plan
from chandy.state.aggregation.sql_partials import ALL_ROWS, accumulators_of, functions_of, sql_partials

SCHEMA = (
    types.StructType()
    .add("k", types.StringType())
    .add("i", types.IntegerType())
    .add("l", types.LongType())
    .add("d", types.DoubleType())
    .add("tiny", types.DecimalType(5, 2))
    .add("small", types.DecimalType(28, 2))
    .add("wide", types.DecimalType(29, 2))
    .add("s", types.StringType())
    .add("x", types.BinaryType())
    .add("at", types.TimestampType())
    .add("many", types.ArrayType(types.LongType()))
)


def source(column, function):
    return plan("op", SCHEMA, ["k"], {"c": (column, function)}).sources[0]


def of_python(accumulator, column, sizes):
    bounds = np.cumsum([0, *sizes])
    return accumulator.merge(accumulator.from_rows(column), bounds)


def of_sql(accumulator, groups, functions):
    """The accumulators of what SQL gives for each group: a function of its values that are not null for each column."""
    found = [
        pa.array([function([v for v in group if v is not None]) for group in groups], dtype)
        for function, dtype in functions
    ]
    return accumulators_of(accumulator, found)


def total(values):
    return sum(values) if values else None


LONGS = st.none() | st.integers(-(2**63), 2**63 - 1) | st.sampled_from([-(2**63), 2**63 - 1, -1, 2**32 - 1])


@given(st.lists(st.lists(LONGS, min_size=1, max_size=5), min_size=1, max_size=4))
def test_the_halves_of_a_sum_of_longs_are_its_sum_or_overflow(groups):
    accumulator = source("l", "sum").accumulator
    column = pa.array([value for group in groups for value in group], pa.int64())
    halves = [
        (lambda values: total([value >> 32 for value in values]), pa.int64()),
        (lambda values: total([value & 0xFFFFFFFF for value in values]), pa.int64()),
    ]
    try:
        expected = of_python(accumulator, column, [len(group) for group in groups])
    except Overflow:
        with pytest.raises(Overflow):
            of_sql(accumulator, groups, halves)
    else:
        assert of_sql(accumulator, groups, halves) == expected


def test_an_intermediate_sum_may_be_too_large():
    groups = [[2**63 - 1, 2**63 - 1, -(2**63), -(2**63), 5]]
    accumulator = source("l", "sum").accumulator
    halves = [
        (lambda values: total([value >> 32 for value in values]), pa.int64()),
        (lambda values: total([value & 0xFFFFFFFF for value in values]), pa.int64()),
    ]
    assert of_sql(accumulator, groups, halves) == [pa.array([3])]


DOUBLES = st.none() | st.floats(-1e6, 1e6) | st.sampled_from([math.nan, math.inf, -math.inf, -0.0])


@given(st.lists(st.lists(DOUBLES, min_size=1, max_size=6), min_size=1, max_size=4))
def test_moments_are_those_of_python_to_rounding(groups):
    accumulator = source("d", "variance").accumulator
    column = pa.array([value for group in groups for value in group], pa.float64())
    with np.errstate(all="ignore"):
        functions = [
            (lambda values: float(len(values)), pa.float64()),
            (lambda values: float(np.mean(values)) if values else 0.0, pa.float64()),
            (lambda values: float(np.var(values) * len(values)) if values else 0.0, pa.float64()),
        ]
        found = of_sql(accumulator, groups, functions)
    expected = of_python(accumulator, column, [len(group) for group in groups])
    for mine, its in zip(found, expected, strict=True):
        assert mine.type == its.type
        for one, other in zip(mine.to_pylist(), its.to_pylist(), strict=True):
            assert (math.isnan(one) and math.isnan(other)) or math.isclose(
                one, other, rel_tol=1e-6, abs_tol=1e-3
            )


def test_a_mean_has_the_sum_and_the_number_of_its_values():
    accumulator = source("small", "mean").accumulator
    sums = pa.array([Decimal("3.50"), Decimal("0.00")], pa.decimal128(38, 2))
    found = accumulators_of(accumulator, [sums, pa.array([False, True]), pa.array([2, 0])])
    assert [part.to_pylist() for part in found] == [[Decimal("3.50"), None], [2, 0]]


def test_a_sum_of_few_digits_is_a_long_without_its_scale():
    accumulator = source("tiny", "sum").accumulator
    [found] = accumulators_of(accumulator, [pa.array([350, None, -1])])
    assert found.to_pylist() == [Decimal("3.50"), None, Decimal("-0.01")]


@pytest.mark.parametrize("function", ["count", "sum", "mean", "min", "first", "last", "stddev"])
@pytest.mark.parametrize("column", ["i", "l", "d", "tiny", "small"])
def test_accumulators_have_the_types_of_the_state(column, function):
    accumulator = source(column, function).accumulator
    functions = functions_of(accumulator, column, nullable=True)
    buffers = [field for one in functions for field in one.buffer]
    empty = [pa.array([], arrow_type(dtype)) for dtype in buffers]
    assert [part.type for part in accumulators_of(accumulator, empty)] == [
        arrow_type(field.dataType) for field in accumulator.fields
    ]


def test_what_spark_computes_once_is_named_once():
    """Spark counts a column that has no nulls as it counts all rows: the buffers would be fewer than expected."""
    columns = {"n": ("*", "count"), "i": ("i", "count"), "of": ("l", "count"), "sum": ("l", "sum")}
    rows = types.StructType([SCHEMA["k"], types.StructField("a", types.IntegerType(), False), SCHEMA["l"]])
    aggregates = plan("op", SCHEMA, ["k"], columns)
    names = [one.input and ("a" if one.input.column == "i" else "l") for one in aggregates.sources]
    found = sql_partials(aggregates, rows, ["k"], names)
    texts = [function.text for function in found.functions]
    assert texts == ["count(1)", "count(`l`)", "sum(shiftright(`l`, 32))", f"sum(`l` & {0xFFFFFFFF})"]
    assert found.functions[0] == ALL_ROWS
    assert len(set(found.schema.names)) == len(found.schema.names)


@pytest.mark.parametrize(
    ("column", "function"),
    [
        ("s", "min"),
        ("x", "max"),
        ("s", "first"),
        ("many", "last"),
        ("wide", "sum"),
        ("wide", "mean"),
        ("l", "approx_distinct"),
    ],
)
def test_what_sql_cannot_combine_or_would_sort_stays_in_python(column, function):
    aggregates = plan("op", SCHEMA, ["k"], {"n": ("*", "count"), "c": (column, function)})
    rows = types.StructType([SCHEMA["k"], types.StructField("a", SCHEMA[column].dataType)])
    found = sql_partials(aggregates, rows, ["k"], [None, "a"])
    assert isinstance(found, str)
    assert column in found
    assert SCHEMA[column].dataType.simpleString() in found


@pytest.mark.parametrize("key", ["many", "wide"])
def test_keys_that_spark_would_compare_in_another_way_stay_in_python(key):
    aggregates = plan("op", SCHEMA, [key], {"n": ("*", "count")})
    found = sql_partials(aggregates, SCHEMA, [key], [None])
    assert isinstance(found, str)
    assert repr(key) in found
