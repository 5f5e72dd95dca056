from __future__ import annotations

from itertools import pairwise

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from chandy.state.format.arrow import BYTES
from chandy.state.rpc import wire
from chandy.state.rpc.wire import ScanPage, messages, runs


@given(
    st.lists(st.tuples(st.binary(max_size=4), st.none() | st.binary(max_size=12)), max_size=30),
    st.integers(0, 5),
    st.integers(1, 8),
    st.integers(1, 20),
)
def test_messages_hold_all_rows_in_order_and_no_more_than_they_may(
    pairs: list[tuple[bytes, bytes | None]], skipped: int, most_rows: int, most_bytes: int
) -> None:
    keys = pa.array([key for key, _ in pairs], BYTES)[skipped:]
    values = pa.array([value for _, value in pairs], BYTES)[skipped:]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(wire, "ROWS", most_rows)
        patch.setattr(wire, "SIZE", most_bytes)
        found = list(messages(keys, values))
    assert [row for start, stop in found for row in range(start, stop)] == list(range(len(keys)))
    sizes = [len(key) + len(value or b"") for key, value in pairs[skipped:]]
    for start, stop in found:
        assert stop - start <= most_rows
        assert stop - start == 1 or sum(sizes[start:stop]) <= most_bytes
    # And none is cut short without need.
    for (start, stop), (after, _) in pairwise(found):
        assert stop - start == most_rows or sum(sizes[start : after + 1]) > most_bytes


def test_runs_are_stretches_of_one_shard() -> None:
    assert list(runs(np.array([], np.int32))) == []
    assert list(runs(np.array([3, 3, 1, 3], np.int32))) == [(3, 0, 2), (1, 2, 3), (3, 3, 4)]


@pytest.mark.parametrize("rows", [0, 1, 3])
@pytest.mark.parametrize("complete", [True, False])
def test_a_page_comes_as_it_was_sent(rows: int, complete: bool) -> None:
    keys = [b"key-%d" % row for row in range(rows)]
    values = [b"" for _ in range(rows)]
    page = ScanPage.unpack(*ScanPage.of([7] * rows, keys, values, complete=complete).pack())
    assert page.complete is complete
    assert page.entries.shards.tolist() == [7] * rows
    assert page.entries.keys.to_pylist() == keys
    assert page.entries.values.to_pylist() == values
