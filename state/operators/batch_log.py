"""Reads when the batches of a query are, from the logs in its working checkpoint directory.

Spark writes a batch's line into the offset log before the batch runs, and into the commit log after it. A file
has a line with the version of its format, in the offset log ``v1`` or ``v2``, and then one of JSON; in both
formats that begins with the times of the batch.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import attrs

from ..errors import BatchLogError
from ..rpc.messages import BatchTimes


def batch_times(directory: Path, batch: int, *, single_watermark: bool = False) -> BatchTimes:
    """Return when a planned batch is; the same at every call.

    The watermark of batch N is the greatest event time up to batch N-1, less the delay. What Spark takes for late
    is what lies before the watermark of batch N-1: so a row that an operator of batch N sends on because of a
    timer is not late for the next operator.

    Args:
        directory: the query's working checkpoint directory.
        batch: the batch.
        single_watermark: whether the query runs with ``spark.sql.streaming.statefulOperator.allowMultiple``
            switched off; Spark then takes for late what lies before the batch's own watermark.

    Raises:
        BatchLogError: the offset log does not have the batch, or is not as Spark writes it.
    """
    own = _read(directory / "offsets" / str(batch))
    if own is None:
        raise BatchLogError(str(directory / "offsets" / str(batch)), "a planned batch", "no file")
    watermark = own.number("batchWatermarkMs")
    # A query that begins with this batch has no earlier one, and nothing is late for it.
    before = own if single_watermark else _read(directory / "offsets" / str(batch - 1))
    return BatchTimes(
        timestamp_ms=own.number("batchTimestampMs"),
        watermark_ms=watermark,
        late_ms=before.number("batchWatermarkMs") if before else 0,
    )


def watermark_after(directory: Path, batch: int) -> int:
    """Return the watermark for the batch after a committed one.

    Raises:
        BatchLogError: the commit log does not have the batch, or is not as Spark writes it.
    """
    found = _read(directory / "commits" / str(batch))
    if found is None:
        raise BatchLogError(str(directory / "commits" / str(batch)), "a committed batch", "no file")
    return found.number("nextBatchWatermarkMs")


def newest_committed(directory: Path) -> int:
    """Return the newest batch in the commit log, -1 if none has committed."""
    try:
        names = [path.name for path in (directory / "commits").iterdir()]
    except FileNotFoundError:
        return -1
    return max((int(name) for name in names if name.isdecimal()), default=-1)


@attrs.frozen
class _Logged:
    path: Path
    fields: dict[str, Any]

    def number(self, name: str) -> int:
        found = self.fields.get(name)
        if not isinstance(found, int):
            raise BatchLogError(str(self.path), f"a whole number {name!r}", repr(found))
        return found


def _read(path: Path) -> _Logged | None:
    """Return what a log says of a batch, None if the log does not have it."""
    try:
        # The offsets of the sources follow in the offset log, and may be long.
        found = json.loads(path.read_text().split("\n", 2)[1])
    except FileNotFoundError:
        return None
    except (IndexError, ValueError) as error:
        raise BatchLogError(str(path), "a line with a version and one of JSON", repr(error)) from error
    if not isinstance(found, dict):
        raise BatchLogError(str(path), "a JSON object", repr(found))
    return _Logged(path, found)
