"""Rows are what PySpark's transformWithState gives and takes."""

import datetime
import decimal
import pickle
from itertools import pairwise

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from pyspark.errors import PySparkAttributeError
from pyspark.sql import Row
from pyspark.sql.types import (
    ArrayType,
    BooleanType,
    ByteType,
    CalendarIntervalType,
    DateType,
    DecimalType,
    DoubleType,
    IntegerType,
    LongType,
    MapType,
    StringType,
    StructType,
    TimestampType,
    YearMonthIntervalType,
)

from chandy.state.errors import DefinitionError, OutputTypeError
from chandy.state.format.rows import SLICE, RowReader, RowWriter, check_columns, to_pylist

OUTPUT = StructType().add("name", StringType()).add("flights", IntegerType()).add("mean", DoubleType())


def written(schema, rows):
    return RowWriter(schema, "delays").batch(rows).to_pylist()


# --- in


def test_rows_look_like_those_that_pyspark_makes():
    moment = datetime.datetime(2020, 7, 2, 3, 4, 5)
    table = pa.table(
        {
            "k": [1],
            "st": [{"p": 1, "q": "z"}],
            "m": pa.array([[("k", 1)]], pa.map_(pa.string(), pa.int64())),
            "ts": pa.array([moment], pa.timestamp("us", "America/New_York")),
        }
    )
    (row,) = RowReader(table.column_names).rows(table)
    # As PySpark's worker makes them.
    expected = Row(*table.column_names)(*(table.column(at)[0].as_py() for at in range(table.num_columns)))
    assert repr(row) == repr(expected)
    assert row == expected
    assert row.asDict() == expected.asDict()


def test_a_row_gives_its_columns_by_name_attribute_and_position_and_survives_pickling():
    (row,) = RowReader(["delay", "count", "b c"]).rows(pa.table({"delay": [5], "count": [6], "b c": [7]}))
    assert isinstance(row, Row)
    assert (row.delay, row["delay"], row[0], getattr(row, "b c")) == (5, 5, 5, 7)
    assert row["count"] == 6
    assert row.count(6) == 1, "as in PySpark, tuple's own names come first"
    assert "delay" in row
    again = pickle.loads(pickle.dumps(row))
    assert (type(again), repr(again)) == (Row, repr(row))
    with pytest.raises(PySparkAttributeError):
        row.other  # noqa: B018


def test_timestamps_with_a_zone_are_those_of_arrow_itself():
    hours = [datetime.datetime(2020, 11, 1, hour, 30, tzinfo=datetime.UTC) for hour in range(12)]
    column = pa.chunked_array([[*hours, None], hours], pa.timestamp("us", "America/New_York"))
    assert [repr(value) for value in to_pylist(column)] == [repr(value) for value in column.to_pylist()]


def test_groups_are_read_in_order_and_one_larger_than_a_slice_is_made_as_it_is_read():
    bounds = [0, 2, 3, 3 + 2 * SLICE + 1, 3 + 2 * SLICE + 5]
    table = pa.table({"n": list(range(bounds[-1]))})
    groups = [[row.n for row in rows] for rows in RowReader(["n"]).groups(table, bounds)]
    assert groups == [list(range(start, stop)) for start, stop in pairwise(bounds)]


def test_no_more_than_a_slice_of_a_large_group_is_made_before_it_is_read():
    made = []

    class Counts(RowReader):
        def rows(self, table):
            made.append(table.num_rows)
            return super().rows(table)

    (rows,) = Counts(["n"]).groups(pa.table({"n": list(range(3 * SLICE))}), [0, 3 * SLICE])
    next(rows)
    assert made == [SLICE]


def test_a_group_may_be_left_before_its_end():
    table = pa.table({"n": list(range(3 * SLICE))})
    groups = RowReader(["n"]).groups(table, [0, 2 * SLICE, 2 * SLICE + 5, 3 * SLICE])
    assert [next(rows).n for rows in groups] == [0, 2 * SLICE, 2 * SLICE + 5]


@pytest.mark.parametrize("dtype", [CalendarIntervalType(), YearMonthIntervalType()])
def test_a_column_that_python_cannot_hold_is_refused(dtype):
    with pytest.raises(DefinitionError, match="'bad'"):
        check_columns(StructType().add("bad", ArrayType(dtype)), "the input")


