"""The Python workers of a session that a coordinator has taken."""

from __future__ import annotations

from collections.abc import Iterator

import pyarrow as pa
import pyspark
import pytest
from pyspark.sql import SparkSession

from chandy.coordinator.spark import session

pytestmark = [pytest.mark.spark, pytest.mark.compat]


def test_local_workers_have_the_pyspark_that_is_installed(spark: SparkSession) -> None:
    def where(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        import pyspark

        for batch in batches:
            yield pa.record_batch({"path": [str(pyspark.__file__)] * len(batch)})

    session.use_this_python(spark)
    rows = spark.range(0, 2, 1, 2).mapInArrow(where, "path string").collect()
    assert {row.path for row in rows} == {pyspark.__file__}
