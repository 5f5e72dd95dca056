"""Nulls that Spark's types do not allow are found wherever they are, and no others."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from pyspark.sql import Row
from pyspark.sql.types import ArrayType, DataType, LongType, MapType, StructField, StructType

from chandy.state.errors import OutputTypeError
from chandy.state.format.nulls import forbidden_nulls
from chandy.state.format.rows import RowWriter
from chandy.state.format.schema import arrow_struct
from chandy.state.operators.arrow_fit import fit_states, fit_table

from ...effort import trying


def nested(inner: st.SearchStrategy[DataType]) -> st.SearchStrategy[DataType]:
    fields = st.lists(st.tuples(inner, st.booleans()), min_size=1, max_size=2)
    return (
        st.builds(ArrayType, inner, st.booleans())
        | st.builds(MapType, st.just(LongType()), inner, st.booleans())
        | fields.map(lambda found: StructType([StructField(f"f{at}", *one) for at, one in enumerate(found)]))
    )


TYPES = st.recursive(st.just(LongType()), nested, max_leaves=4)


def values(dtype: DataType) -> st.SearchStrategy[Any]:
    """Values of a type, in which anything but the key of a map may be null."""
    if isinstance(dtype, ArrayType):
        return rarely_null(st.lists(values(dtype.elementType), max_size=2))
    if isinstance(dtype, MapType):
        pairs = st.dictionaries(st.integers(0, 2), values(dtype.valueType), max_size=2)
        return rarely_null(pairs.map(lambda found: list(found.items())))
    if isinstance(dtype, StructType):
        return rarely_null(st.fixed_dictionaries({one.name: values(one.dataType) for one in dtype.fields}))
    return rarely_null(st.integers(0, 9))


def rarely_null(some: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    return st.one_of(*[some] * 5, st.none())


def is_wrong(value: Any, dtype: DataType, nullable: bool) -> bool:
    if value is None:
        return not nullable
    if isinstance(dtype, ArrayType):
        return any(is_wrong(item, dtype.elementType, dtype.containsNull) for item in value)
    if isinstance(dtype, MapType):
        return any(is_wrong(item, dtype.valueType, dtype.valueContainsNull) for _, item in value)
    if isinstance(dtype, StructType):
        return any(is_wrong(value[one.name], one.dataType, one.nullable) for one in dtype.fields)
    return False


TYPED = TYPES.flatmap(lambda dtype: st.tuples(st.just(dtype), st.lists(values(dtype), max_size=4)))
STRUCT = StructType([StructField("f0", LongType(), False)])


@trying(40)
@given(TYPED, st.booleans(), st.integers(0, 2))
@example((STRUCT, [None, {"f0": 1}]), True, 0)
@example((ArrayType(STRUCT), [[{"f0": None}], [None, {"f0": 1}]]), True, 1)
def test_every_writer_finds_a_null_that_is_not_allowed_and_no_other(
    typed: tuple[DataType, list[Any]], nullable: bool, start: int
) -> None:
    dtype, rows = typed
    schema = StructType([StructField("v", dtype, nullable)])
    arrow = arrow_struct(schema).field("v").type
    own, wrong = rows[start:], any(is_wrong(value, dtype, nullable) for value in rows[start:])
    # Arrow makes a null struct of fields that are not null; taken by a null index, its fields are null, too.
    places = pa.array([None if value is None else at for at, value in enumerate(rows)], pa.int64())
    column = pa.array(rows, arrow).take(places).slice(start)
    found = forbidden_nulls(pa.chunked_array([column.slice(0, 1), column.slice(1)]), dtype, nullable, "v")
    assert (found is not None) == wrong
    states = {"s": pa.StructArray.from_arrays([column], ["v"])}
    for check in (
        lambda: fit_table(pa.table({"v": column}), "op", schema),
        lambda: fit_states(states, "op", {"s": schema}, len(own)),
        lambda: RowWriter(schema, "op").batch([Row(v=value) for value in own]) if own else None,
    ):
        if wrong:
            with pytest.raises(OutputTypeError):
                check()
        else:
            check()
