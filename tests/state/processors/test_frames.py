"""DataFrames have the types that PySpark gives them, are nobody else's, and come back as the rows that they are."""

import datetime
import decimal

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyspark.sql import Row, types

from chandy.state.errors import OutputTypeError
from chandy.state.format.rows import SLICE
from chandy.state.format.schema import arrow_schema
from chandy.state.processors import frames
from chandy.state.processors.frames import FrameReader, FrameWriter, slicer
from chandy.state.processors.style import UNLIMITED, FrameLimits

ZONE = "America/New_York"
KINDS = (
    types.StructType()
    .add("b", types.BooleanType())
    .add("y", types.ByteType())
    .add("i", types.IntegerType())
    .add("l", types.LongType())
    .add("f", types.FloatType())
    .add("d", types.DoubleType())
    .add("s", types.StringType())
    .add("x", types.BinaryType())
    .add("e", types.DecimalType(9, 2))
    .add("u", types.DateType())
    .add("t", types.TimestampType())
    .add("z", types.TimestampNTZType())
    .add("a", types.ArrayType(types.IntegerType()))
    .add("m", types.MapType(types.StringType(), types.LongType()))
    .add("o", types.StructType().add("p", types.LongType()).add("q", types.StringType()))
)
NOON = datetime.datetime(2024, 1, 1, 12)
FULL = (
    True, 1, 2, 2**60 + 1, 1.5, 2.5, "ß", b"\x00", decimal.Decimal("1.25"), NOON.date(),
    NOON.replace(tzinfo=datetime.UTC), NOON, [1, None], {"k": 5}, {"p": 1, "q": None},
)  # fmt: skip
EMPTY = (None,) * len(FULL)
COUNTS = types.StructType().add("k", types.StringType()).add("n", types.LongType())


def table_of(rows, schema=KINDS):
    arrow = arrow_schema(schema, ZONE)
    columns = list(zip(*rows, strict=True)) or [[] for _ in arrow]
    arrays = [
        pa.array(
            [
                list(value.items()) if isinstance(value, dict) and pa.types.is_map(field.type) else value
                for value in values
            ],
            field.type,
        )
        for values, field in zip(columns, arrow, strict=True)
    ]
    return pa.table(arrays, arrow)


USUAL = FrameLimits()


def read(rows, bounds, schema=KINDS, limits=USUAL):
    return [list(parts) for parts in FrameReader(schema, ZONE, limits).groups(table_of(rows, schema), bounds)]


def test_the_types_of_columns_are_those_that_pyspark_gives():
    ((full,), (nulls,), (mixed,)) = read([FULL, FULL, EMPTY, FULL, EMPTY], [0, 2, 3, 5])
    plain = ["object", "object", "object", "object", "datetime64[ns]", "datetime64[ns]", *["object"] * 3]
    assert full.dtypes.astype(str).tolist() == ["bool", *["int64"] * 3, *["float64"] * 2, *plain]
    for frame in (nulls, mixed):
        assert frame.dtypes.astype(str).tolist() == ["object", *["float64"] * 5, *plain]
    assert full["l"].tolist() == [2**60 + 1] * 2, "a null of another key takes no digits"
    (first,) = full.head(1).itertuples(index=False)
    assert first.t == pd.Timestamp("2024-01-01 07:00")
    assert first.z == pd.Timestamp("2024-01-01 12:00")
    assert (type(first.a), first.a.tolist()) == (np.ndarray, [1, None]) or np.isnan(first.a[1])
    assert (first.m, first.o) == ({"k": 5}, {"p": 1, "q": None})
    assert (first.u, first.e, first.x, first.s) == (NOON.date(), decimal.Decimal("1.25"), b"\x00", "ß")
    assert [nulls[name][0] for name in "bsxeuamo"] == [None] * 8
    assert nulls[["t", "z"]].isna().all(axis=None)
    assert [frame.index.tolist() for frame in (full, nulls, mixed)] == [[0, 1], [0], [0, 1]]


def test_what_a_processor_does_to_its_dataframe_is_seen_by_nobody_else():
    reader = FrameReader(COUNTS, ZONE, FrameLimits())
    table = table_of([("a", 1), ("b", None), ("b", 3), ("c", 4)], COUNTS)
    seen = []
    for (frame,) in map(list, reader.groups(table, [0, 1, 3, 4])):
        seen.append(frame["n"].tolist())
        frame["n"] += 100
        frame.iloc[:, 0] = "changed"
        frame.loc[5] = ["more", 0]
        frame["new"] = 1
    assert str(seen) == "[[1], [nan, 3.0], [4]]"
    assert table.column("k").to_pylist() == ["a", "b", "b", "c"]


def test_a_group_with_many_rows_comes_in_pieces_and_many_groups_as_one_dataframe_each():
    sizes = [3, SLICE + 5, 1, 2 * SLICE, 4]
    rows = [("k", at) for at in range(sum(sizes))]
    bounds = np.cumsum([0, *sizes]).tolist()
    found = read(rows, bounds, COUNTS)
    assert [[len(frame) for frame in parts] for parts in found] == [[3], [SLICE, 5], [1], [SLICE] * 2, [4]]
    assert pd.concat([frame for parts in found for frame in parts])["n"].tolist() == list(range(sum(sizes)))
    assert [frame.index[0] for parts in found for frame in parts] == [0] * 7


