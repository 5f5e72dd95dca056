"""Rows are grouped as a plain dict would group them."""

from decimal import Decimal

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pyspark.sql.types import ArrayType, DecimalType, DoubleType, LongType, NullType, StringType, StructType

from chandy.state.format.keys import KeyCodec
from chandy.state.operators import grouping
from chandy.state.operators.grouping import group

SCHEMA = (
    StructType()
    .add("name", StringType())
    .add("number", DoubleType())
    .add("parts", ArrayType(LongType()))
    .add("price", DecimalType(5, 2))
    .add("nothing", NullType())
)
ARROW = pa.schema(
    [
        ("row", pa.int64()),
        ("name", pa.string()),
        ("number", pa.float64()),
        ("parts", pa.list_(pa.int64())),
        ("price", pa.decimal128(5, 2)),
        ("nothing", pa.null()),
        ("shard", pa.int32()),
    ]
)
_keys = st.tuples(
    st.none() | st.sampled_from(["a", "b", ""]),
    st.none() | st.sampled_from([0.0, -0.0, float("nan"), 1.5]),
    st.none() | st.lists(st.none() | st.integers(0, 1), max_size=2),
    st.none() | st.sampled_from([Decimal("0.00"), Decimal("1.50")]),
    st.none(),
)


def tabled(keys, chunk, shards=4):
    codec = KeyCodec(SCHEMA)
    rows = [
        dict(zip(SCHEMA.names, key, strict=True)) | {"row": at, "shard": hash(codec.encode(key)) % shards}
        for at, key in enumerate(keys)
    ]
    batches = [pa.RecordBatch.from_pylist(rows[at : at + chunk], ARROW) for at in range(0, len(rows), chunk)]
    return pa.Table.from_batches(batches, ARROW)


def rows_by_key(groups):
    rows = groups.rows.column("row").to_pylist()
    spans = zip(groups.bounds, groups.bounds[1:], strict=False)
    return dict(zip(groups.keys.to_pylist(), (rows[start:stop] for start, stop in spans), strict=True))


@settings(deadline=None)
@given(st.lists(_keys, max_size=30), st.integers(1, 7))
def test_groups_are_those_of_a_dict_with_rows_in_order_of_arrival(keys, chunk):
    codec = KeyCodec(SCHEMA)
    expected: dict[bytes, list[int]] = {}
    for at, key in enumerate(keys):
        canonical = codec.encode(key)
        expected.setdefault(canonical, []).append(at)
    groups = group(tabled(keys, chunk), codec, "shard")
    assert rows_by_key(groups) == expected
    assert len(groups) == len(expected)


@settings(deadline=None)
@given(st.lists(_keys, max_size=30))
def test_each_group_has_its_shard_its_key_and_lies_beside_the_others_of_its_shard(keys):
    codec = KeyCodec(SCHEMA)
    groups = group(tabled(keys, 10), codec, "shard")
    assert list(groups.shards) == sorted(groups.shards)
    assert list(groups.shards) == [hash(key) % 4 for key in groups.keys.to_pylist()]
    columns = [groups.key_columns.column(name).combine_chunks() for name in SCHEMA.names]
    assert codec.encode_columns(columns).equals(groups.keys)
    # The key is that of the group's rows, and in Spark's GROUP BY there is no negative zero.
    firsts = [rows[0] for rows in rows_by_key(groups).values()]
    assert [repr(row) for row in groups.key_columns.to_pylist()] == [
        repr(dict(zip(SCHEMA.names, keys[at], strict=True))).replace("-0.0", "0.0") for at in firsts
    ]


@settings(deadline=None)
@given(st.lists(_keys, max_size=30), st.data())
def test_a_slice_of_groups_has_their_rows(keys, data):
    groups = group(tabled(keys, 10), KeyCodec(SCHEMA), "shard")
    start = data.draw(st.integers(0, len(groups)))
    stop = data.draw(st.integers(start, len(groups)))
    some = groups.slice(start, stop)
    assert list(rows_by_key(some).items()) == list(rows_by_key(groups).items())[start:stop]
    assert some.shards.tolist() == groups.shards[start:stop].tolist()
    assert some.keys.equals(
        KeyCodec(SCHEMA).encode_columns([some.key_columns.column(n).combine_chunks() for n in SCHEMA.names])
    )
    assert len(some) == stop - start


_numbers = st.lists(
    st.none() | st.integers(-3, 3) | st.sampled_from([-(2**63), 2**63 - 1, 1 << 40]), max_size=30
)


@settings(deadline=None)
@given(_numbers, st.booleans())
def test_numbers_are_grouped_whatever_their_range_and_order(numbers, ordered):
    numbers = sorted(numbers, key=lambda n: (n is None, n)) if ordered else numbers
    shards = [0 if n is None else n % 3 for n in numbers]
    schema = StructType().add("n", LongType())
    columns = {
        "n": pa.array(numbers, pa.int64()),
        "row": range(len(numbers)),
        "shard": pa.array(shards, pa.int32()),
    }
    # The second time as they are grouped already.
    table = pa.table(columns)
    groups = group(table, KeyCodec(schema), "shard")
    again = groups.rows.append_column("shard", pa.array(np.repeat(groups.shards, np.diff(groups.bounds))))
    expected: dict[int | None, list[int]] = {}
    for at, number in enumerate(numbers):
        expected.setdefault(number, []).append(at)
    for one in (groups, group(again, KeyCodec(schema), "shard")):
        names = one.key_columns.column("n").to_pylist()
        assert dict(zip(names, rows_by_key(one).values(), strict=True)) == expected
        assert one.shards.tolist() == sorted(0 if n is None else n % 3 for n in names)


@pytest.mark.parametrize("size", [1, 1 << 16, (1 << 16) + 1, 1 << 32, (1 << 32) + 1])
def test_the_order_of_codes_is_stable_at_every_size(size):
    codes = np.random.default_rng(1).integers(max(0, size - 70_000), size, 1000)
    codes[::100] = size - 1
    codes = codes[np.arange(3000) % 1000]
    assert grouping._argsort(codes, size).tolist() == np.argsort(codes, kind="stable").tolist()


def test_the_shard_column_is_left_out():
    groups = group(tabled([("a", 1.5, None, None, None)], 1), KeyCodec(SCHEMA), "shard")
    assert groups.rows.column_names == ["row", *SCHEMA.names]


def test_no_rows_are_no_groups():
    groups = group(ARROW.empty_table(), KeyCodec(SCHEMA), "shard")
    assert len(groups) == 0
    assert groups.bounds.tolist() == [0]


@settings(deadline=None)
@given(st.lists(_keys, max_size=30))
def test_codes_are_renumbered_before_they_overflow(keys):
    codec, table = KeyCodec(SCHEMA), tabled(keys, 10)
    expected = group(table, codec, "shard")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(grouping, "_LIMIT", 2)
        renumbered = group(table, codec, "shard")
    assert rows_by_key(renumbered) == rows_by_key(expected)
    assert list(renumbered.shards) == list(expected.shards)
