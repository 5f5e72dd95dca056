"""Time modes and output modes as PySpark names them, and rows that come too late."""

import datetime

import pyarrow as pa
import pytest
from pyspark.sql.types import LongType, StructField, StructType, TimestampNTZType, TimestampType

from chandy.state.errors import DefinitionError
from chandy.state.operators.time_mode import (
    EventTime,
    TimeMode,
    carry_watermark,
    check_output_mode,
)
from chandy.state.rpc.messages import BatchTimes

DELAY = {"spark.watermarkDelayMs": 1000}
PLAIN = StructType().add("n", LongType()).add("t", TimestampType())
MARKED = StructType([StructField("n", LongType()), StructField("t", TimestampType(), True, DELAY)])


@pytest.mark.parametrize(
    "text", ["None", "none", "processingTime", "PROCESSINGTIME", "EventTime", "eventtime"]
)
def test_a_time_mode_may_be_written_in_upper_and_lower_case(text):
    assert TimeMode.read(text).value.lower() == text.lower()


@pytest.mark.parametrize("text", ["", "event", None, 5])
def test_another_time_mode_is_refused(text):
    with pytest.raises(DefinitionError, match="time_mode: expected 'None', 'ProcessingTime' or 'EventTime'"):
        TimeMode.read(text)


def test_output_modes_are_append_and_update():
    for text in ("append", "Append", "update", "Update"):
        check_output_mode(text)
    for text in ("complete", "", None):
        with pytest.raises(DefinitionError, match="output_mode"):
            check_output_mode(text)


def test_the_event_time_is_the_column_that_carries_a_watermark():
    window = StructType().add("start", TimestampType()).add("end", TimestampType())
    assert EventTime.of(PLAIN) is None
    assert EventTime.of(MARKED) == EventTime("t", window=False)
    windowed = StructType([StructField("w", window, True, DELAY), *PLAIN.fields])
    assert EventTime.of(windowed) == EventTime("w", window=True)
    with pytest.raises(DefinitionError, match=r"one column with a watermark .* found the columns n, t"):
        EventTime.of(StructType([StructField(field.name, field.dataType, True, DELAY) for field in PLAIN]))


def test_an_operator_whose_input_lags_has_earlier_watermarks_and_the_same_processing_time():
    times = BatchTimes(timestamp_ms=9000, watermark_ms=7000, late_ms=6000)
    assert times.lagging(0) is times
    assert times.lagging(6500) == BatchTimes(timestamp_ms=9000, watermark_ms=500, late_ms=0)


def test_a_column_of_the_output_carries_the_watermark_of_the_input_on():
    output = StructType(
        [StructField("e", TimestampType(), True, {"of": "mine"}), StructField("n", LongType())]
    )
    carried = carry_watermark(MARKED, output, "e")
    assert carried["e"].metadata == {"of": "mine", "spark.watermarkDelayMs": 1000}
    assert (carried["n"], EventTime.of(carried)) == (output["n"], EventTime("e", window=False))
    assert EventTime.of(output) is None, "what was given is as it was"


@pytest.mark.parametrize(
    ("source", "column", "says"),
    [
        (PLAIN, "t", "an input with the column that df.withWatermark.* found columns n, t"),
        (MARKED, "n", r"a column of type timestamp in the output \(t\), found 'n'"),
        (MARKED, "time", r"found 'time'"),
    ],
)
def test_an_event_time_column_that_cannot_be_is_refused(source, column, says):
    with pytest.raises(DefinitionError, match=f"argument event_time_column: .*{says}"):
        carry_watermark(source, PLAIN, column)


@pytest.mark.parametrize("dtype", [TimestampType(), TimestampNTZType()])
@pytest.mark.parametrize("unit", ["us", "ns"])
def test_a_row_is_late_if_its_time_is_not_after_the_watermark_and_never_without_a_time(dtype, unit):
    zone = "America/New_York" if isinstance(dtype, TimestampType) else None
    micros = [-1, 0, 999_999, 1_000_000, 1_000_001, None, 5_000_000]
    times = pa.array(micros, pa.int64()).cast(pa.timestamp("us", zone)).cast(pa.timestamp(unit, zone))
    table = pa.table({"t": times, "n": range(len(micros))})
    event_time = EventTime("t", window=False)
    assert event_time.without_late(table, 1000).column("n").to_pylist() == [4, 5, 6]
    assert event_time.without_late(table, 0).column("n").to_pylist() == [2, 3, 4, 5, 6]
    assert event_time.without_late(table, -5) is table, "nothing is copied where nothing is late"
    assert event_time.without_late(table.slice(0, 0), 1000).num_rows == 0


def test_of_a_window_the_end_counts():
    start = datetime.datetime(1970, 1, 1, tzinfo=datetime.UTC)
    rows = [{"start": start, "end": start + datetime.timedelta(seconds=second)} for second in (9, 10, 11)]
    schema = pa.struct([("start", pa.timestamp("us", "UTC")), ("end", pa.timestamp("us", "UTC"))])
    table = pa.table({"w": pa.array([*rows, None], schema), "n": [9, 10, 11, 0]})
    assert EventTime("w", window=True).without_late(table, 10_000).column("n").to_pylist() == [11, 0]