@pytest.mark.parametrize(
    ("limits", "sizes"),
    [
        (FrameLimits(rows=2), [[2, 1], [1], [2, 2, 1]]),
        (FrameLimits(rows=1), [[1] * 3, [1], [1] * 5]),
        (FrameLimits(rows=UNLIMITED), [[3], [1], [5]]),
        # A row takes 8 bytes for its number, and about 5 for its text.
        (FrameLimits(bytes=2), [[1] * 3, [1], [1] * 5]),
        (FrameLimits(bytes=20), [[2, 1], [1], [2, 2, 1]]),
        (FrameLimits(bytes=100_000), [[3], [1], [5]]),
        (FrameLimits(rows=2, bytes=2), [[1] * 3, [1], [1] * 5]),
        (FrameLimits(rows=2, bytes=40), [[2, 1], [1], [2, 2, 1]]),
    ],
)
def test_a_dataframe_has_no_more_rows_and_bytes_than_the_session_allows(limits, sizes):
    rows = [("k", at) for at in range(9)]
    found = read(rows, [0, 3, 4, 9], COUNTS, limits)
    assert [[len(frame) for frame in parts] for parts in found] == sizes
    assert [n for parts in found for frame in parts for n in frame["n"]] == list(range(9))
    assert all(frame.index[0] == 0 for parts in found for frame in parts)


def test_a_limit_above_a_slice_is_kept_too():
    rows = [("k", at) for at in range(2 * SLICE + 7)]
    ((large, rest),) = read(rows, [0, len(rows)], COUNTS, FrameLimits(rows=SLICE + 5))
    assert (len(large), len(rest)) == (SLICE + 5, SLICE + 2)


def test_what_a_processor_leaves_of_its_dataframes_is_not_given_to_the_next_key():
    table = table_of([("k", at) for at in range(6)], COUNTS)
    groups = FrameReader(COUNTS, ZONE, FrameLimits(rows=1)).groups(table, [0, 3, 4, 6])
    assert [next(parts)["n"].tolist() for parts in groups] == [[0], [3], [4]]


@pytest.mark.parametrize("limits", [USUAL, FrameLimits(rows=1)])
def test_a_key_whose_dataframes_are_not_taken_at_all_leaves_them_to_nobody(limits):
    table = table_of([("k", at) for at in range(6)], COUNTS)
    groups = FrameReader(COUNTS, ZONE, limits).groups(table, [0, 3, 4, 6])
    taken = [[frame["n"].tolist() for frame in parts] if key == 1 else [] for key, parts in enumerate(groups)]
    assert taken == [[], [[3]], []]


@pytest.mark.parametrize(
    ("conf", "limits"),
    [
        ({"maxRecordsPerBatch": "10000", "maxBytesPerBatch": "67108864b"}, FrameLimits(10_000, 64 << 20)),
        ({"maxRecordsPerBatch": "2", "maxBytesPerBatch": "64m"}, FrameLimits(2, 64 << 20)),
        ({"maxRecordsPerBatch": "-1", "maxBytesPerBatch": "2147483647"}, FrameLimits(UNLIMITED, UNLIMITED)),
        ({"maxRecordsPerBatch": "0", "maxBytesPerBatch": "2"}, FrameLimits(UNLIMITED, 2)),
    ],
)
def test_the_limits_are_those_of_sparks_settings(conf, limits):
    assert (
        FrameLimits.read({f"spark.sql.execution.arrow.{key}": value for key, value in conf.items()}) == limits
    )


def test_a_pandas_without_the_parts_of_a_dataframe_cuts_them_the_same(monkeypatch):
    frame = pd.DataFrame({"a": [1, 2, 3], "b": ["x", None, "z"], "c": pd.to_datetime(["2024-01-01"] * 3)})
    quick = slicer(frame)(1, 3)
    monkeypatch.setattr(frames, "_HAS_PARTS", False)
    pd.testing.assert_frame_equal(quick, slicer(frame)(1, 3), check_index_type=True)


# --- out ----------------------------------------------------------------------------------------------------


def written(dataframes, schema=KINDS, **settings):
    writer = FrameWriter(schema, "delays", timezone=ZONE, **settings)
    for frame in dataframes:
        writer.add(frame)
    waiting, batch = writer.waiting, writer.batch()
    assert waiting == batch.num_rows
    assert batch.schema == arrow_schema(schema)
    assert writer.waiting == writer.batch().num_rows == 0
    return batch.to_pylist()


def test_what_came_in_goes_out():
    # In a DataFrame with a null, integers are floats.
    small = (*FULL[:3], 2**53, *FULL[4:])
    rows = [FULL, FULL, EMPTY, small, EMPTY]
    frames_in = [frame for (frame,) in read(rows, [0, 2, 3, 5])]
    expected = [dict(zip(KINDS.names, row, strict=True)) for row in rows]
    for row in expected:
        row["m"] = None if row["m"] is None else list(row["m"].items())
    assert written(frames_in) == expected


