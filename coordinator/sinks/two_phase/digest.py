"""The digest of rows: their number, and the sum of their 128-bit hashes, computed over Arrow columns.

It depends neither on the order of the rows nor on how they are partitioned, and what Arrow may encode in several ways
counts as one value. A row's hash covers its values, by the names and types of their columns, in whatever order:

* A float counts by its bits, but -0.0 is 0.0 and every NaN is the same NaN, as where Spark groups.
* A timestamp is a moment, whatever its time zone.
* The entries of a map have no order, as where Spark groups.
* All else counts as stored; so do variants, which are two columns of bytes.

Each value becomes a *cell*, two 64-bit words for each row, and those of a row's columns are added and mixed to a hash.
The first words of a column's cells are added up, too: they tell in which columns rows differ that nobody has kept.
Digests find mistakes, not attacks.
"""

from __future__ import annotations

import functools
import hashlib
from collections.abc import Iterable, Iterator
from typing import Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from ....state.format.arrow import BYTES, bounds_of, to_numpy, valid
from ....storage.checkpoints.batch_record import NOTHING, Digest, total

_Words = npt.NDArray[np.uint64]
_Cells = tuple[_Words, _Words]

_U64: Final = np.uint64
# The mixing is that of splitmix64, by S. Vigna, without its counter.
_P1: Final = _U64(0xBF58476D1CE4E5B9)
_P2: Final = _U64(0x94D049BB133111EB)
_STEP: Final = _U64(0x9E3779B97F4A7C15)
"""Mixes in where a word or an element stands."""
_BLOCK: Final = 1 << 14
"""The most rows at once, so that their words stay in a processor's cache."""
_LONG: Final = 256
"""Bytes of a value beyond which its hash stands for it."""
_HASHED: Final = 16
"""Bytes of that hash."""
_MASKS: Final = np.array([(1 << 8 * size) - 1 for size in range(9)], np.uint64)
"""What of a word belongs to a text that ends after so many of its bytes."""
_SIGNED: Final = {1: np.int8, 2: np.int16, 4: np.int32, 8: np.int64}


def digest(batches: Iterable[pa.RecordBatch]) -> Digest:
    """Return the digest of rows."""
    return total(map(_digest, batches))


