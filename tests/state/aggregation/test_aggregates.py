"""Aggregates over random rows, combined in random steps, are those of a plain model in Python."""

import datetime
import decimal
import math
import statistics

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    BooleanType,
    ByteType,
    DateType,
    DecimalType,
    DoubleType,
    FloatType,
    IntegerType,
    LongType,
    MapType,
    ShortType,
    StringType,
    StructField,
    StructType,
    TimestampType,
    VarcharType,
)

from chandy.state.aggregation.accumulators import arrow_type
from chandy.state.aggregation.aggregates import FUNCTIONS, plan
from chandy.state.errors import AggregateOverflowError, DefinitionError, StateSchemaError
from chandy.state.format.evolution import evolve
from chandy.state.format.packing import Packing
from chandy.state.format.schema import from_json, to_json
from chandy.state.format.values import StateName
from chandy.state.operators.hashing import xxhash64
from chandy.storage.checkpoints.manifest import StateRecord

from ...effort import examples

D = decimal.Decimal
UTC = datetime.UTC

VALUES = {
    ByteType(): st.integers(-128, 127),
    IntegerType(): st.integers(-(2**31), 2**31 - 1),
    LongType(): st.integers(-(2**58), 2**58),
    FloatType(): st.floats(width=32, min_value=-1e6, max_value=1e6) | st.just(math.nan),
    DoubleType(): st.floats(-1e6, 1e6) | st.sampled_from([math.nan, -0.0, 0.0]),
    DecimalType(7, 2): st.integers(-(10**7) + 1, 10**7 - 1).map(lambda n: D(n).scaleb(-2)),
    DecimalType(28, 5): st.integers(-(10**28) + 1, 10**28 - 1).map(
        lambda n: D(n).scaleb(-5, decimal.Context(40))
    ),
    StringType(): st.text(max_size=3),
    BinaryType(): st.binary(max_size=3),
    BooleanType(): st.booleans(),
    DateType(): st.dates(datetime.date(1900, 1, 1), datetime.date(2100, 1, 1)),
    TimestampType(): st.datetimes(datetime.datetime(1900, 1, 1), datetime.datetime(2100, 1, 1)).map(
        lambda moment: moment.replace(tzinfo=UTC)
    ),
    ArrayType(IntegerType()): st.lists(st.integers(0, 3), max_size=2),
}
NUMBERS = (ByteType, IntegerType, LongType, FloatType, DoubleType, DecimalType)
NESTED = (ArrayType,)


def functions_for(dtype):
    names = {"count", "first", "last"}
    if not isinstance(dtype, NESTED):
        names |= {"min", "max"}
    if isinstance(dtype, NUMBERS):
        names |= {"sum", "mean", "variance", "stddev", "var_pop", "stddev_pop"}
    return sorted(names)


def model(function, values, dtype):
    """What Spark SQL makes of these values."""
    known = [value for value in values if value is not None]
    match function:
        case "count":
            return len(known)
        case "first":
            return values[0]
        case "last":
            return values[-1]
    if not known:
        return None
    nan = any(value != value for value in known)
    numbers = [value for value in known if value == value]
    match function:
        case "min":
            return min(numbers) if numbers else math.nan
        case "max":
            return math.nan if nan else max(known)
        case "sum":
            return exact_sum(known)
        case "mean" if isinstance(dtype, DecimalType):
            with decimal.localcontext(prec=80, rounding=decimal.ROUND_HALF_UP):
                return (exact_sum(known) / len(known)).quantize(D(1).scaleb(-min(38, dtype.scale + 4)))
        case "mean":
            return math.nan if nan else exact_sum(known) / len(known)
    if nan:
        return None if function in ("variance", "stddev") and len(known) == 1 else math.nan
    floats = [float(value) for value in known]
    match function:
        case "var_pop":
            return statistics.pvariance(floats)
        case "stddev_pop":
            return statistics.pstdev(floats)
        case "variance":
            return statistics.variance(floats) if len(floats) > 1 else None
        case "stddev":
            return statistics.stdev(floats) if len(floats) > 1 else None


def exact_sum(values):
    if isinstance(values[0], float):
        return math.fsum(values)
    with decimal.localcontext(prec=80):
        return sum(values[1:], values[0])