@pytest.mark.parametrize("wrap", [lambda t: t, ArrayType, lambda t: StructType().add("x", t)])
def test_a_struct_with_two_fields_of_one_name_is_refused_because_spark_gives_it_to_no_python(wrap):
    check_columns(StructType().add("c", wrap(StructType().add("a", "long").add("A", "long"))), "the input")
    with pytest.raises(
        DefinitionError, match=r"column 'c' of the input .* two fields named 'a' in one struct"
    ):
        check_columns(
            StructType().add("c", wrap(StructType().add("a", "long").add("a", "long"))), "the input"
        )


# --- out


@pytest.mark.parametrize(
    "row",
    [
        ("AA", 1, 2.0),
        Row("AA", 1, 2.0),
        Row(name="AA", flights=1, mean=2.0),
        Row(mean=2.0, flights=1, name="AA"),
        ("AA", np.int64(1), 2),
    ],
)
def test_a_row_is_taken_by_name_and_a_tuple_by_position_with_exactly_the_output_types(row):
    batch = RowWriter(OUTPUT, "delays").batch([row])
    assert batch.schema.types == [pa.string(), pa.int32(), pa.float64()]
    assert batch.to_pylist() == [{"name": "AA", "flights": 1, "mean": 2.0}]


@pytest.mark.parametrize(
    ("row", "found"),
    [
        (Row(name="AA", flights=1), "a Row without 'mean'"),
        (Row(name="AA"), "a Row without 'flights', 'mean'"),
        (Row(name="AA", flights=1, mean=2.0, more=3), "a Row with 'more'"),
        (Row(name="AA", flight=1, mean=2.0), "a Row without 'flights' and with 'flight'"),
        (Row("name", "mean", "flights")("AA", 2.0), "a Row without 'flights'"),
    ],
)
def test_a_row_without_exactly_the_columns_of_the_output_is_refused_by_their_names(row, found):
    with pytest.raises(OutputTypeError) as refused:
        written(OUTPUT, [Row(name="BB", flights=2, mean=1.0), row])
    assert (refused.value.part, refused.value.found) == ("a row", f"{found}: {row!r} (Row)")
    assert refused.value.expected == "a value or None for each of name, flights, mean"


@pytest.mark.parametrize(
    "wrap", [lambda x: x, lambda x: [x], lambda x: {"key": x}], ids=["struct", "array", "map"]
)
@pytest.mark.parametrize("make", [dict, Row], ids=["dict", "Row"])
@pytest.mark.parametrize(
    ("fields", "wrong"),
    [
        ({"p": 1}, "without 'q'"),
        ({"p": 1, "q": "z", "r": 2}, "with 'r'"),
        ({"p": 1, "Q": "z"}, "without 'q' and with 'Q'"),
    ],
)
def test_a_struct_inside_a_row_has_exactly_its_fields_as_well(wrap, make, fields, wrong):
    struct = StructType().add("p", LongType()).add("q", StringType())
    by_wrapper = {dict: MapType(StringType(), struct), list: ArrayType(struct)}
    value = wrap(make(**fields))
    dtype = struct if value == make(**fields) else by_wrapper[type(value)]
    with pytest.raises(OutputTypeError) as refused:
        written(StructType().add("x", dtype), [(None,), (value,)])
    assert (refused.value.part, refused.value.expected) == (
        "output column 'x'",
        "a value or None for each of p, q",
    )
    assert f"a struct {wrong} in " in refused.value.found


@pytest.mark.parametrize(
    ("row", "column", "expected", "found"),
    [
        (("AA", 1.5, 2.0), "flights", "int", "1.5 (float)"),
        (("AA", True, 2.0), "flights", "int", "True (bool)"),
        (("AA", 1 << 40, 2.0), "flights", "int", "1099511627776 (int)"),
        (("AA", "1", 2.0), "flights", "int", "'1' (str)"),
        ((b"AA", 1, 2.0), "name", "string", "b'AA' (bytes)"),
        (("AA", 1, "2"), "mean", "double", "'2' (str)"),
        (("AA", 1, True), "mean", "double", "True (bool)"),
        (("AA", 1), "", "3 columns (name, flights, mean)", "2: ('AA', 1) (tuple)"),
        ({"name": "AA"}, "", "a Row or a tuple", "{'name': 'AA'} (dict)"),
        (None, "", "a Row or a tuple", "None (NoneType)"),
    ],
)
@pytest.mark.parametrize("before", [[], [("BB", 2, 3.0)]])
def test_a_row_that_does_not_fit_is_refused_by_column(row, column, expected, found, before):
    with pytest.raises(OutputTypeError) as refused:
        RowWriter(OUTPUT, "delays").batch([*before, row])
    part = f"output column {column!r}" if column else "a row"
    error = refused.value
    assert (error.operator, error.part, error.expected, error.found) == ("delays", part, expected, found)