class Digester:
    """The digest of rows that pass."""

    def __init__(self) -> None:
        self.digest = NOTHING

    def over(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Yield batches, and add up their digests."""
        for some in batches:
            self.digest += _digest(some)
            yield some


def _digest(rows: pa.RecordBatch) -> Digest:
    with np.errstate(over="ignore", invalid="ignore"):
        return total(_of_block(rows.slice(at, _BLOCK)) for at in range(0, rows.num_rows, _BLOCK))


def _of_block(rows: pa.RecordBatch) -> Digest:
    seed = _seed(0, "row")
    cells = _parts(rows.columns, rows.schema.names, seed)
    low, high = _together(cells, rows.num_rows, seed)
    # The low words are added in halves, so that nothing is lost.
    halves = int((low & _MASKS[4]).sum()) + (int((low >> _U64(32)).sum()) << 32)
    columns = {name: int(first.sum()) for name, (first, _) in zip(rows.schema.names, cells, strict=True)}
    return Digest.of(rows.num_rows, (int(high.sum()) << 64) + halves, columns)


def _cells(values: pa.Array, seed: int) -> _Cells:
    """Return the cells of a column.

    Args:
        values: the column.
        seed: what tells it from the other columns.
    """
    dtype = values.type
    if isinstance(dtype, pa.BaseExtensionType):
        return _cells(values.storage, seed)
    if pa.types.is_dictionary(dtype):
        return _looked_up(values, seed)
    if pa.types.is_run_end_encoded(dtype):
        return _cells(pc.run_end_decode(values), seed)
    first, second = _of_values(values, _seed(seed, _kind(dtype)))
    return _with_nulls((first, second), values, seed)


def _kind(dtype: pa.DataType) -> str:
    """Return what the hash says of a type, besides the names and types of its parts."""
    if _is_text(dtype):
        return "string"
    if _is_bytes(dtype):
        return "binary"
    if pa.types.is_map(dtype):
        return "map"
    if pa.types.is_nested(dtype):
        return "struct" if pa.types.is_struct(dtype) else "list"
    if pa.types.is_timestamp(dtype):
        return f"timestamp {dtype.unit} {'with' if dtype.tz else 'without'} zone"
    return str(dtype)


def _of_values(values: pa.Array, seed: int) -> _Cells:
    """Return the cells of a column; those of its nulls are anything."""
    dtype = values.type
    if pa.types.is_null(dtype):
        return np.zeros(len(values), np.uint64), np.zeros(len(values), np.uint64)
    if pa.types.is_struct(dtype):
        parts = [values.field(number) for number in range(dtype.num_fields)]
        return _together(_parts(parts, [field.name for field in dtype], seed), len(values), seed)
    if pa.types.is_map(dtype):
        entry = pa.struct([dtype.key_field.with_name("key"), dtype.item_field.with_name("value")])
        return _lists(values.view(pa.list_(entry)), seed, ordered=False)
    if pa.types.is_nested(dtype):
        return _lists(values, seed, ordered=True)
    if _is_text(dtype) or _is_bytes(dtype):
        return _bytes(values.cast(BYTES), seed)
    values = pa.Array.from_buffers(dtype, len(values), [None, values.buffers()[1]], offset=values.offset)
    if dtype.bit_width > 64:
        return _wide(values, seed)
    words = _mixed(_plain_words(values) + _U64(seed))
    return words, words * _U64(_seed(seed, "second") | 1)


def _plain_words(values: pa.Array) -> _Words:
    """Return the values of a type of up to 64 bits, a word each."""
    dtype = values.type
    if pa.types.is_boolean(dtype):
        return to_numpy(values).astype(np.uint64)
    if pa.types.is_floating(dtype):
        kind = np.dtype(dtype.to_pandas_dtype()).type
        # Adding zero turns -0.0 into 0.0.
        floats = to_numpy(values) + kind(0)
        floats[np.isnan(floats)] = kind(np.nan)
        numbers = floats.view(_SIGNED[floats.itemsize])
    elif pa.types.is_integer(dtype):
        numbers = to_numpy(values)
    else:
        numbers = to_numpy(values.view(pa.from_numpy_dtype(_SIGNED[dtype.bit_width // 8])))
    # Widened by their sign, if they have one.
    words: _Words = numbers.astype(np.int64 if numbers.dtype.kind == "i" else np.uint64).view(np.uint64)
    return words


def _looked_up(values: pa.DictionaryArray, seed: int) -> _Cells:
    if not len(values.dictionary):
        return _cells(values.cast(values.type.value_type), seed)
    first, second = _cells(values.dictionary, seed)
    at = to_numpy(values.indices)
    return _with_nulls((first[at], second[at]), values, seed)


def _with_nulls(cells: _Cells, values: pa.Array, seed: int) -> _Cells:
    if not values.null_count:
        return cells
    there, null = valid(values), _seed(seed, "null")
    return np.where(there, cells[0], _U64(null)), np.where(there, cells[1], _U64(_seed(null, "second")))


def _parts(columns: Iterable[pa.Array], names: Iterable[str], seed: int) -> list[_Cells]:
    return [_cells(column, _seed(seed, name)) for name, column in zip(names, columns, strict=True)]


def _together(parts: Iterable[_Cells], count: int, seed: int) -> _Cells:
    """Return the cells of values that consist of parts, which their names tell apart."""
    first, second = np.full(count, seed, np.uint64), np.zeros(count, np.uint64)
    for one, other in parts:
        first += one
        second += other
    return _hashed(first, second)


def _lists(values: pa.Array, seed: int, *, ordered: bool) -> _Cells:
    lengths = to_numpy(pc.list_value_length(values)).astype(np.int64)
    first, second = _cells(pc.list_flatten(values), seed)
    ends = np.cumsum(lengths)
    if ordered:
        # In a list, an element counts by its place.
        at = (np.arange(len(first)) - np.repeat(ends - lengths, lengths)).view(np.uint64) * _STEP
        first, second = _mixed(first + at), _mixed(second + at)
    sums, others = (_sums(words, ends - lengths, ends) for words in (first, second))
    return _hashed(sums + _U64(seed), others)


def _bytes(values: pa.Array, seed: int) -> _Cells:
    """Return the cells of a column of type ``BYTES``, whose words are added one after the other."""
    bounds = bounds_of(values)
    lengths = bounds[1:] - bounds[:-1]
    data, at, sizes = _short(values, bounds, lengths)
    words = np.ndarray((len(data) - 7,), "<u8", data, strides=(1,))
    first, second = lengths.view(np.uint64) * _STEP, np.zeros(len(at), np.uint64)
    first += _U64(seed)
    for place in range(_LONG // 8):
        left = sizes - 8 * place
        more = np.flatnonzero(left > 0)
        if not more.size:
            break
        # Most often all rows have a word here, or none.
        rows = slice(None) if more.size == len(at) else more
        found = words[at[rows] + 8 * place] & _MASKS[np.minimum(left[rows], 8)]
        found += _U64(_seed(seed, f"word {place}"))
        found = _mixed(found)
        first[rows] += found
        found *= _U64(_seed(seed, f"factor {place}") | 1)
        second[rows] += found
    return _hashed(first, second)


def _short(
    values: pa.Array, bounds: npt.NDArray[np.int64], lengths: npt.NDArray[np.int64]
) -> tuple[npt.NDArray[np.uint8], npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """Return bytes, and where in them each row begins, and how many it has: in place of long ones those of a hash."""
    at, size = bounds[:-1] - bounds[0], int(bounds[-1] - bounds[0])
    long = np.flatnonzero(lengths > _LONG)
    sizes = lengths.copy() if len(long) else lengths
    # Zeros behind the data let a whole word be read from wherever a value ends.
    data = np.zeros(size + _HASHED * len(long) + 8, np.uint8)
    if size:
        data[:size] = np.frombuffer(values.buffers()[2], np.uint8)[bounds[0] : bounds[-1]]
    for number, row in enumerate(long):
        found = hashlib.blake2b(data[at[row] :][: sizes[row]].tobytes(), digest_size=_HASHED).digest()
        at[row], sizes[row] = size + _HASHED * number, _HASHED
        data[at[row] : at[row] + _HASHED] = np.frombuffer(found, np.uint8)
    return data, at, sizes


def _wide(values: pa.Array, seed: int) -> _Cells:
    """Return the cells of a column of a type that has several words."""
    size, count = values.type.bit_width // 64, len(values)
    words = np.frombuffer(values.buffers()[1], np.uint64)[values.offset * size :][: count * size]
    first, second = np.zeros(count, np.uint64), np.zeros(count, np.uint64)
    for place, some in enumerate(words.reshape(count, size).T):
        found = _mixed(some + _U64(_seed(seed, f"word {place}")))
        first += found
        second += found * _U64(_seed(seed, f"factor {place}") | 1)
    return _hashed(first, second)


def _sums(words: _Words, begins: npt.NDArray[np.int64], ends: npt.NDArray[np.int64]) -> _Words:
    until = np.zeros(len(words) + 1, np.uint64)
    np.cumsum(words, out=until[1:])
    return until[ends] - until[begins]


def _hashed(first: _Words, second: _Words) -> _Cells:
    """Return cells of which each word depends on all of what was added up. No two sums give the same."""
    first = _mixed(first)
    return first, _mixed(second ^ first)


def _mixed(words: _Words) -> _Words:
    """Return words in which each bit depends on all bits; ``words`` is used up. Each gives another one."""
    part = words >> _U64(30)
    words ^= part
    words *= _P1
    words ^= np.right_shift(words, _U64(27), out=part)
    words *= _P2
    words ^= np.right_shift(words, _U64(31), out=part)
    return words


@functools.lru_cache(4096)
def _seed(parent: int, name: str) -> int:
    return int.from_bytes(hashlib.blake2b(f"{parent} {name}".encode(), digest_size=8).digest())


def _is_text(dtype: pa.DataType) -> bool:
    return bool(
        pa.types.is_string(dtype) or pa.types.is_large_string(dtype) or pa.types.is_string_view(dtype)
    )


def _is_bytes(dtype: pa.DataType) -> bool:
    return bool(
        pa.types.is_binary(dtype)
        or pa.types.is_large_binary(dtype)
        or pa.types.is_fixed_size_binary(dtype)
        or pa.types.is_binary_view(dtype)
    )
