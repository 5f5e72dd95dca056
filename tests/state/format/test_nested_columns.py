"""Nested values of Spark that Python has no objects for are stored, and come back as they were."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyspark.sql.types import (
    ArrayType,
    DataType,
    DateType,
    DecimalType,
    LongType,
    MapType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from chandy.state.errors import StateTypeError
from chandy.state.format.keys import KeyCodec
from chandy.state.format.packing import Packing
from chandy.state.format.schema import arrow_struct
from chandy.state.format.values import StateName

NAME = StateName("op", "s")
LEAVES = [LongType(), TimestampType(), DateType(), StringType(), DecimalType(38, 3)]


def twice(dtype: DataType) -> StructType:
    return StructType([StructField("a", dtype), StructField("a", dtype), StructField("b", LongType())])


dtypes = st.recursive(
    st.sampled_from(LEAVES),
    lambda inner: st.one_of(
        inner.map(ArrayType), inner.map(twice), inner.map(lambda item: MapType(StringType(), item))
    ),
    max_leaves=3,
).map(twice)


def arrow_of(dtype: DataType) -> pa.DataType:
    return arrow_struct(StructType([StructField("c", dtype)]))[0].type


def random_column(rows: int, dtype: DataType, chance: np.random.Generator, nulls: bool = True) -> pa.Array:
    """A column of values from all that its type has in memory, a third of which are null."""
    mask = pa.array(chance.integers(0, 3, rows) == 0) if nulls else pa.array(np.zeros(rows, bool))
    validity = pa.array(~np.asarray(mask)).buffers()[1]
    arrow = arrow_of(dtype)
    if isinstance(dtype, StructType):
        children = [random_column(rows, field.dataType, chance) for field in dtype.fields]
        return pa.StructArray.from_arrays(children, fields=list(arrow), mask=mask)
    if isinstance(dtype, ArrayType | MapType):
        lengths = np.where(np.asarray(mask), 0, chance.integers(0, 3, rows))
        offsets = pa.py_buffer(np.cumsum([0, *lengths]).astype(np.int32))
        if isinstance(dtype, ArrayType):
            items = random_column(int(lengths.sum()), dtype.elementType, chance)
        else:
            keys = random_column(int(lengths.sum()), dtype.keyType, chance, nulls=False)
            values = random_column(int(lengths.sum()), dtype.valueType, chance)
            items = pa.StructArray.from_arrays([keys, values], fields=[arrow.key_field, arrow.item_field])
        return pa.Array.from_buffers(arrow, rows, [validity, offsets], children=[items])
    if isinstance(dtype, StringType):
        texts = [chance.bytes(chance.integers(0, 4)) for _ in range(rows)]
        return pa.array(texts, pa.binary(), mask=np.asarray(mask)).view(pa.string())
    if isinstance(dtype, DecimalType):
        whole = chance.integers(-(1 << 62), 1 << 62, rows)
        return pa.array(whole, mask=np.asarray(mask)).cast(arrow)
    bits = 32 if isinstance(dtype, DateType) else 64
    raw = chance.integers(-(1 << (bits - 1)), (1 << (bits - 1)) - 1, rows).astype(f"int{bits}")
    return pa.array(raw, mask=np.asarray(mask)).view(arrow)


@given(dtypes, st.integers(0, 5), st.integers(0, 3), st.integers(0, 1 << 32))
def test_whatever_spark_has_in_a_nested_column_is_stored_and_comes_back(
    dtype: StructType, rows: int, skipped: int, seed: int
) -> None:
    column = random_column(rows + skipped, dtype, np.random.default_rng(seed)).slice(skipped)
    schema = StructType([StructField("c", dtype)])
    packing = Packing([schema], NAME)
    packed = packing.pack(pa.StructArray.from_arrays([column], fields=list(packing.arrow_type)))
    found = packing.unpack(packed).field(0)
    found.validate(full=False)
    assert len(packed) == rows
    assert found.type == column.type
    # Arrays are compared by their bytes: neither NumPy nor Python can show all of these values.
    assert packing.pack(pa.StructArray.from_arrays([found], fields=list(packing.arrow_type))) == packed
    assert found == column or any(map(_has_map, dtype.fields))


def _has_map(field: Any) -> bool:
    return "map<" in field.dataType.simpleString()


@given(st.integers(0, 1 << 32))
def test_keys_may_have_them_too(seed: int) -> None:
    dtype = StructType([StructField("t", TimestampType()), StructField("t", ArrayType(StringType()))])
    column = random_column(6, dtype, np.random.default_rng(seed))
    codec = KeyCodec(StructType([StructField("k", dtype)]))
    keys = codec.encode_columns([column])
    assert codec.encode_columns([codec.decode_columns(keys).column(0).combine_chunks()]) == keys


@pytest.mark.parametrize(
    ("dtype", "column"),
    [
        (ArrayType(LongType(), containsNull=False), pa.array([None, [None]], pa.list_(pa.int64()))),
        (
            MapType(LongType(), LongType(), valueContainsNull=False),
            pa.array([None, [(1, None)]], pa.map_(pa.int64(), pa.int64())),
        ),
        (
            StructType([StructField("x", LongType(), nullable=False)]),
            pa.StructArray.from_arrays(
                [pa.array([1, None], pa.int64())], fields=[pa.field("x", pa.int64(), nullable=False)]
            ),
        ),
    ],
)
def test_a_null_inside_that_the_type_does_not_allow_is_refused(dtype: DataType, column: pa.Array) -> None:
    packing = Packing([StructType([StructField("c", dtype)])], NAME)
    with pytest.raises(StateTypeError, match=r"'c.*bigint that is not null"):
        packing.pack(pa.StructArray.from_arrays([column], names=["c"]))
