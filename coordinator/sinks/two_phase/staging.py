"""Has Spark's tasks write the rows of a batch, and keeps on the driver's disk what they have written.

The record of a batch is written before Spark's own that the batch has committed. So a query that resumes behind its
checkpoint, on the same machine, finds a record for every batch since then. The same goes for the digests of batches,
which are kept longer: as long as somebody may ask for them.
"""

from __future__ import annotations

import pickle
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Final

import attrs
from pyspark.sql.types import BinaryType, StructField, StructType

from ....state.operators.dataframe import Mapped
from ....storage.checkpoints.batch_record import Digest
from ....storage.codec import from_json, to_json
from ....storage.errors import CodecError
from ....storage.ids import BatchId
from ..sink import RECORDS
from .contract import Staged, WriteContext
from .task_results import Attempt
from .writing import Writing

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame


_DIGESTS: Final = "digests"
"""The folder in a query's working directory that has the digests of its batches."""
_KEPT: Final = 1000
"""How many batches have their digests there: more than Spark keeps the entries of, without which they are no use."""


@attrs.frozen
class _Record:
    """What was written of one batch, by partition."""

    staged: tuple[Staged, ...]


def write_batch(
    rows: DataFrame, sink: Writing, store: str, folder: str, batch: BatchId, attempt: Attempt
) -> tuple[Staged, ...]:
    """Run a batch: its tasks write their rows. Return what each partition has written, without empty ones.

    Args:
        rows: the micro-batch.
        sink: says how to write.
        store: URI of the pipeline's own store.
        folder: prefix of the keys in the store.
        batch: the batch's number.
        attempt: gets what each task has written once it has ended, also if the batch fails.
    """
    add = attempt.begin(rows.sparkSession.sparkContext)
    write = partial(
        _write_partition, sink=sink.for_rows(rows), store=store, folder=folder, batch=batch, add=add
    )
    # Not by mapInArrow, which takes a dot in a column's name for a way into a struct.
    found = (
        Mapped(write, rows.columns, StructType([StructField("staged", BinaryType())])).over(rows).collect()
    )
    staged = [pickle.loads(row["staged"]) for row in found]
    return tuple(one for one in staged if one.rows or one.note)


def _write_partition(
    batches: Iterator[pa.RecordBatch],
    sink: Writing,
    store: str,
    folder: str,
    batch: BatchId,
    add: Callable[[bytes], None],
) -> Iterator[pa.RecordBatch]:
    import pyarrow as pa
    from pyspark import TaskContext

    task = TaskContext.get()
    partition = task.partitionId() if task is not None else 0
    staged = pickle.dumps(sink.write(batches, WriteContext(store, folder, batch, partition)))
    add(staged)
    yield pa.RecordBatch.from_pydict({"staged": [staged]})


# --- records ------------------------------------------------------------------------------------------------


def write_record(directory: Path, batch: BatchId, staged: Sequence[Staged]) -> None:
    """Keep what was written of a batch in the query's working directory, instead of what was kept before."""
    _put(_path(directory, batch), _Record(tuple(staged)))


def read_records(directory: Path, after: BatchId, last: BatchId) -> dict[BatchId, tuple[Staged, ...]] | None:
    """Return what was written of the batches after one, up to a last one; None if a record is missing or damaged."""
    found = {}
    for batch in map(BatchId, range(after + 1, last + 1)):
        try:
            found[batch] = from_json(_Record, _path(directory, batch).read_bytes()).staged
        except (FileNotFoundError, CodecError):
            return None
    return found


def drop_records(directory: Path, up_to: BatchId) -> None:
    """Forget the batches that a completed checkpoint has."""
    folder = directory / RECORDS
    for path in folder.iterdir() if folder.is_dir() else ():
        if path.suffix == ".json" and int(path.stem) <= up_to:
            path.unlink(missing_ok=True)


def write_digest(directory: Path, batch: BatchId, digest: Digest) -> None:
    """Keep the digest of a batch in the query's working directory, and forget that of an old one."""
    _put(_digest_path(directory, batch), digest)
    _digest_path(directory, BatchId(batch - _KEPT)).unlink(missing_ok=True)


def read_digest(directory: Path, batch: BatchId) -> Digest | None:
    """Return the digest of a batch; None if none was taken, or it is forgotten or damaged."""
    try:
        return from_json(Digest, _digest_path(directory, batch).read_bytes())
    except (FileNotFoundError, CodecError):
        return None


def _path(directory: Path, batch: BatchId) -> Path:
    return directory / RECORDS / f"{batch}.json"


def _digest_path(directory: Path, batch: BatchId) -> Path:
    return directory / _DIGESTS / f"{batch}.json"


def _put(path: Path, value: object) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    new = path.with_suffix(".tmp")
    new.write_bytes(to_json(value))
    new.replace(path)
