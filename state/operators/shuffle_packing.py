"""Rows on their way to their partitions as parcels: many rows as Arrow in one binary value.

Spark takes each row apart where it sends it to another partition and puts it together again on the other side, for a
microsecond a row. A parcel is one row to it.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import attrs
import numpy as np
import pyarrow as pa
from pyspark.sql.types import BinaryType, IntegerType, StructType

from ..format.arrow import from_numpy, to_numpy

PARTITION: Final = "partition"
ROWS: Final = "rows"
SCHEMA: Final = StructType().add(PARTITION, IntegerType()).add(ROWS, BinaryType())
"""What a parcel is to Spark."""
ARROW: Final = pa.schema([(PARTITION, pa.int32()), (ROWS, pa.binary())])

GATHERED: Final = 16 << 20
"""Bytes of rows, about, from which parcels are made at a time."""
PARCEL: Final = 8 << 20
"""Bytes of a parcel, about, at most, as long as single rows are smaller."""


@attrs.frozen
class Packer:
    """Makes parcels of rows."""

    shard: str
    """The column that says where a row belongs."""
    shards: int
    parallelism: int

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Yield parcels of the rows; those for one partition hold them in the order in which they came."""
        held: list[pa.RecordBatch] = []
        size = 0
        for batch in batches:
            held.append(batch)
            size += batch.nbytes
            if size >= GATHERED:
                yield from self._parcels(held)
                held, size = [], 0
        yield from self._parcels(held)

    def _parcels(self, batches: list[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        rows = sum(map(len, batches))
        if not rows:
            return
        table = pa.Table.from_batches(batches).combine_chunks()
        shards = to_numpy(table.column(self.shard)).astype(np.int64)
        partitions = shards * self.parallelism // self.shards
        if (partitions[1:] < partitions[:-1]).any():
            order = np.argsort(partitions.astype(np.uint16), kind="stable")
            table, partitions = table.take(from_numpy(order)), partitions[order]
        bounds = np.searchsorted(partitions, np.arange(self.parallelism + 1))
        step = max(1, PARCEL * rows // max(1, table.nbytes))
        for partition in range(self.parallelism):
            for start in range(bounds[partition], bounds[partition + 1], step):
                part = table.slice(start, min(step, bounds[partition + 1] - start))
                yield _parcel(partition, part)


def _parcel(partition: int, rows: pa.Table) -> pa.RecordBatch:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, rows.schema) as writer:
        writer.write_table(rows)
    data = sink.getvalue()
    offsets = pa.py_buffer(np.array([0, data.size], np.int32))
    column = pa.Array.from_buffers(pa.binary(), 1, [None, offsets, data])
    return pa.RecordBatch.from_arrays([from_numpy(np.array([partition], np.int32)), column], schema=ARROW)


def unpack(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Yield the rows of parcels."""
    for batch in batches:
        for parcel in batch.column(ROWS):
            with pa.ipc.open_stream(parcel.as_buffer()) as reader:
                yield from reader
