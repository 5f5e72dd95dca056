"""The windows of event time that a row is in, in place of ``pyspark.sql.functions.window``, which needs a session."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta

import attrs
from pyspark.sql.types import StructField, StructType, TimestampType

from ..aggregation.windows import SESSION_WINDOW, WINDOW, WindowColumn
from ..errors import invalid_argument

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_BOUNDS = StructType().add("start", TimestampType()).add("end", TimestampType())


@attrs.frozen
class SessionWindow:
    """Sessions as ``pyspark.sql.functions.session_window`` makes them."""

    column: str
    """The column of the rows with the event time, which has the watermark in production."""
    gap_ms: int
    """A session ends so many milliseconds after its last row."""

    def __attrs_post_init__(self) -> None:
        if self.gap_ms <= 0:
            raise invalid_argument("gap_ms", "milliseconds above 0", repr(self.gap_ms))

    @property
    def output(self) -> WindowColumn:
        """The column of the output that has the session."""
        return WindowColumn(StructField(SESSION_WINDOW, _BOUNDS), are_sessions=True)

    def of(self, time: datetime | None) -> Iterator[tuple[datetime, datetime]]:
        """Yield the start and the end of the session that a row begins; none for None."""
        if time is not None:
            at = time if time.tzinfo else time.replace(tzinfo=UTC)
            yield at, at + timedelta(milliseconds=self.gap_ms)


@attrs.frozen
class TimeWindow:
    """Windows as ``pyspark.sql.functions.window`` makes them."""

    column: str
    """The column of the rows with the event time, which has the watermark in production."""
    length_ms: int
    slide_ms: int | None = None
    """Milliseconds from the start of a window to that of the next one; None: the length, so that none overlap."""
    offset_ms: int = 0
    """Milliseconds from 1970 to the start of a window."""

    def __attrs_post_init__(self) -> None:
        if self.length_ms <= 0:
            raise invalid_argument("length_ms", "milliseconds above 0", repr(self.length_ms))
        if not 0 < self.slide <= self.length_ms:
            expected = f"milliseconds above 0 and at most the length, {self.length_ms}"
            raise invalid_argument("slide_ms", expected, repr(self.slide_ms))

    @property
    def output(self) -> WindowColumn:
        """The column of the output that has the window."""
        return WindowColumn(StructField(WINDOW, _BOUNDS), are_sessions=False)

    @property
    def slide(self) -> int:
        """``slide_ms``, or the length."""
        return self.length_ms if self.slide_ms is None else self.slide_ms

    def of(self, time: datetime | None) -> Iterator[tuple[datetime, datetime]]:
        """Yield the start and the end of each window that a time is in; none for None."""
        if time is None:
            return
        at = (time if time.tzinfo else time.replace(tzinfo=UTC)) - _EPOCH
        length, slide = timedelta(milliseconds=self.length_ms), timedelta(milliseconds=self.slide)
        start = at - (at - timedelta(milliseconds=self.offset_ms)) % slide
        while start + length > at:
            yield _EPOCH + start, _EPOCH + start + length
            start -= slide
