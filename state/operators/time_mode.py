"""The time mode of a processor: by which clock its timers run, and which rows are late.

As in Spark (found by experiment on 4.3), the processing time of a batch is when Spark planned it. In event time, the
watermark of batch N is the greatest event time of the batches before it, minus the delay. A row of batch N is late, and
dropped, if its event time is not after the watermark of batch N-1. A row without an event time is never late.
"""

from __future__ import annotations

import enum
from datetime import UTC, datetime
from typing import Final

import attrs
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql.streaming.stateful_processor import TimerValues
from pyspark.sql.types import StructField, StructType, TimestampType

from ..errors import OutputTypeError, invalid_argument
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
        """Return the column of a stream that has a watermark; None if no column has one.

        Raises:
            DefinitionError: several columns have one, as after a join. Which of them counts is not known.
        """
        marked = [field for field in schema.fields if _DELAY in field.metadata]
        if len(marked) > 1:
            raise invalid_argument(
                "df",
                f"one column with a watermark for {TimeMode.EVENT.value!r}",
                f"the columns {', '.join(field.name for field in marked)}",
                "select one of them, or cast the others, such as col.cast('timestamp_ntz')",
            )
        return next((cls(field.name, isinstance(field.dataType, StructType)) for field in marked), None)

    def without_late(self, table: pa.Table, late_ms: int) -> pa.Table:
        """Return the rows of a table that are not late.

        Args:
            table: has the column.
            late_ms: the watermark of the batch before, in milliseconds since 1970; 0 if there is none.
        """
        late = self._late(table, late_ms)
        return table.filter(pc.invert(late)) if pc.any(late).as_py() else table

    def check_output(self, batch: pa.RecordBatch, late_ms: int, operator: str) -> pa.RecordBatch:
        """Return the output of an operator if no row is late, which later operators would drop without a word.

        Args:
            batch: has the column.
            late_ms: as for ``without_late``.
            operator: its uid, for errors.

        Raises:
            OutputTypeError: a row is late.
        """
        late = self._late(batch, late_ms)
        if pc.any(late).as_py():
            first = batch.column(self.column).filter(late)[0].as_py()
            watermark = datetime.fromtimestamp(late_ms / 1000, UTC)
            expected = f"an event time after the watermark, {watermark}: later operators would drop the row"
            raise OutputTypeError(operator, f"output column {self.column!r}", expected, str(first))
        return batch

    def _late(self, rows: pa.Table | pa.RecordBatch, late_ms: int) -> pa.Array | pa.ChunkedArray:
        """Return for each row whether it is late."""
        times = rows.column(self.column)
        if self.window:
            times = pc.struct_field(times, "end")
        micros = times.cast(pa.timestamp("us", times.type.tz)).cast(pa.int64())
        return pc.fill_null(pc.less_equal(micros, late_ms * 1000), False)


def with_watermark(schema: StructType, column: str) -> StructType:
    """Return a schema in which a column has a watermark without a delay, as Spark marks it.

    Raises:
        DefinitionError: there is no such column.
    """
    if column not in schema.names:
        raise invalid_argument("watermark", f"one of the columns {', '.join(schema.names)}", repr(column))
    return StructType(
        [
            StructField(one.name, one.dataType, one.nullable, one.metadata | {_DELAY: 0})
            if one.name == column
            else one
            for one in schema.fields
        ]
    )


def carry_watermark(source: StructType, output: StructType, column: str) -> StructType:
    """Return the schema of an operator's output, in which a column has the event time of its rows.

    Spark tells the column with the event time by its metadata. The watermark itself is that of the whole query, so the
    operators after this one see the same watermark in every batch as this one.

    Args:
        source: schema of the operator's input, which has a column with a watermark.
        output: schema of its output.
        column: name of the column.

    Raises:
        DefinitionError: the input has no watermark, or the output has no such column of type timestamp.
    """
    delay = next((field.metadata[_DELAY] for field in source.fields if _DELAY in field.metadata), None)
    if delay is None:
        expected = "an input with the column that df.withWatermark(column, delay) was given"
        raise invalid_argument("event_time_column", expected, f"columns {', '.join(source.names)}")
    if column not in output.names or not isinstance(output[column].dataType, TimestampType):
        stamps = [field.name for field in output.fields if isinstance(field.dataType, TimestampType)]
        expected = f"a column of type timestamp in the output ({', '.join(stamps) or 'it has none'})"
        raise invalid_argument("event_time_column", expected, repr(column))
    fields = [
        StructField(field.name, field.dataType, field.nullable, field.metadata | {_DELAY: delay})
        if field.name == column
        else field
        for field in output.fields
    ]
    return StructType(fields)