def same(found, expected, values):
    if isinstance(found, float) and isinstance(expected, float):
        scale = max(
            (abs(float(value)) for value in values if value is not None and value == value), default=0.0
        )
        return (math.isnan(found) and math.isnan(expected)) or math.isclose(
            found, expected, rel_tol=1e-9, abs_tol=1e-7 * max(scale, scale * scale, 1e-100)
        )
    return found == expected


class Steps:
    """Aggregates of one column by group, taken in step by step."""

    def __init__(self, dtype, functions):
        schema = StructType().add("k", LongType()).add("v", dtype)
        self.dtype = dtype
        self.aggregates = plan(
            "op", schema, ["k"], {f: ("v", f) for f in functions} | {"rows": ("*", "count")}
        )
        self.held = None

    def from_rows(self, values):
        column = pa.array(values, arrow_type(self.dtype))
        inputs = [self.column(source, column) for source in self.aggregates.sources]
        return self.aggregates.from_rows(inputs, len(values))

    @staticmethod
    def column(source, column):
        return None if source.input is None else column

    def add(self, groups, cuts):
        """Take in the values of each group; where ``cuts`` says so they are combined before."""
        flat = [value for values in groups for value in values]
        bounds = np.cumsum([0, *map(len, groups)])
        accumulators = self.from_rows(flat)
        finer = np.array(sorted({*bounds.tolist(), *(cut for cut in cuts if cut < len(flat))}))
        accumulators = self.aggregates.merge(accumulators, finer)
        accumulators = self.aggregates.merge(accumulators, np.searchsorted(finer, bounds))
        self.held = (
            accumulators if self.held is None else self.aggregates.merge_pairs(self.held, accumulators)
        )

    def results(self):
        columns = [column.to_pylist() for column in self.aggregates.finish(self.held)]
        return [
            dict(zip([r.name for r in self.aggregates.results], row, strict=True))
            for row in zip(*columns, strict=True)
        ]


@pytest.mark.parametrize("dtype", VALUES, ids=lambda dtype: dtype.simpleString())
@settings(max_examples=examples(8))
@given(data=st.data())
def test_all_functions_agree_with_the_model_in_any_number_of_steps(dtype, data):
    functions = functions_for(dtype)
    steps, size = Steps(dtype, functions), data.draw(st.integers(1, 4))
    value = st.none() | VALUES[dtype]
    seen = [[] for _ in range(size)]
    for _ in range(data.draw(st.integers(1, 3))):
        groups = data.draw(st.lists(st.lists(value, min_size=1, max_size=5), min_size=size, max_size=size))
        steps.add(groups, data.draw(st.lists(st.integers(1, 20), max_size=4)))
        for all_values, more in zip(seen, groups, strict=True):
            all_values.extend(more)
    for values, found in zip(seen, steps.results(), strict=True):
        assert found["rows"] == len(values)
        for function in functions:
            expected = model(function, values, dtype)
            assert same(found[function], expected, values), (function, values, found[function], expected)


NOT_FINITE = st.sampled_from([math.nan, math.inf, -math.inf])


@pytest.mark.parametrize("dtype", VALUES, ids=lambda dtype: dtype.simpleString())
@settings(max_examples=examples(8))
@given(data=st.data())
def test_a_row_gives_the_same_whether_it_is_combined_alone_or_not_at_all(dtype, data):
    functions = functions_for(dtype)
    steps = Steps(dtype, functions)
    value = st.none() | VALUES[dtype]
    if isinstance(dtype, FloatType | DoubleType):
        value |= NOT_FINITE
    values = data.draw(st.lists(value, min_size=1, max_size=6))
    single = steps.from_rows(values)
    alone = steps.aggregates.merge(single, np.arange(len(values) + 1))
    for result, found, expected in zip(
        steps.aggregates.results, steps.aggregates.finish(single), steps.aggregates.finish(alone), strict=True
    ):
        # As text, NaN is equal to itself and the zeros differ.
        assert repr(found.to_pylist()) == repr(expected.to_pylist()), (result.name, values)


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_a_value_that_is_not_finite_has_no_variance_alone_or_among_others(value):
    steps = Steps(DoubleType(), ["stddev", "stddev_pop", "var_pop", "variance"])
    steps.held = steps.from_rows([value])
    (alone,) = steps.results()
    assert alone["variance"] is alone["stddev"] is None
    assert math.isnan(alone["var_pop"])
    assert math.isnan(alone["stddev_pop"])
    steps.add([[1.0]], [])
    (among_others,) = steps.results()
    assert all(math.isnan(found) for name, found in among_others.items() if name != "rows")


