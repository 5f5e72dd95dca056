"""The time mode of a processor: by which clock its timers run, and which rows are late.

As in Spark (found by experiment on 4.3), the processing time of a batch is when Spark planned it. In event time, the
watermark of batch N is the greatest event time of the batches before it, minus the delay. A row of batch N is late, and
dropped, if its event time is not after the watermark of batch N-1. A row without an event time is never late.
"""

from __future__ import annotations

import enum
from typing import Final

import attrs
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql.streaming.stateful_processor import TimerValues
from pyspark.sql.types import StructType

from ..errors import invalid_argument
from ..rpc.messages import BatchTimes

_DELAY: Final = "spark.watermarkDelayMs"
"""The key of a watermark's delay in the metadata of its column."""


class TimeMode(enum.StrEnum):
    """The clock of timers and times to live."""

    NONE = "None"
    """Neither timers nor times to live."""
    PROCESSING = "ProcessingTime"
    """Timers and times to live by the time at which Spark planned the batch."""
    EVENT = "EventTime"
    """Timers by the watermark; late rows are dropped."""

    @classmethod
    def read(cls, text: str) -> TimeMode:
        """Return the mode with this name in PySpark, in upper or lower case.

        Raises:
            DefinitionError: there is no such mode.
        """
        by_name = {mode.value.lower(): mode for mode in cls}
        found = by_name.get(text.lower()) if isinstance(text, str) else None
        if found is None:
            raise invalid_argument("time_mode", "'None', 'ProcessingTime' or 'EventTime'", repr(text))
        return found

    def timer_values(self, times: BatchTimes) -> TimerValues:
        """Return the times of a batch as a processor gets them."""
        if self is TimeMode.NONE:
            return TimerValues(-1, -1)
        return TimerValues(times.timestamp_ms, times.watermark_ms)

    def until(self, times: BatchTimes) -> int:
        """Return the last time for which timers are due in a batch."""
        return times.watermark_ms if self is TimeMode.EVENT else times.timestamp_ms


def check_output_mode(text: str) -> None:
    """Refuse an output mode other than "append" and "update". A processor does the same in both.

    Raises:
        DefinitionError: it is another mode.
    """
    if not isinstance(text, str) or text.lower() not in ("append", "update"):
        raise invalid_argument("output_mode", "'append' or 'update'", repr(text))


@attrs.frozen
class EventTime:
    """The column with the event time: a timestamp, or a window, whose end counts."""

    column: str
    window: bool

    @classmethod
    def of(cls, schema: StructType) -> EventTime | None:
        """Return the first column of a stream with a watermark; None if no column has one."""
        for field in schema.fields:
            if _DELAY in field.metadata:
                return cls(field.name, isinstance(field.dataType, StructType))
        return None

    def without_late(self, table: pa.Table, late_ms: int) -> pa.Table:
        """Return the rows of a table that are not late.

        Args:
            table: has the column.
            late_ms: the watermark of the batch before, in milliseconds since 1970; 0 if there is none.
        """
        times = table.column(self.column)
        if self.window:
            times = pc.struct_field(times, "end")
        micros = times.cast(pa.timestamp("us", times.type.tz)).cast(pa.int64())
        kept = pc.fill_null(pc.greater(micros, late_ms * 1000), True)
        return table if pc.all(kept, min_count=0).as_py() else table.filter(kept)
