"""Spark's xxhash64 in Python; that it is Spark's for every type is tested beside Spark."""

import numpy as np
import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st
from pyspark.sql.types import ArrayType, DecimalType, LongType, StringType, StructType

from chandy.state.operators import hashing
from chandy.state.operators.hashing import can_hash, shards_of, xxhash64


def test_the_digests_of_the_specification_come_out():
    """From the sanity checks of the xxHash repository: the empty input under two seeds, and a word."""
    with np.errstate(over="ignore"):
        found = hashing._hash_bytes(pa.array([b"", b""]), np.array([0, 2654435761], np.uint64))
        word = hashing._hash_bytes(pa.array([b"abc"]), np.array([0], np.uint64))
    assert [hex(value) for value in found] == ["0xef46db3751d8e999", "0xac75fda2929b17ef"]
    assert hex(word[0]) == "0x44bc2cf5ad770999"


@given(st.lists(st.binary(max_size=100) | st.none(), min_size=1, max_size=8), st.data())
def test_a_value_has_its_hash_whatever_stands_around_it(values, data):
    column = pa.array(values, pa.binary())
    together = xxhash64([column])
    start = data.draw(st.integers(0, len(values) - 1))
    assert xxhash64([column.slice(start, 1)])[0] == together[start]
    assert xxhash64([column.cast(pa.large_binary())]).tolist() == together.tolist()
    assert set(shards_of([column], 7)) <= set(range(7))


def test_what_cannot_be_hashed_is_known():
    assert can_hash(StructType().add("a", LongType()).add("b", StringType()).add("c", DecimalType(18, 2)))
    assert not can_hash(StructType().add("a", LongType()).add("c", DecimalType(19, 2)))
    assert not can_hash(StructType().add("a", ArrayType(LongType())))
    assert not can_hash(StructType().add("a", StringType("UNICODE_CI")))
