"""What stands for a newer PySpark's own on 4.1. Only the tests with the marker ``compat`` run on 4.1 itself."""

from __future__ import annotations

from pyspark.sql.types import ArrayType, MapType, StringType, StructType, TimestampNTZType, TimestampType

from chandy.state.pyspark_versions import _in_zone, arrow_type

ZONE = "America/New_York"
TIMES = (
    StructType()
    .add("t", TimestampType())
    .add("n", TimestampNTZType())
    .add("a", ArrayType(TimestampType(), containsNull=False))
    .add("m", MapType(TimestampType(), StructType().add("t", TimestampType(), nullable=False)))
    .add("s", StringType())
)


def test_the_time_zone_of_an_arrow_type_is_changed_wherever_it_is() -> None:
    assert _in_zone(arrow_type(TIMES, "UTC"), ZONE) == arrow_type(TIMES, ZONE)
    assert arrow_type(TIMES, "UTC") != arrow_type(TIMES, ZONE)
