"""Arrays from and to NumPy: as pyarrow makes them, and without pandas."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from chandy.state.format.arrow import BYTES, bitmap, from_numpy, scalar, to_numpy, valid

DTYPES = [np.bool_, np.int8, np.int16, np.int32, np.int64, np.uint8, np.uint64, np.float32, np.float64]
ARRAYS = st.sampled_from(DTYPES).flatmap(lambda dtype: hnp.arrays(dtype, st.integers(0, 70)))


@given(values=ARRAYS, data=st.data())
def test_an_array_is_the_one_that_pyarrow_makes(values: np.ndarray[Any, Any], data: st.DataObject) -> None:
    nulls = data.draw(st.none() | hnp.arrays(np.bool_, len(values)))
    made = from_numpy(values, nulls)
    made.validate(full=True)
    expected = pa.array(values, mask=nulls)
    assert made.type == expected.type
    # Numbers as bits: a NaN is equal to itself.
    assert repr(made.to_pylist()) == repr(expected.to_pylist())
    assert made.null_count == expected.null_count


@given(values=ARRAYS, data=st.data())
def test_an_array_comes_back_from_wherever_it_is_cut(
    values: np.ndarray[Any, Any], data: st.DataObject
) -> None:
    start = data.draw(st.integers(0, len(values)))
    stop = data.draw(st.integers(start, len(values)))
    found = to_numpy(pa.array(values).slice(start, stop - start))
    assert found.dtype == values.dtype
    np.testing.assert_array_equal(found, values[start:stop])


@given(values=ARRAYS, step=st.sampled_from([2, -1]))
def test_an_array_with_steps_is_copied(values: np.ndarray[Any, Any], step: int) -> None:
    np.testing.assert_array_equal(to_numpy(from_numpy(values[::step])), values[::step])


@pytest.mark.parametrize("dtype", [pa.bool_(), pa.int64(), pa.float64()])
def test_chunks_are_one_array(dtype: pa.DataType) -> None:
    column = pa.chunked_array([pa.array([1, 0], pa.int8()).cast(dtype), pa.array([1], pa.int8()).cast(dtype)])
    assert to_numpy(column).tolist() == [1, 0, 1]
    assert to_numpy(pa.chunked_array([], dtype)).tolist() == []


@pytest.mark.parametrize("dtype", [pa.bool_(), pa.int32(), pa.float64()])
def test_an_array_of_nulls_has_as_many_values(dtype: pa.DataType) -> None:
    assert len(to_numpy(pa.nulls(3, dtype))) == 3


@given(values=ARRAYS, null=st.sampled_from([0, 1]), data=st.data())
def test_nulls_are_what_stands_for_them(values: np.ndarray[Any, Any], null: int, data: st.DataObject) -> None:
    nulls = data.draw(hnp.arrays(np.bool_, len(values)))
    found = to_numpy(pa.array(values, mask=nulls), null)
    assert found.dtype == values.dtype
    np.testing.assert_array_equal(found, np.where(nulls, values.dtype.type(null), values))


@pytest.mark.parametrize(
    ("value", "dtype"),
    [
        (True, pa.bool_()),
        (-1, pa.int8()),
        (2**63 - 1, pa.int64()),
        (float("inf"), pa.float32()),
        (0.0, pa.float64()),
        (b"", BYTES),
        (b"\0x", BYTES),
        (b"", pa.binary()),
    ],
)
def test_a_scalar_is_the_one_that_pyarrow_makes(value: Any, dtype: pa.DataType) -> None:
    assert scalar(value, dtype).equals(pa.scalar(value, dtype))


@pytest.mark.parametrize("values", [[], [1, 2], [1, None, 3], [None]])
def test_rows_are_valid_that_are_not_null(values: list[int | None]) -> None:
    column = pa.array([None, *values], pa.int64()).slice(1)
    assert valid(column).tolist() == [value is not None for value in values]


def test_a_bitmap_begins_with_the_lowest_bit() -> None:
    assert bitmap(np.array([True, False, True] + [False] * 6 + [True])).to_pybytes() == b"\x05\x02"