def test_every_function_has_sparks_result_type():
    schema = StructType().add("k", LongType()).add("i", IntegerType()).add("d", DecimalType(12, 3))
    schema = schema.add("f", FloatType()).add("s", StringType()).add("big", DecimalType(38, 10))
    given = {f"{c}_{f}": (c, f) for c in "idf" for f in FUNCTIONS} | {
        "s_max": ("s", "max"),
        "s_distinct": ("s", "approx_count_distinct"),
        "big_sum": ("big", "sum"),
        "big_mean": ("big", "avg"),
    }
    types = {field.name: field.dataType.simpleString() for field in plan("op", schema, ["k"], given).output}
    expected = {
        "i_sum": "bigint",
        "i_mean": "double",
        "i_min": "int",
        "i_count": "bigint",
        "i_variance": "double",
        "i_approx_distinct": "bigint",
        "d_sum": "decimal(22,3)",
        "d_mean": "decimal(16,7)",
        "d_max": "decimal(12,3)",
        "d_stddev": "double",
        "f_sum": "double",
        "f_first": "float",
        "s_max": "string",
        "s_distinct": "bigint",
        "big_sum": "decimal(38,10)",
        "big_mean": "decimal(38,14)",
    }
    assert {name: types[name] for name in expected} == expected


@pytest.mark.parametrize(
    ("dtype", "function", "values", "says"),
    [
        (LongType(), "sum", [2**63 - 1, 1], r"sum\(v\) of operator 'op' no longer fits into bigint"),
        (LongType(), "sum", [-(2**63), -1], "bigint"),
        (DecimalType(38, 0), "sum", [D(10**38 - 1), D(1)], r"decimal\(38,0\)"),
        (DecimalType(38, 0), "sum", [D(10**38 - 1)] * 4, r"decimal\(38,0\)"),
        (DecimalType(38, 0), "mean", [D(10**35)], r"mean\(v\) .* decimal\(38,4\)"),
    ],
)
def test_what_does_not_fit_its_type_is_an_error_that_says_so(dtype, function, values, says):
    steps = Steps(dtype, [function])
    with pytest.raises(AggregateOverflowError, match=says):
        steps.add([values], [])
        steps.results()


def test_a_sum_may_go_beyond_its_type_on_the_way():
    steps = Steps(LongType(), ["sum"])
    steps.add([[2**63 - 1, 2**63 - 1, -(2**63) + 1, -(2**63)]], [])
    assert steps.results() == [{"sum": -1, "rows": 4}]


def test_the_variance_of_close_values_far_from_zero_loses_no_digits_that_count():
    steps = Steps(DoubleType(), ["variance"])
    values = [1e9 + x for x in (4.0, 7.0, 13.0, 16.0)] * 1000
    for start in range(0, len(values), 700):
        steps.add([values[start : start + 700]], [3, 50, 51])
    assert steps.results()[0]["variance"] == pytest.approx(22.5 * 4000 / 3999, rel=1e-9)


def test_functions_that_need_the_same_share_it():
    schema = StructType().add("v", LongType())
    shared = plan("op", schema, [], {"a": ("v", "variance"), "b": ("v", "stddev"), "c": ("v", "var_pop")})
    assert shared.state.names == ["moments(v).count", "moments(v).mean", "moments(v).m2"]


def test_what_has_not_been_seen_yet_does_not_count():
    """A state that was written before an aggregate was added has nulls in its fields."""
    steps = Steps(LongType(), ["count", "first", "last", "mean", "min", "sum", "variance"])
    steps.add([[5, 7]], [])
    alone = steps.results()
    steps.held = [pa.nulls(1, part.type) for part in steps.held[:-1]] + [pa.array([2])]
    steps.add([[5, 7]], [])
    assert steps.results() == [alone[0] | {"rows": 4}]


