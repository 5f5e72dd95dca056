"""Partial aggregation: combines rows of one key before the shuffle, if that reduces the number of rows."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import attrs
import pyarrow as pa

from ..format.arrow import from_numpy
from ..format.keys import KeyCodec
from ..format.schema import from_json
from ..operators.dataframe import SHARD
from ..operators.grouping import group
from .aggregates import Aggregates
from .reduce import array

SAMPLE: Final = 16_384
"""The number of rows after which a task first checks whether keys repeat."""
ROWS: Final = 1 << 19
"""The most rows that are combined at a time."""
BYTES: Final = 64 << 20
"""The approximate maximum size in bytes of the rows that are combined at a time."""
KEYS_IN_SAMPLE: Final = 0.97
"""Give up if the sample has more keys than this fraction of its rows. With more rows, keys repeat more often: a task
with half a million equally frequent keys has this fraction in its sample."""
KEYS: Final = 0.67
"""Give up if the rows that are combined at a time have more keys than this fraction of the rows."""


@attrs.frozen
class RowsToAccumulators:
    """Converts the rows of a batch to accumulators, one for each row."""

    aggregates: Aggregates
    by: tuple[str, ...]
    inputs: tuple[str | None, ...]
    """The name of the input column of each source of the aggregates; None if it needs no column."""
    names: tuple[str, ...]
    """The names of the columns that are returned: the key columns, then one for each field of the state."""

    def __call__(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Return the batch's key columns, its accumulators and ``SHARD``."""
        inputs = [None if name is None else batch.column(name) for name in self.inputs]
        accumulators = self.aggregates.from_rows(inputs, len(batch))
        columns = [*(batch.column(name) for name in self.by), *accumulators, batch.column(SHARD)]
        return pa.RecordBatch.from_arrays(columns, names=[*self.names, SHARD])


@attrs.frozen
class PartialAggregation:
    """A function for ``mapInArrow`` that converts rows to accumulators, and merges those of one key.

    It buffers a bounded number of rows. If merging hardly reduces their number it gives up, and only converts the
    remaining rows one by one.
    """

    to_accumulators: RowsToAccumulators
    key: str
    """Schema of the key columns as Spark's JSON."""
    always: bool
    """Whether to merge to the end, even if it hardly reduces the number of rows."""

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Combine the rows of one partition."""
        remaining = map(self.to_accumulators, batches)
        codec = KeyCodec(from_json(self.key))
        held: list[pa.RecordBatch] = []
        rows = size = 0
        sampled = self.always
        for batch in remaining:
            held.append(batch)
            rows, size = rows + len(batch), size + batch.nbytes
            if not sampled and rows >= SAMPLE:
                sampled = True
                if self._keys(held, codec) > KEYS_IN_SAMPLE * rows:
                    break
            if rows < ROWS and size < BYTES:
                continue
            merged = self._merged(held, codec)
            if not self.always and len(merged) > KEYS * rows:
                held = merged.to_batches()
                break
            # If few rows are left, they are merged with the ones that follow.
            held = merged.to_batches() if len(merged) < rows // 4 else []
            if not held:
                yield from merged.to_batches()
            rows, size = (len(merged), merged.nbytes) if held else (0, 0)
        else:
            if held:
                yield from self._merged(held, codec).to_batches()
            return
        yield from held
        yield from remaining

    def _keys(self, held: list[pa.RecordBatch], codec: KeyCodec) -> int:
        return len(group(pa.Table.from_batches(held), codec, SHARD))

    def _merged(self, held: list[pa.RecordBatch], codec: KeyCodec) -> pa.Table:
        table = pa.Table.from_batches(held)
        groups = group(table, codec, SHARD)
        accumulators = [array(column) for column in groups.rows.columns[len(self.to_accumulators.by) :]]
        merged = self.to_accumulators.aggregates.merge(accumulators, groups.bounds)
        columns = [*groups.key_columns.columns, *merged, from_numpy(groups.shards)]
        return pa.Table.from_arrays(columns, names=table.schema.names).cast(table.schema)
