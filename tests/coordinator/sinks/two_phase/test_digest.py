"""The digest of rows tells the same rows from others, whatever their order, their partitions and Arrow's encodings."""

from __future__ import annotations

from collections import Counter
from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from hypothesis import given
from hypothesis import strategies as st

from chandy.coordinator.sinks.two_phase import digest as module
from chandy.coordinator.sinks.two_phase.digest import Digester, digest
from chandy.storage.checkpoints.batch_record import Digest, total

from ....drawn_rows import NAMES, Kind, kinds
from ....effort import trying

NANS = np.array([0x7FF8000000000000, 0xFFF8000000000001, 0x7FF0000000000009], np.uint64).view(np.float64)
LONG = "x" * 300
MAP = pa.map_(pa.string(), pa.int64())


def digest_of(values: pa.Array, name: str = "c") -> Digest:
    return digest([pa.record_batch({name: values})])


def meant(value: pa.Scalar) -> Any:
    """What a value is to a reader: plain data whose text is that of an equal one."""
    if not value.is_valid:
        return None
    if isinstance(value, pa.DictionaryScalar):
        return meant(value.value)
    if isinstance(value, pa.MapScalar):
        return sorted(repr(meant(entry)) for entry in value.values)
    if isinstance(value, pa.StructScalar):
        return [meant(value[number]) for number in range(len(value.type))]
    if isinstance(value, pa.ListScalar):
        return [meant(one) for one in value.values]
    if pa.types.is_temporal(value.type):
        return value.value
    return value.as_py() + 0.0 if pa.types.is_floating(value.type) else value.as_py()


def rows_in(batches: list[pa.RecordBatch]) -> Counter[str]:
    rows = (zip(*some.columns, strict=True) for some in batches)
    return Counter(repr([meant(value) for value in row]) for some in rows for row in some)


@st.composite
def schemas(draw: st.DrawFn) -> dict[str, tuple[Kind, list[Any]]]:
    """Columns with two or three values each, and null: so equal rows and equal cells are frequent."""
    columns = {}
    for name in draw(st.lists(st.sampled_from(NAMES), min_size=1, max_size=3, unique=True)):
        kind = draw(kinds())
        columns[name] = kind, [None, *draw(st.lists(kind.values, min_size=2, max_size=3))]
    return columns


def as_encoded(draw: st.DrawFn, values: pa.Array) -> pa.Array:
    """The same values as Arrow may have them, too."""
    if not pa.types.is_nested(values.type) and draw(st.booleans()):
        return values.dictionary_encode()
    other = {
        pa.string(): [pa.large_string(), pa.string_view()],
        pa.binary(): [pa.large_binary(), pa.binary_view()],
        pa.timestamp("us", "America/New_York"): [pa.timestamp("us", "UTC")],
    }.get(values.type, [])
    if pa.types.is_list(values.type):
        other = [pa.large_list(values.type.value_type)]
    return values.cast(draw(st.sampled_from([values.type, *other])))


@st.composite
def written(draw: st.DrawFn, schema: Any, rows: list[list[int]]) -> list[pa.RecordBatch]:
    """Rows, each of which has the numbers of its values, in any order, partitions and encodings."""
    rows = draw(st.permutations(rows))
    cuts = sorted(draw(st.lists(st.integers(0, len(rows)), max_size=3)))
    found = []
    for begin, end in zip([0, *cuts], [*cuts, len(rows)], strict=True):
        first = draw(st.integers(0, begin))
        columns = {}
        for at, (name, (kind, values)) in enumerate(schema.items()):
            cells = pa.array([values[row[at]] for row in rows[first:]], kind.arrow)
            columns[name] = as_encoded(draw, cells)[begin - first : end - first]
        found.append(pa.record_batch(columns))
    return found


@st.composite
def two_writings(draw: st.DrawFn) -> tuple[list[pa.RecordBatch], list[pa.RecordBatch]]:
    schema = draw(schemas())
    numbers = st.tuples(*(st.integers(0, len(values) - 1) for _, values in schema.values())).map(list)
    rows = draw(st.lists(numbers, max_size=5))
    others = [list(row) for row in rows]
    if others and draw(st.booleans()):
        row = draw(st.integers(0, len(rows) - 1))
        at = draw(st.integers(0, len(schema) - 1))
        others[row][at] = draw(st.integers(0, len([*schema.values()][at][1]) - 1))
    return draw(written(schema, rows)), draw(written(schema, others))


@given(two_writings())
@trying(25)
def test_digests_are_equal_where_the_rows_are_and_nowhere_else(
    writings: tuple[list[pa.RecordBatch], list[pa.RecordBatch]],
) -> None:
    one, other = (total(digest([some]) for some in written) for written in writings)
    assert (one.sum == other.sum) == (rows_in(writings[0]) == rows_in(writings[1]))
    for name in one.columns:
        values, others = ([some.select([name]) for some in written] for written in writings)
        assert (one.columns[name] == other.columns[name]) == (rows_in(values) == rows_in(others))
    assert one == digest(writings[0])
    assert one.rows == sum(some.num_rows for some in writings[0])


