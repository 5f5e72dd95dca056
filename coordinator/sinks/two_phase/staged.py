"""Sinks that stage rows as Parquet files in the pipeline's own store, and publish them from there.

It suits any target and any downtime: no transaction stays open between checkpoints, and nothing at all reaches the
target before the checkpoint is complete.
"""

from __future__ import annotations

import hashlib
import io
import re
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Final

import attrs

from ....storage.backends.open import open_store
from ....storage.checkpoints.manifest import FileRef
from ....storage.checkpoints.restore import read_file
from ....storage.store import Store
from .contract import Batch, Epoch, Staged, TwoPhaseSink, WriteContext
from .errors import OutputError

if TYPE_CHECKING:
    import pyarrow as pa

FILE_BYTES: Final = 64 << 20
"""Bytes of rows, as Arrow has them, after which a task begins another file. A committer has one file in memory."""
SUFFIX: Final = ".parquet"
_NAME: Final = re.compile(rf"(\d+)-\d+-\d+-[0-9a-f]+{re.escape(SUFFIX)}")
"""The name of a staged file: batch, partition, number, and what tells attempts apart."""


class StagedSink(TwoPhaseSink):
    """A sink whose tasks write Parquet files into the pipeline's own store. Subclasses say how to publish them."""

    def write(self, batches: Iterator[pa.RecordBatch], context: WriteContext) -> Staged:
        """Write one partition of a batch as files of at most about 64 MB of rows.

        Raises:
            OutputError: rows can be written and never published.
        """
        store = open_store(context.store)
        rows, files = 0, list[FileRef]()
        for some in map(in_utc, _in_parts(batches)):
            if found := self.unpublishable(some):
                raise refused(self, context.batch, found)
            rows += some.num_rows
            files.append(_put(store, context, some, len(files)))
        return Staged(rows, tuple(files))

    def unpublishable(self, rows: pa.Table) -> str | None:
        """Say which rows can be staged and never published; None if there are none.

        What the schema tells is for ``check``. Values are looked at here, while their batch can still fail.
        """
        return None


def refused(sink: TwoPhaseSink, batch: int, found: str) -> OutputError:
    """Return the error for rows of a batch that a sink could never publish."""
    return OutputError(
        f"sink {sink.uid!r} cannot take batch {batch}",
        f"rows that {sink.target} can have",
        found,
        "leave out these rows in the query, or change their values",
    )


@attrs.frozen
class StagedRows:
    """The rows of an epoch, in the order of their batches, or of one batch; within a batch the order is undefined."""

    of: Epoch | Batch

    def tables(self) -> Iterator[pa.Table]:
        """Yield the rows, file after file. All tables that one version of the query wrote are alike.

        Raises:
            DamagedError, ObjectMissingError: a file is not as it was written.
            StoreFailedError: the store cannot be read.
        """
        import pyarrow.parquet as pq

        for data in self.files():
            yield pq.read_table(io.BytesIO(data))

    def files(self) -> Iterator[bytes]:
        """Yield the bytes of each file. All were verified.

        Raises:
            As ``tables``.
        """
        store = open_store(self.of.root)
        for file in self.of.files:
            yield read_file(store, file)


def batches_of(files: Iterable[FileRef]) -> tuple[int, ...]:
    """Return the numbers of the batches whose rows are in staged files, ascending; not those of other files."""
    return tuple(sorted({batch for file in files if (batch := batch_of(file)) is not None}))


def batch_of(file: FileRef) -> int | None:
    """Return the number of the batch whose rows are in a staged file; None if it is another file."""
    found = _NAME.fullmatch(file.name)
    return int(found[1]) if found else None


def in_utc(rows: pa.Table) -> pa.Table:
    """Return rows with all timestamps in UTC. The moments stay."""
    schema = rows.schema
    for at, field in enumerate(schema):
        schema = schema.set(at, field.with_type(_type_in_utc(field.type)))
    return rows if schema == rows.schema else rows.cast(schema)


def _type_in_utc(given: pa.DataType) -> pa.DataType:
    import pyarrow as pa

    if pa.types.is_timestamp(given):
        return given if given.tz is None else pa.timestamp(given.unit, "UTC")
    if pa.types.is_struct(given):
        return pa.struct([field.with_type(_type_in_utc(field.type)) for field in given])
    if pa.types.is_map(given):
        return pa.map_(
            given.key_field.with_type(_type_in_utc(given.key_type)),
            given.item_field.with_type(_type_in_utc(given.item_type)),
        )
    if pa.types.is_list(given) or pa.types.is_large_list(given):
        make = pa.list_ if pa.types.is_list(given) else pa.large_list
        return make(given.value_field.with_type(_type_in_utc(given.value_type)))
    return given


def _in_parts(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.Table]:
    import pyarrow as pa

    some: list[pa.RecordBatch] = []
    size = 0
    for batch in batches:
        if not batch.num_rows:
            continue
        some.append(batch)
        size += batch.nbytes
        if size >= FILE_BYTES:
            yield pa.Table.from_batches(some)
            some, size = [], 0
    if some:
        yield pa.Table.from_batches(some)


def _put(store: Store, context: WriteContext, rows: pa.Table, number: int) -> FileRef:
    import pyarrow.parquet as pq

    stream = io.BytesIO()
    pq.write_table(rows, stream, compression="zstd", compression_level=1)
    data = stream.getvalue()
    name = context.new_name(SUFFIX, number)
    key = f"{context.folder}{name}"
    store.write(key, data)
    return FileRef(name, key, len(data), hashlib.sha256(data).hexdigest())
