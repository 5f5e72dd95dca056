"""Reads the times of a query's batches from the offset log and the commit log in its working directory.

Spark writes a file for each batch: into the offset log before the batch runs, and into the commit log after it. The
first line is the version of the format (``v1`` or ``v2`` in the offset log), the second is JSON. In both logs and
formats the JSON has the times of the batch.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import attrs

from ...storage.ids import NO_BATCH, BatchId
from ..errors import UnreadableFileError
from ..rpc.messages import BatchTimes


def batch_times(directory: Path, batch: BatchId, *, single_watermark: bool = False) -> BatchTimes:
    """Return the times of a planned batch; every call returns the same.

    The watermark of batch N is the greatest event time up to batch N-1, minus the delay. In batch N, Spark treats rows
    as late by the watermark of batch N-1. So a row that a timer makes an operator emit in batch N is not late for the
    next operator.

    Args:
        directory: the query's working checkpoint directory.
        single_watermark: whether the query runs with ``spark.sql.streaming.statefulOperator.allowMultiple``
            switched off. Spark then treats rows as late by the batch's own watermark.

    Raises:
        UnreadableFileError: the offset log does not have the batch, or is not as Spark writes it.
    """
    own = _read(directory / "offsets" / str(batch))
    if own is None:
        raise _unreadable(directory / "offsets" / str(batch), "a planned batch", "no file")
    watermark = own.number("batchWatermarkMs")
    # A query that begins with this batch has no earlier batch, and no row is late for it.
    before = own if single_watermark else _read(directory / "offsets" / str(batch - 1))
    return BatchTimes(
        timestamp_ms=own.number("batchTimestampMs"),
        watermark_ms=watermark,
        late_ms=before.number("batchWatermarkMs") if before else 0,
    )


def watermark_after(directory: Path, batch: BatchId) -> int:
    """Return the watermark of the batch that follows a committed batch.

    Raises:
        UnreadableFileError: the commit log does not have the batch, or is not as Spark writes it.
    """
    found = _read(directory / "commits" / str(batch))
    if found is None:
        raise _unreadable(directory / "commits" / str(batch), "a committed batch", "no file")
    return found.number("nextBatchWatermarkMs")


def newest_committed(directory: Path) -> BatchId:
    """Return the newest batch in the commit log, -1 if none has committed."""
    try:
        names = [path.name for path in (directory / "commits").iterdir()]
    except FileNotFoundError:
        return NO_BATCH
    return max((BatchId(int(name)) for name in names if name.isdecimal()), default=NO_BATCH)


@attrs.frozen
class _Logged:
    path: Path
    fields: dict[str, Any]

    def number(self, name: str) -> int:
        found = self.fields.get(name)
        if not isinstance(found, int):
            raise _unreadable(self.path, f"a whole number {name!r}", repr(found))
        return found


def _read(path: Path) -> _Logged | None:
    """Return the JSON line of a batch, None if the log does not have the batch."""
    try:
        # In the offset log, the offsets of the sources follow, which may be long.
        found = json.loads(path.read_text().split("\n", 2)[1])
    except FileNotFoundError:
        return None
    except (IndexError, ValueError) as error:
        raise _unreadable(path, "a line with a version and one of JSON", repr(error)) from error
    if not isinstance(found, dict):
        raise _unreadable(path, "a JSON object", repr(found))
    return _Logged(path, found)


def _unreadable(path: Path, expected: str, found: str) -> UnreadableFileError:
    return UnreadableFileError(
        f"cannot read Spark's log {path}",
        expected,
        found,
        "let nothing but Spark write into a query's working directory, and use Spark 4.1 to 4.3",
    )
