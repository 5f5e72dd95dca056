"""What time means to a processor: its time mode, the times that it is told, and which rows come too late for it.

As in Spark (found by experiment on 4.3): the time of a batch is when Spark planned it. In event time, the watermark
of batch N is the greatest event time of the batches before it, less the delay; a row is late if its event time is
not after the watermark of batch N-1, and is not seen then. A row without an event time is never late.
"""

from __future__ import annotations

import enum
from typing import Final

import attrs
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql.streaming.stateful_processor import TimerValues
from pyspark.sql.types import StructType

from ..errors import DefinitionError
from ..rpc.messages import BatchTimes

_DELAY: Final = "spark.watermarkDelayMs"
"""Key under which Spark keeps a watermark's delay in the metadata of its column."""


class TimeMode(enum.StrEnum):
    """By which clock timers and times to live run."""

    NONE = "None"
    """There are neither."""
    PROCESSING = "ProcessingTime"
    """Timers and times to live, by the time at which Spark planned the batch."""
    EVENT = "EventTime"
    """Timers by the watermark; late rows are dropped."""

    @classmethod
    def read(cls, text: str) -> TimeMode:
        """Return the mode that PySpark calls by this name, in upper or lower case.

        Raises:
            DefinitionError: there is none.
        """
        by_name = {mode.value.lower(): mode for mode in cls}
        found = by_name.get(text.lower()) if isinstance(text, str) else None
        if found is None:
            raise DefinitionError("time_mode", "'None', 'ProcessingTime' or 'EventTime'", repr(text))
        return found

    def timer_values(self, times: BatchTimes) -> TimerValues:
        """Return what a processor is told of the time of a batch."""
        if self is TimeMode.NONE:
            return TimerValues(-1, -1)
        return TimerValues(times.timestamp_ms, times.watermark_ms)

    def until(self, times: BatchTimes) -> int:
        """Return the time up to which, and including it, timers are due in a batch."""
        return times.watermark_ms if self is TimeMode.EVENT else times.timestamp_ms


def check_output_mode(text: str) -> None:
    """Refuse an output mode in which a processor cannot run. In the others it does the same: every row it gives is new.

    Raises:
        DefinitionError: it is none of PySpark's, or it is "complete".
    """
    if not isinstance(text, str) or text.lower() not in ("append", "update"):
        raise DefinitionError("output_mode", "'append' or 'update'", repr(text))


@attrs.frozen
class EventTime:
    """The column that says when an event was: a timestamp, or a window whose end counts."""

    column: str
    window: bool

    @classmethod
    def of(cls, schema: StructType) -> EventTime | None:
        """Return the first column of a stream that carries its watermark; None if it has none."""
        for field in schema.fields:
            if _DELAY in field.metadata:
                return cls(field.name, isinstance(field.dataType, StructType))
        return None

    def without_late(self, table: pa.Table, late_ms: int) -> pa.Table:
        """Return the rows of a table that are not late.

        Args:
            table: has the column.
            late_ms: the watermark of the batch before, in milliseconds since 1970; 0 if there was none.
        """
        times = table.column(self.column)
        if self.window:
            times = pc.struct_field(times, "end")
        micros = times.cast(pa.timestamp("us", times.type.tz)).cast(pa.int64())
        kept = pc.fill_null(pc.greater(micros, late_ms * 1000), True)
        return table if pc.all(kept, min_count=0).as_py() else table.filter(kept)
