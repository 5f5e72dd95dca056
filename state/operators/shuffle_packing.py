"""Packs many rows into one binary value for Spark's shuffle, and unpacks them on the other side.

Spark serializes each row that it sends to another partition, which takes a microsecond per row. A packed batch, many
rows as an Arrow stream in one binary value, is only one row for Spark.
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
"""The schema of packed batches in Spark."""
ARROW: Final = pa.schema([(PARTITION, pa.int32()), (ROWS, pa.binary())])

BUFFERED: Final = 16 << 20
"""The approximate number of bytes of rows that are collected before they are packed."""
PACKED: Final = 8 << 20
"""The approximate maximum size of a packed batch in bytes; only a single row can be larger."""


@attrs.frozen
class Packer:
    """Packs rows by the partition to which they go."""

    shard: str
    """The column with each row's shard."""
    shards: int
    parallelism: int

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Yield packed batches of the rows; rows for one partition stay in the order in which they came."""
        held: list[pa.RecordBatch] = []
        size = 0
        for batch in batches:
            held.append(batch)
            size += batch.nbytes
            if size >= BUFFERED:
                yield from self._packed_batches(held)
                held, size = [], 0
        yield from self._packed_batches(held)

    def _packed_batches(self, batches: list[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
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
        step = max(1, PACKED * rows // max(1, table.nbytes))
        for partition in range(self.parallelism):
            for start in range(bounds[partition], bounds[partition + 1], step):
                part = table.slice(start, min(step, bounds[partition + 1] - start))
                yield _packed(partition, part)


def _packed(partition: int, rows: pa.Table) -> pa.RecordBatch:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, rows.schema) as writer:
        writer.write_table(rows)
    data = sink.getvalue()
    offsets = pa.py_buffer(np.array([0, data.size], np.int32))
    column = pa.Array.from_buffers(pa.binary(), 1, [None, offsets, data])
    return pa.RecordBatch.from_arrays([from_numpy(np.array([partition], np.int32)), column], schema=ARROW)


def unpack(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Yield the rows of packed batches."""
    for batch in batches:
        for packed in batch.column(ROWS):
            with pa.ipc.open_stream(packed.as_buffer()) as reader:
                yield from reader
