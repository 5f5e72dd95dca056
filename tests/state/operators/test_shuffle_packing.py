"""Rows are unpacked at their partition, completely and in order."""

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from chandy.state.operators import shuffle_packing
from chandy.state.operators.shard_ranges import partition_of
from chandy.state.operators.shuffle_packing import ARROW, PARTITION, Packer, unpack


def batch(shards, first=0):
    numbers = range(first, first + len(shards))
    return pa.RecordBatch.from_pydict(
        {
            "n": pa.array(numbers, pa.int64()),
            "s": pa.array([f"text {n}" if n % 3 else None for n in numbers], pa.string()),
            "shard": pa.array(shards, pa.int32()),
        }
    )


@given(
    st.lists(st.lists(st.integers(0, 15), max_size=20), max_size=5),
    st.integers(1, 16),
    st.integers(1, 2000),
    st.integers(1, 2000),
)
def test_every_row_comes_to_its_partition_in_its_order(lists, parallelism, buffered, size):
    batches, first = [], 0
    for shards in lists:
        batches.append(batch(shards, first))
        first += len(shards)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(shuffle_packing, "BUFFERED", buffered)
        patch.setattr(shuffle_packing, "PACKED", size)
        sent = list(Packer("shard", 16, parallelism)(iter(batches)))
    assert all(part.schema == ARROW for part in sent)
    rows = [row for one in batches for row in one.to_pylist()]
    for partition in range(parallelism):
        mine = [part for part in sent if part.column(PARTITION)[0].as_py() == partition]
        found = [row for one in unpack(iter(mine)) for row in one.to_pylist()]
        assert found == [row for row in rows if partition_of(row["shard"], 16, parallelism) == partition]


def test_packed_batches_have_a_moderate_size(monkeypatch):
    monkeypatch.setattr(shuffle_packing, "PACKED", 10_000)
    sent = list(Packer("shard", 16, 2)(iter([batch([n % 16 for n in range(10_000)])])))
    assert len(sent) > 10
    assert max(part.nbytes for part in sent) < 20_000