def test_columns_are_found_by_name_and_further_ones_left_out():
    out = [
        pd.DataFrame({"n": [1], "more": [0], "k": ["a"]}),
        pd.DataFrame({"k": ["b"], "n": [2]}),
        pd.DataFrame(),
        pd.DataFrame({"nothing": []}),
        pd.DataFrame([["c", 3]]),
        pd.DataFrame([["d", 4, "more"]], columns=[5, 6, 7]),
    ]
    assert [tuple(row.values()) for row in written(out, COUNTS)] == [("a", 1), ("b", 2), ("c", 3), ("d", 4)]
    assert written([pd.DataFrame({"n": ["x"], "k": [7]})], COUNTS, by_name=False) == [{"k": "x", "n": 7}]


@pytest.mark.parametrize(
    ("frame", "column"),
    [
        (pd.DataFrame({"k": ["a"]}), "n"),
        (pd.DataFrame([["a"]]), ""),
        (pd.DataFrame([["a", 1, 2]], columns=["k", "n", "n"]), ""),
        (pd.DataFrame({"k": ["a"], "n": ["many"]}), "n"),
        (pd.DataFrame({"k": ["a"], "n": [[1]]}), "n"),
    ],
)
def test_a_dataframe_that_does_not_fit_is_told_by_its_column(frame, column):
    with pytest.raises(OutputTypeError) as refused:
        written([pd.DataFrame({"k": ["fine"], "n": [1]}), frame], COUNTS)
    part = f"output column {column!r}" if column else "a DataFrame"
    assert (refused.value.operator, refused.value.part) == ("delays", part)


STRUCT = types.StructType().add("p", types.LongType()).add("q", types.StructType().add("r", types.LongType()))


@pytest.mark.parametrize(
    ("dtype", "wrap"),
    [
        (STRUCT, lambda x: x),
        (types.ArrayType(STRUCT), lambda x: [None, x]),
        (types.ArrayType(STRUCT), lambda x: np.array([x, None], object)),
        (types.MapType(types.StringType(), STRUCT), lambda x: {"a": None, "b": x}),
        (types.StructType().add("s", STRUCT), lambda x: {"s": x}),
    ],
    ids=["struct", "list", "array", "map", "nested"],
)
@pytest.mark.parametrize(
    ("value", "wrong"),
    [
        ({"p": 1}, "without 'q'"),
        (Row(p=1), "without 'q'"),
        ({"P": 1, "q": None}, "without 'p' and with 'P'"),
        ({"p": 1, "q": {"r": 1, "s": 2}}, "with 's'"),
        ((1,), "of 1 items"),
    ],
    ids=repr,
)
def test_a_struct_inside_a_dataframe_has_exactly_its_fields(dtype, wrap, value, wrong):
    schema = types.StructType().add("x", dtype)
    fine = pd.DataFrame({"x": [wrap({"p": 1, "q": {"r": 2}}), None]})
    written([fine], schema)
    with pytest.raises(OutputTypeError, match=f"a struct {wrong} in ") as refused:
        written([fine, pd.DataFrame({"x": [wrap(value)]})], schema)
    assert refused.value.part == "output column 'x'"


def test_a_null_in_a_column_without_nulls_is_refused():
    strict = types.StructType().add("n", types.LongType(), False)
    with pytest.raises(OutputTypeError, match="that is not null"):
        written([pd.DataFrame({"n": [1.0, float("nan")]})], strict)


def test_large_integers_keep_their_digits_beside_dataframes_with_nulls():
    large = 2**60 + 1
    out = [pd.DataFrame({"k": ["a"], "n": [n]}) for n in (large, None, 1.0, large)]
    assert [row["n"] for row in written(out, COUNTS)] == [large, None, 1, large]


def test_what_happens_to_a_dataframe_after_it_was_given_changes_nothing():
    writer = FrameWriter(COUNTS, "delays")
    frame = pd.DataFrame({"k": ["a"], "n": [1]})
    for n in (1, 2):
        frame.loc[0, "n"] = n
        writer.add(frame)
    assert writer.batch().to_pylist() == [{"k": "a", "n": 1}, {"k": "a", "n": 2}]


text = st.one_of(st.none(), st.text(max_size=3))
exact = st.one_of(st.none(), st.integers(-(2**53), 2**53))
"""Numbers that a float can hold, for a DataFrame with a null has its integers as floats."""


@given(groups=st.lists(st.lists(st.tuples(text, exact), min_size=1), min_size=1))
def test_any_groups_come_back_as_they_were(groups):
    rows = [row for group in groups for row in group]
    bounds = np.cumsum([0, *map(len, groups)]).tolist()
    found = written([frame for parts in read(rows, bounds, COUNTS) for frame in parts], COUNTS)
    assert [(row["k"], row["n"]) for row in found] == rows


def test_numbers_are_cut_or_refused_as_the_session_says():
    out = [pd.DataFrame({"k": ["a"], "n": [1.5]})]
    assert written(out, COUNTS) == [{"k": "a", "n": 1}]
    with pytest.raises(OutputTypeError):
        written(out, COUNTS, safe=True)