SCHEMA = StructType().add("k", LongType()).add("v", LongType()).add("s", StringType())
SCHEMA = SCHEMA.add("m", MapType(StringType(), LongType()))
SCHEMA = SCHEMA.add("lower", StringType("UTF8_LCASE")).add(
    "trimmed", ArrayType(StringType("UTF8_BINARY_RTRIM"))
)


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({}, "at least one aggregate"),
        (
            {"x": ("v", "median")},
            "expected one of the functions approx_count_distinct",
        ),
        ({"x": ("w", "sum")}, "one of the columns k, v, s, m, lower, trimmed, found 'w'"),
        ({"x": ("s", "sum")}, "a type that sum accepts, found 's' of type string"),
        ({"x": ("m", "approx_distinct")}, "map<string,bigint>"),
        (
            {"x": ("lower", "approx_distinct")},
            "string collate UTF8_LCASE; .*lower.column. COLLATE UTF8_BINARY",
        ),
        ({"x": ("trimmed", "approx_distinct")}, "array<string collate UTF8_BINARY_RTRIM>"),
        ({"x": ("m", "max")}, "map<string,bigint>"),
        ({"x": ("*", "sum")}, "only 'count' takes '\\*'"),
        ({"x": "sum"}, "a pair of column and function"),
        ({"x": ("v", "sum", 1)}, "a pair of column and function"),
        ({"k": ("v", "sum")}, "other than those of the key columns"),
    ],
)
def test_what_cannot_be_computed_is_refused(given, says):
    with pytest.raises(DefinitionError, match=says):
        plan("op", SCHEMA, ["k"], given)


COUNTED = {
    "tinyint": pa.int8(),
    "smallint": pa.int16(),
    "int": pa.int32(),
    "bigint": pa.int64(),
    "float": pa.float32(),
    "double": pa.float64(),
    "decimal(5,0)": pa.decimal128(5, 0),
    "decimal(18,0)": pa.decimal128(18, 0),
    "decimal(9,2)": pa.decimal128(9, 2),
    "string": pa.string(),
    "varchar(5)": pa.string(),
    "binary": pa.binary(),
    "date": pa.date32(),
}
TYPES_COUNTED = {
    "tinyint": ByteType(),
    "smallint": ShortType(),
    "int": IntegerType(),
    "bigint": LongType(),
    "float": FloatType(),
    "double": DoubleType(),
    "string": StringType(),
    "varchar(5)": VarcharType(5),
    "binary": BinaryType(),
    "date": DateType(),
}


def counted(name):
    """The type of a counted column, the state of its sketch, and the hashes of the same numbers in it."""
    dtype = TYPES_COUNTED.get(name) or DecimalType(*map(int, name[8:-1].split(",")))
    numbers = pa.array(range(50), pa.int64())
    arrow = COUNTED[name]
    steps = [pa.string(), arrow] if arrow == pa.binary() else [pa.int32(), arrow]
    for step in [pa.decimal128(38, 2), arrow] if pa.types.is_decimal(arrow) else steps:
        numbers = numbers.cast(step)
    state = plan("op", StructType().add("c", dtype), [], {"d": ("c", "approx_distinct")}).state
    return StateRecord((to_json(state),)), xxhash64([numbers]).tolist()


@pytest.mark.parametrize("was", COUNTED)
def test_distinct_values_go_on_being_counted_only_where_the_same_value_has_the_same_hash(was):
    before, hashes = counted(was)
    for now in COUNTED:
        after, again = counted(now)
        if hashed_as(before) == hashed_as(after):
            evolve(before, after, "op", "aggregates")
            assert hashes == again
        else:
            with pytest.raises(
                StateSchemaError, match=r"is made of hashes of .* cannot be made of hashes of"
            ):
                evolve(before, after, "op", "aggregates")


@pytest.mark.parametrize(
    ("was", "now"), [("tinyint", "int"), ("varchar(5)", "string"), ("decimal(5,0)", "decimal(18,0)")]
)
def test_a_wider_column_with_the_same_hashes_is_counted_on(was, now):
    evolve(counted(was)[0], counted(now)[0], "op", "aggregates")


def hashed_as(record):
    return from_json(record.versions[0])[0].metadata["chandy.made_of"]


def test_a_checkpoint_that_does_not_say_what_was_counted_is_read():
    now, _ = counted("int")
    state = from_json(now.versions[0])
    older = StructType([StructField(field.name, field.dataType) for field in state.fields])
    both = evolve(StateRecord((to_json(older),)), now, "op", "aggregates")
    assert both.versions == (to_json(older), to_json(state))
    name, sketch = StateName("op", "aggregates"), pa.array([b"x" * 70], pa.binary())
    packed = Packing([older], name).pack(pa.StructArray.from_arrays([sketch], names=older.names))
    assert Packing([older, state], name).unpack(packed).flatten()[0].to_pylist() == sketch.to_pylist()