HIDDEN = pa.StructArray.from_arrays([pa.array([1, 2])], ["a"], mask=pa.array([False, True]))
PADDED = pa.Array.from_buffers(pa.int64(), 2, [pa.py_buffer(b"\x01"), pa.py_buffer(np.array([5, 6]))])


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (pa.array([0.0, *NANS[:1]]), pa.array([-0.0, *NANS[1:2]])),
        (
            pa.array(np.array([0x7FC00000, 0xFFC00001, 0x7F800009], np.uint32).view(np.float32)),
            pa.array(np.full(3, np.nan, np.float32)),
        ),
        (pa.array([[-0.0, None], []]), pa.array([[0.0, None], []])),
        (HIDDEN, pa.array([{"a": 1}, None], pa.struct({"a": pa.int64()}))),
        (PADDED, pa.array([5, None])),
        (pa.array(["a", None, "a"]).dictionary_encode(), pa.array(["a", "a", None])),
        (pa.DictionaryArray.from_arrays(pa.array([0, 1]), pa.array(["a", None])), pa.array([None, "a"])),
        (pa.array([None], pa.dictionary(pa.int8(), pa.string())), pa.array([None], pa.string())),
        (pa.array([[1, 2], None], pa.list_view(pa.int64())), pa.array([None, [1, 2]])),
        (pa.array([[1, 2], None], pa.list_(pa.int64(), 2)), pa.array([None, [1, 2]])),
        (pc.run_end_encode(pa.array([7, 7, 8])), pa.array([7, 8, 7])),
        (pa.array([b"abc"], pa.binary(3)), pa.array([b"abc"])),
        (pa.array([[("a", 1), ("b", None)]], MAP), pa.array([[("b", None), ("a", 1)]], MAP)),
        (pa.array([LONG, "y"]), pa.array(["y", LONG], pa.string_view())),
        (pa.array([], pa.int64()), pa.array([], pa.string())),
    ],
)
def test_what_arrow_has_in_two_ways_is_one_value(one: pa.Array, other: pa.Array) -> None:
    assert digest_of(one) == digest_of(other)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (pa.array([1, 2], pa.int64()), pa.array([1, 2], pa.int32())),
        (pa.array(["a"]), pa.array([b"a"])),
        (pa.array(["a"]), pa.array(["a\0"])),
        (pa.array(["a" * 8]), pa.array(["a" * 8 + "\0" * 8])),
        (pa.array(["abcdefgh" + "ijklmnop"]), pa.array(["ijklmnop" + "abcdefgh"])),
        (pa.array([LONG]), pa.array([LONG[:-1] + "y"])),
        (pa.array([LONG, "y"]), pa.array(["y" + LONG[1:], "x"])),
        (pa.array(["", None]), pa.array(["", ""])),
        (pa.array([[], None], pa.list_(pa.null())), pa.array([[None], None], pa.list_(pa.null()))),
        (pa.array([[1, 2], [3]]), pa.array([[1], [2, 3]])),
        (pa.array([[1, 2]]), pa.array([[2, 1]])),
        (pa.array([{"a": 1}]), pa.array([{"b": 1}])),
        (pa.array([Decimal(1 << 70)]), pa.array([Decimal((1 << 70) + (1 << 64))])),
        (pa.array([1.0, 2.0]), pa.array([0.5, 2.5])),
        (pa.array([0], pa.timestamp("us", "UTC")), pa.array([0], pa.timestamp("us"))),
    ],
)
def test_what_is_another_value_or_type_is_told(one: pa.Array, other: pa.Array) -> None:
    assert digest_of(one).sum != digest_of(other).sum
    assert digest_of(one).columns != digest_of(other).columns


def test_a_row_is_more_than_its_values() -> None:
    one = pa.record_batch({"a": [1, 2], "b": [3, 4]})
    swapped = pa.record_batch({"a": [1, 2], "b": [4, 3]})
    renamed = pa.record_batch({"a": [1, 2], "c": [3, 4]})
    reordered = pa.record_batch({"b": [3, 4], "a": [1, 2]})
    assert len({digest([rows]).sum for rows in (one, swapped, renamed)}) == 3
    assert digest([swapped]).columns == digest([one]).columns
    assert digest([reordered]) == digest([one])
    assert digest([one, one]) == total([digest([one])] * 2) != digest([one])


def test_no_bit_of_the_hashes_is_idle() -> None:
    sums = [int(digest_of(pa.array([number])).sum, 16) for number in range(200)]
    for bit in range(128):
        assert 60 < sum(one >> bit & 1 for one in sums) < 140


def test_rows_that_pass_are_counted_in_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    rows = pa.record_batch({"n": list(range(10))})
    whole, digester = digest([rows]), Digester()
    monkeypatch.setattr(module, "_BLOCK", 3)
    assert list(digester.over(iter([rows[:4], rows[4:]]))) == [rows[:4], rows[4:]]
    assert digester.digest == whole


def test_a_digest_stays_what_it_is_between_versions() -> None:
    """What a checkpoint has recorded is compared with what a later version computes."""
    rows = pa.record_batch(
        {
            "n": [1, None],
            "x": [0.5, float("nan")],
            "s": ["carrier", LONG],
            "m": pa.array([[("k", Decimal("1.50"))], None], pa.map_(pa.string(), pa.decimal128(20, 2))),
            "l": [[True], []],
            "t": pa.array([{"at": 7}, None], pa.struct({"at": pa.timestamp("us", "UTC")})),
        }
    )
    found = digest([rows])
    assert found.sum == "ed381cd349c66e248b7862cbbbc2ee73"
    assert list(found.columns) == rows.schema.names
    assert found.columns["s"] == "a3fbbf55fa6635d6"
