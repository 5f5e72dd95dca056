"""What ``FilesSink`` accepts as files of a format, Spark reads back as it was; all else is refused before."""

from __future__ import annotations

import itertools
from pathlib import Path

import pyarrow as pa
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from pyspark.sql import SparkSession
from pyspark.sql.pandas.types import from_arrow_schema

from chandy.coordinator.connectors.files.formats import WRITERS, in_partitions, unwritable, unwritten
from chandy.coordinator.connectors.files.layout import DirectoryLayout
from chandy.coordinator.connectors.values import far_year
from chandy.coordinator.sinks.two_phase.staged import in_utc

from ..drawn_rows import rows_of, tables
from ..effort import sampled, trying

pytestmark = pytest.mark.spark

ZONES = ["UTC", "America/New_York", "Asia/Kathmandu"]
AS_DOCUMENTED = {"escape": '"', "header": "true", "multiLine": "true"}
"""How the sink's documentation says that Spark reads its CSV."""
_numbers = itertools.count()


def read(spark: SparkSession, folder: Path, format: str, schema: pa.Schema) -> pa.Table:
    reader = spark.read.schema(from_arrow_schema(schema)).option("mode", "FAILFAST")
    if format == "csv":
        reader = reader.options(**AS_DOCUMENTED)
    return reader.format(format).load(str(folder)).toArrow()


@pytest.mark.parametrize("format", sampled(["parquet", "json", "csv"], 1))
def test_what_is_accepted_is_read_back_as_it_was(format: str, spark: SparkSession, tmp_path: Path) -> None:
    @trying(15)
    @given(tables(), st.sampled_from(ZONES), st.data())
    def check(case: tuple[pa.Table, tuple[str, ...]], zone: str, data: st.DataObject) -> None:
        rows, partition_by = in_utc(case[0]), case[1]
        assume(not unwritable(rows.schema, format, partition_by))
        assume(not unwritten(rows, format, partition_by))
        # Python has no such years, so they cannot be compared.
        assume(not far_year(rows, rows.column_names))
        folder = tmp_path / f"{next(_numbers)}"
        layout = DirectoryLayout.of(format, partition_by, rows.schema)
        # A later query has its columns in another order, and fewer of them.
        names = data.draw(st.permutations(rows.column_names))
        later = rows.select([name for name in names if name in partition_by or name != names[0]] or names)
        layout = layout.joined(DirectoryLayout.of(format, partition_by, later.schema), "the folder")
        for number, one in enumerate((rows, later)):
            for place, some in in_partitions(layout.applied(one, "the folder"), partition_by):
                file = folder / place / f"part-{number}.{format}"
                file.parent.mkdir(parents=True, exist_ok=True)
                file.write_bytes(WRITERS[format](some))
        spark.conf.set("spark.sql.session.timeZone", zone)
        found = read(spark, folder, format, layout.columns).select(rows.column_names)
        empty_is_null = rows.column_names if format == "csv" else partition_by
        expected = pa.concat_tables([rows, later], promote_options="default")
        assert rows_of(found, empty_is_null) == rows_of(expected, empty_is_null)

    try:
        check()
    finally:
        spark.conf.set("spark.sql.session.timeZone", "UTC")
