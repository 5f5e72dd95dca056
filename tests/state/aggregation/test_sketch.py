"""Sketches count small sets exactly and big ones nearly, however they were put together."""

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from chandy.state.aggregation.sketch import REGISTERS, SPARSE_LIMIT, estimates, of_hashes, union

HASHES = st.integers(-(2**63), 2**63 - 1)


def hashes(count, seed=0):
    return np.random.default_rng(seed).integers(-(2**63), 2**63 - 1, count, dtype=np.int64)


def sketch_of(values):
    return union(of_hashes(pa.array(values, pa.int64())), np.array([0, len(values)]))


def by_definition(values):
    """The registers of a dense sketch, value by value."""
    registers = np.zeros(REGISTERS, np.uint8)
    for value in values:
        bits = f"{int(value) % 2**64:064b}"
        rank = len(bits[11:]) - len(bits[11:].lstrip("0")) + 1
        place = int(bits[:11], 2)
        registers[place] = max(registers[place], rank)
    return registers.tobytes()


@given(st.lists(HASHES, min_size=1, max_size=60))
def test_a_small_set_is_counted_exactly(values):
    twice = pa.array(values + values, pa.int64())
    assert estimates(union(of_hashes(twice), np.array([0, len(twice)])))[0] == len({v >> 38 for v in values})


@given(st.lists(st.lists(HASHES | st.none(), min_size=1, max_size=20), min_size=1, max_size=6), st.data())
def test_sets_united_in_any_order_and_grouping_make_the_same_sketch(groups, data):
    flat = [value for group in groups for value in group]
    singles = of_hashes(pa.array(flat, pa.int64()))
    bounds = np.cumsum([0, *map(len, groups)])
    once = union(singles, bounds)
    cut = data.draw(st.integers(1, len(flat)))
    if cut < len(flat):
        halves = union(singles, np.array([0, cut, len(flat)]))
        assert union(halves, np.array([0, 2])) == union(once, np.array([0, len(groups)]))
    shuffled = pa.array(data.draw(st.permutations(flat)), pa.int64())
    assert union(of_hashes(shuffled), np.array([0, len(flat)])) == union(once, np.array([0, len(groups)]))


@pytest.mark.parametrize("count", [600, 2000, 20_000])
def test_a_big_set_has_the_registers_of_the_definition(count):
    values = hashes(count)
    # Some with a beginning of many zeros, which few hashes have.
    values[:30] = values[:30] & 0x1FFFFFFFFF | (np.arange(30) << 53)
    values[-1] = 0
    assert sketch_of(values)[0].as_py() == by_definition(values)


def test_sparse_and_dense_sketches_unite():
    values = hashes(3000)
    sketches = pa.concat_arrays(
        [sketch_of(values[:2000]), sketch_of(values[1900:2100]), sketch_of(values[2100:]), sketch_of([7])]
    )
    one, other = union(sketches, np.array([0, 3, 4])).to_pylist()
    assert one == by_definition(values)
    assert other == sketch_of([7])[0].as_py()


def test_a_sketch_is_never_bigger_than_its_registers():
    sizes = [
        len(sketch_of(hashes(count))[0].as_py()) for count in (1, 10, SPARSE_LIMIT, SPARSE_LIMIT + 1, 9999)
    ]
    assert sizes == [4, 40, 4 * SPARSE_LIMIT, REGISTERS, REGISTERS]


@pytest.mark.parametrize("count", [600, 3000, 8000, 100_000])
def test_a_big_set_is_counted_with_the_error_that_is_promised(count):
    found = estimates(pa.concat_arrays([sketch_of(hashes(count, seed)) for seed in range(40)]))
    errors = found / count - 1
    assert abs(errors.mean()) < 3 * 0.023 / np.sqrt(40)
    assert np.sqrt((errors**2).mean()) < 1.5 * 0.023


def test_no_set_and_an_empty_set_have_no_values():
    assert estimates(pa.array([None, b""], pa.large_binary())).tolist() == [0, 0]
    assert union(of_hashes(pa.array([None, None, 5], pa.int64())), np.array([0, 2, 3])).null_count == 1