def test_the_first_value_that_does_not_fit_is_told_of_wherever_it_stands():
    rows = [(1,), (np.int64(2),), (None,), (3,), ("x",), (1.5,), (4,)]
    with pytest.raises(OutputTypeError, match="'x'"):
        RowWriter(StructType().add("n", LongType()), "delays").batch(rows)


def test_a_type_that_passed_once_does_not_let_a_value_out_of_range_pass():
    writer = RowWriter(StructType().add("n", ByteType()), "delays")
    writer.batch([(1,)])
    with pytest.raises(OutputTypeError, match="300"):
        writer.batch([(300,)])


@pytest.mark.parametrize(
    ("dtype", "value", "back"),
    [
        (DecimalType(10, 2), decimal.Decimal("1.5"), decimal.Decimal("1.50")),
        (BooleanType(), np.bool_(True), True),
        (DateType(), datetime.date(2020, 1, 2), datetime.date(2020, 1, 2)),
        (ArrayType(LongType()), [1, None], [1, None]),
        (ArrayType(LongType()), np.array([1, 2]), [1, 2]),
        (ArrayType(LongType()), pd.Series([1, 2]), [1, 2]),
        (MapType(StringType(), LongType()), {"a": 1}, [("a", 1)]),
        (MapType(StringType(), LongType()), [("a", 1)], [("a", 1)]),
        (StructType().add("p", LongType()).add("q", StringType()), Row(q="z", p=1), {"p": 1, "q": "z"}),
        (StructType().add("p", LongType()), {"p": 1}, {"p": 1}),
        (ArrayType(StructType().add("p", LongType())), [Row(p=1), (2,)], [{"p": 1}, {"p": 2}]),
    ],
)
def test_values_of_every_kind_are_taken(dtype, value, back):
    assert written(StructType().add("x", dtype), [(value,), (None,)]) == [{"x": back}, {"x": None}]


@pytest.mark.parametrize(
    ("dtype", "value"),
    [
        (ArrayType(LongType()), [1.5]),
        (ArrayType(StringType()), "ab"),
        (ArrayType(LongType(), containsNull=False), [None]),
        (MapType(StringType(), LongType()), {"a": "b"}),
        (StructType().add("p", LongType()), (1, 2)),
        (DecimalType(5, 2), decimal.Decimal("1.555")),
        (DecimalType(5, 2), decimal.Decimal("NaN")),
        (TimestampType(), 5),
        (StringType(), "\ud800"),
    ],
)
def test_a_misfit_inside_a_type_is_refused(dtype, value):
    with pytest.raises(OutputTypeError) as refused:
        written(StructType().add("x", dtype), [(None,), (value,)])
    assert refused.value.part == "output column 'x'"


def test_null_in_a_column_that_is_never_null_is_refused():
    with pytest.raises(OutputTypeError, match="not null"):
        written(StructType().add("x", LongType(), nullable=False), [(1,), (None,)])
    with pytest.raises(OutputTypeError, match="not null"):
        written(StructType().add("x", ArrayType(LongType()), nullable=False), [([1],), (None,)])


def test_timestamps_leave_as_instants():
    moment = datetime.datetime(2020, 7, 2, 12, tzinfo=datetime.timezone(datetime.timedelta(hours=2)))
    schema = StructType().add("ts", TimestampType())
    batch = RowWriter(schema, "delays").batch([(moment,), (datetime.datetime(2020, 7, 2, 10),)])
    assert batch.schema.types == [pa.timestamp("us", "UTC")]
    assert len(set(batch.column(0).to_pylist())) == 1
