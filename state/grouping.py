"""The rows of an Arrow table grouped by key, without a Python call per row."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import attrs
import numpy as np
import numpy.typing as npt
import pyarrow as pa

from .keys import KeyCodec, is_simple
from .rows import to_pylist

Codes = npt.NDArray[np.int64]

_LIMIT = 1 << 62
"""Products of column cardinalities above this are renumbered before they overflow 64 bits."""


@attrs.frozen(eq=False)
class Groups:
    """A table whose rows adjoin by key and keep their order of arrival inside a key; keys adjoin by shard.

    Group ``i`` has rows ``bounds[i]`` to ``bounds[i + 1]`` of ``table``.
    """

    table: pa.Table
    """The rows, without the shard column."""
    bounds: Sequence[int]
    """Where each group begins, and the number of rows at the end."""
    shards: Sequence[int]
    keys: Sequence[bytes]
    """Canonical bytes of each group's key."""
    values: Sequence[tuple[Any, ...]]
    """Each group's key as a processor sees it."""

    def __len__(self) -> int:
        return len(self.keys)


def group(table: pa.Table, codec: KeyCodec, shard: str) -> Groups:
    """Group the rows of ``table`` by key.

    Args:
        table: one task's part of a micro-batch.
        codec: knows the key columns, by the names in ``table``.
        shard: name of the column that holds each row's shard, an integer that is a function of the key.
    """
    columns = [table.column(name).combine_chunks() for name in codec.schema.names]
    shards = table.column(shard).combine_chunks().to_numpy(zero_copy_only=False).astype(np.int64)
    codes, _ = _combine((shards, int(shards.max(initial=0)) + 1), *_key_codes(columns, codec))
    # Stable: rows of one key stay in order of arrival. The shard is the most significant digit of the code.
    order = np.argsort(codes, kind="stable")
    ordered = codes[order]
    starts = np.flatnonzero(np.r_[True, ordered[1:] != ordered[:-1]]) if len(order) else np.empty(0, np.int64)
    firsts = pa.array(order[starts])
    key_columns = [column.take(firsts) for column in columns]
    return Groups(
        table=table.drop_columns([shard]).combine_chunks().take(pa.array(order)),
        bounds=[*starts.tolist(), len(order)],
        shards=shards[order[starts]].tolist(),
        keys=codec.encode_columns(key_columns),
        values=list(zip(*map(to_pylist, key_columns), strict=True)),
    )


def _key_codes(columns: Sequence[pa.Array], codec: KeyCodec) -> list[tuple[Codes, int]]:
    """Return for each key column a number per row, equal for equal values, and a bound of these numbers."""
    codes = []
    for position, column in enumerate(columns):
        if is_simple(codec.schema.fields[position].dataType):
            canonical = codec.column(position, column)
        else:
            single = KeyCodec(type(codec.schema)([codec.schema.fields[position]]))
            canonical = pa.array(single.encode_columns([column]), pa.large_binary())
        encoded = canonical.dictionary_encode(null_encoding="encode")
        codes.append((encoded.indices.to_numpy().astype(np.int64), len(encoded.dictionary)))
    return codes


def _combine(*columns: tuple[Codes, int]) -> tuple[Codes, int]:
    """Return one number a row, equal where all the columns' numbers are, the first most significant."""
    codes, size = columns[0]
    for next_codes, next_size in columns[1:]:
        next_size = max(next_size, 1)
        if size * next_size >= _LIMIT:
            distinct, codes = np.unique(codes, return_inverse=True)
            size = len(distinct)
        codes, size = codes * next_size + next_codes, size * next_size
    return codes, size
