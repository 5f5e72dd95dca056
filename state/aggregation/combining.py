"""Combines rows of one key before they are sent to the key's task, as long as that makes them fewer."""

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
"""Rows after which a task first looks whether keys repeat."""
ROWS: Final = 1 << 19
"""Rows that are combined at a time, at most."""
BYTES: Final = 64 << 20
"""Bytes that these have, about, at most."""
REPEATS_IN_SAMPLE: Final = 0.97
"""Give up if the sample has more keys than this part of its rows. Were there more rows, keys would repeat more
often: this part is what a task with half a million keys, equally frequent, has."""
REPEATS: Final = 0.67
"""Give up if all rows that are combined at a time have more keys than this part of them."""


@attrs.frozen
class Lift:
    """Makes partial results of single rows, a batch at a time."""

    aggregates: Aggregates
    by: tuple[str, ...]
    inputs: tuple[str | None, ...]
    """For each source of the aggregates the name of its column."""
    names: tuple[str, ...]
    """Columns of the partial results: those of the key, then one for each field of the state."""

    def __call__(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Return the batch's keys, their partial results and ``SHARD``."""
        inputs = [None if name is None else batch.column(name) for name in self.inputs]
        parts = self.aggregates.lift(inputs, len(batch))
        columns = [*(batch.column(name) for name in self.by), *parts, batch.column(SHARD)]
        return pa.RecordBatch.from_arrays(columns, names=[*self.names, SHARD])


@attrs.frozen
class Combining:
    """A function for ``mapInArrow`` that turns rows into partial results, one for many rows where it can.

    It holds a bounded number of rows. If they hardly become fewer it stops to look for keys, and from
    there on only turns rows into partial results one by one.
    """

    lift: Lift
    key: str
    """Schema of the key columns as Spark's JSON."""
    always: bool
    """Never give up."""

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Combine the rows of one partition."""
        lifted = map(self.lift, batches)
        codec = KeyCodec(from_json(self.key))
        held: list[pa.RecordBatch] = []
        rows = size = 0
        sampled = self.always
        for batch in lifted:
            held.append(batch)
            rows, size = rows + len(batch), size + batch.nbytes
            if not sampled and rows >= SAMPLE:
                sampled = True
                if self._keys(held, codec) > REPEATS_IN_SAMPLE * rows:
                    break
            if rows < ROWS and size < BYTES:
                continue
            combined = self._combined(held, codec)
            if not self.always and len(combined) > REPEATS * rows:
                held = combined.to_batches()
                break
            # What has become few is combined further with what follows.
            held = combined.to_batches() if len(combined) < rows // 4 else []
            if not held:
                yield from combined.to_batches()
            rows, size = (len(combined), combined.nbytes) if held else (0, 0)
        else:
            if held:
                yield from self._combined(held, codec).to_batches()
            return
        yield from held
        yield from lifted

    def _keys(self, held: list[pa.RecordBatch], codec: KeyCodec) -> int:
        return len(group(pa.Table.from_batches(held), codec, SHARD))

    def _combined(self, held: list[pa.RecordBatch], codec: KeyCodec) -> pa.Table:
        table = pa.Table.from_batches(held)
        groups = group(table, codec, SHARD)
        parts = [array(column) for column in groups.rows.columns[len(self.lift.by) :]]
        combined = self.lift.aggregates.combine(parts, groups.bounds)
        columns = [*groups.key_columns.columns, *combined, from_numpy(groups.shards)]
        return pa.Table.from_arrays(columns, names=table.schema.names)
