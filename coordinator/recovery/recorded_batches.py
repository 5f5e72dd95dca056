"""Reads what can be recorded of the batches of a query, as its working directory and its sink have it now."""

from __future__ import annotations

import contextlib
from pathlib import Path

from ...storage.checkpoints.batch_record import BatchRecord, BatchRecords
from ...storage.ids import BatchId
from ...storage.logs import logger
from ..errors import IncompleteDirectoryError
from ..sinks.sink import Sink
from ..spark.batch_entries import read_entry
from ..spark.listing import numbers_in

log = logger(__name__)


def read_records(directory: Path, sink: Sink, after: BatchId, up_to: BatchId) -> BatchRecords:
    """Return the records of the batches behind one, up to another one.

    A batch whose entries Spark has deleted is left out, and the reader of the records says so: no checkpoint fails for
    want of a record.

    Args:
        directory: the query's working directory. The query may be running.
        sink: the query's sink.
        after: the batch behind which the records begin.
        up_to: the last one, which has committed.
    """
    found = list[BatchRecord]()
    planned = map(BatchId, numbers_in(directory / "offsets"))
    for batch in sorted(batch for batch in planned if after < batch <= up_to):
        with contextlib.suppress(IncompleteDirectoryError, OSError, ValueError):
            offsets, sources = read_entry(directory, batch)
            found.append(BatchRecord(batch, offsets, sources, sink.digests(batch)))
    records = BatchRecords(after, tuple(found))
    if missing := records.missing(up_to):
        log.warning("cannot record batches", first=missing[0], last=missing[-1], count=len(missing))
    return records
