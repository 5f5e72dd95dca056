"""The Arrow exchange between a task and a state host: one stream for a task's whole access to its shards.

The client sends batches of ``REQUEST`` rows. The rows of a shard are adjacent. The metadata of a message says what it
is:

* ``FETCH``: keys to look up. The host answers with their values as ``ANSWER`` rows in the same order, in one or
  several batches, with null for a key that is not there. The value column of the request is null.
* ``SCAN``: ranges to scan, one row for each shard, from its key up to, not including, its value. The host answers with
  one ``ScanPage``.
* ``APPLY``: changes; null deletes a key. The host collects them and does not answer.
* ``COMMIT``, followed by the task's ``OperatorMetrics`` as JSON; no rows. The host stages all collected changes and
  answers with the metadata ``STAGED``. A stream that ends without it changes nothing, because a client that was killed
  looks exactly like one that has finished.

Between two hosts the batches of a shard that moves, or gets a standby, go as a stream of ``BATCHES`` rows. The metadata
of its schema has the last batch that the shard contains (``POSITION``) and, for a standby, the batch that is staged
(``STAGED``). The rows of a batch are adjacent, and the batches are in order. What a task stages goes on to a standby as
``REQUEST`` rows. ``Forward``, which comes ahead of them, says how many.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Final, Self

import attrs
import numpy as np
import pyarrow as pa

from ...storage.ids import BatchId
from ..format.arrow import BYTES
from ..format.columns import Columns
from .access import Entries, ShardColumn

REQUEST: Final = pa.schema([("shard", pa.int32()), ("key", BYTES), ("value", BYTES)])
ANSWER: Final = pa.schema([("value", BYTES)])

BATCHES: Final = pa.schema([("batch", pa.int64()), ("key", BYTES), ("value", BYTES)])
POSITION: Final = b"position"

FETCH: Final = b"fetch"
SCAN: Final = b"scan"
APPLY: Final = b"apply"
COMMIT: Final = b"commit "
STAGED: Final = b"staged"

ROWS: Final = 32 * 1024
"""The most rows in a message."""
SIZE: Final = 16 * 1024 * 1024
"""The most bytes of keys and values in a message, unless a single row is larger."""
LARGEST: Final = (1 << 31) - 2 * SIZE
"""The most bytes of a key with its value: with others of a page, they fit into a message, which has less than 2 GiB."""


def messages(*columns: pa.Array) -> Iterator[tuple[int, int]]:
    """Yield (start, stop) of the rows of each message. The columns are of type ``BYTES``."""
    rows = len(columns[0])
    ends = np.sum([_offsets(column) for column in columns], axis=0) if rows else np.zeros(1, np.int64)
    start = 0
    while start < rows:
        fitting = int(np.searchsorted(ends, ends[start] + SIZE, side="right")) - 1
        stop = min(start + ROWS, rows, max(fitting, start + 1))
        yield start, stop
        start = stop


def runs(shards: ShardColumn) -> Iterator[tuple[int, int, int]]:
    """Yield (shard, start, stop) for each run of rows of one shard."""
    if not len(shards):
        return
    starts = [0, *(np.flatnonzero(shards[1:] != shards[:-1]) + 1).tolist()]
    stops = [*starts[1:], len(shards)]
    yield from zip(shards[starts].tolist(), starts, stops, strict=True)


@attrs.frozen
class HandedOver:
    """What a host has of a shard that another one does not have yet."""

    position: BatchId
    """The last batch that the state contains."""
    batches: list[tuple[BatchId, dict[bytes, bytes | None]]]
    """The batches after the one that was asked for, with their changes, in their order."""
    staged: BatchId | None = None
    """The batch, the last one, that is only staged. None: only applied ones are asked for, or nothing is staged."""

    def pack(self) -> tuple[pa.Schema, Iterator[pa.RecordBatch]]:
        """Return the schema and the rows of a stream with it."""
        metadata = {POSITION: str(self.position)} | (
            {} if self.staged is None else {STAGED: str(self.staged)}
        )
        schema = BATCHES.with_metadata(metadata)
        return schema, (some.replace_schema_metadata(schema.metadata) for some in pack_batches(self.batches))

    @classmethod
    def unpack(cls, schema: pa.Schema, rows: Iterable[pa.RecordBatch]) -> Self:
        """Return what ``pack`` packed. Batches without changes are left out."""
        staged = schema.metadata.get(STAGED)
        batches = list(unpack_batches(rows))
        position = BatchId(int(schema.metadata[POSITION]))
        return cls(position, batches, None if staged is None else BatchId(int(staged)))


@attrs.frozen(eq=False)
class ScanPage:
    """A part of the result of a scan."""

    entries: Entries
    complete: bool
    """Whether nothing follows."""

    @classmethod
    def of(
        cls, shards: Sequence[int], keys: Sequence[bytes], values: Sequence[bytes], *, complete: bool
    ) -> Self:
        """Return the page of these rows."""
        entries = Entries(np.asarray(shards, np.int32), pa.array(keys, BYTES), pa.array(values, BYTES))
        return cls(entries, complete)

    def pack(self) -> tuple[pa.RecordBatch, bytes]:
        """Return the page as a batch of ``ANSWER``, first the keys and then the values, and its metadata."""
        column = pa.concat_arrays([self.entries.keys, self.entries.values])
        metadata = bytes([self.complete]) + self.entries.shards.astype("<i4").tobytes()
        return pa.record_batch([column], schema=ANSWER), metadata

    @classmethod
    def unpack(cls, batch: pa.RecordBatch, metadata: bytes) -> Self:
        """Return the page that ``pack`` packed."""
        shards = np.frombuffer(metadata, "<i4", offset=1)
        column, rows = batch.column(0), len(shards)
        return cls(Entries(shards, column.slice(0, rows), column.slice(rows)), bool(metadata[0]))


def pack_batches(batches: Iterable[tuple[int, Mapping[bytes, bytes | None]]]) -> Iterator[pa.RecordBatch]:
    """Yield batches with their changes as ``BATCHES`` rows."""
    for batch, entries in batches:
        yield from _pack(batch, Columns.of(entries), BATCHES)


def unpack_batches(rows: Iterable[pa.RecordBatch]) -> Iterator[tuple[BatchId, dict[bytes, bytes | None]]]:
    """Yield the batches that ``pack_batches`` packed. One without changes is left out."""
    known: tuple[BatchId, dict[bytes, bytes | None]] | None = None
    for some in rows:
        batch = some.column(0)[0].as_py()
        entries = Columns(some.column(1), some.column(2)).entries()
        if known is not None and known[0] == batch:
            known[1].update(entries)
            continue
        if known is not None:
            yield known
        known = batch, entries
    if known is not None:
        yield known


def pack_changes(changes: Mapping[int, Columns]) -> Iterator[pa.RecordBatch]:
    """Yield the changes of shards as ``REQUEST`` rows."""
    for shard, columns in changes.items():
        yield from _pack(shard, columns, REQUEST)


def unpack_changes(rows: pa.RecordBatch) -> Iterator[tuple[int, Columns]]:
    """Yield the changes of each shard in ``REQUEST`` rows."""
    columns = Columns(rows.column(1), rows.column(2))
    for shard, start, stop in runs(rows.column(0).to_numpy()):
        yield shard, columns.slice(start, stop)


def _pack(number: int, columns: Columns, schema: pa.Schema) -> Iterator[pa.RecordBatch]:
    """Yield rows of which each begins with the same number."""
    for start, stop in messages(columns.keys, columns.values):
        some = columns.slice(start, stop)
        numbers = pa.repeat(pa.scalar(number, schema.field(0).type), len(some))
        yield pa.record_batch([numbers, some.keys, some.values], schema=schema)


def _offsets(column: pa.Array) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
    offsets = np.frombuffer(column.buffers()[1], np.int64)
    return offsets[column.offset : column.offset + len(column) + 1]
