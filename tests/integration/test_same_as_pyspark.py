"""One processor on both engines, PySpark's own and this one, over the same input: the outputs are the same rows."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from pyspark import cloudpickle
from pyspark.sql import SparkSession

from ..effort import some
from ..waiting import DEADLINE
from .pyspark_cases import CASES, FILES, ROCKSDB, Feed, on_pyspark
from .pyspark_cases import folder as folder
from .support import Make

pytestmark = pytest.mark.spark

cloudpickle.register_pickle_by_value(sys.modules[__name__])


CHOSEN = some(CASES, (len(CASES) + 7) // 8, "same as PySpark")


# --- both engines -------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def expected(spark: SparkSession, folder: Path) -> Iterator[dict[str, list[list[str]]]]:
    """What PySpark's own engine makes of each case."""
    changed = {
        "spark.sql.streaming.stateStore.providerClass": ROCKSDB,
        "spark.sql.streaming.checkpointFileManagerClass": FILES,
        "spark.sql.streaming.noDataMicroBatches.enabled": "false",
        "spark.sql.session.timeZone": "America/New_York",
        "spark.sql.shuffle.partitions": "1",
    }
    before = {key: spark.conf.get(key, None) for key in changed}
    for key, value in changed.items():
        spark.conf.set(key, value)
    feeds = [Feed(folder / "in" / case.name, case) for case in CHOSEN]
    with ThreadPoolExecutor(3) as pool:
        list(pool.map(lambda feed: on_pyspark(spark, feed, folder / "pyspark" / feed.case.name), feeds))
    yield {feed.case.name: feed.outputs() for feed in feeds}
    for key, was in before.items():
        if was is None:
            spark.conf.unset(key)
        else:
            spark.conf.set(key, was)


@pytest.mark.full(
    "integration/test_task_in_spark.py::test_a_processor_gives_the_same_rows_as_on_sparks_own_transform_with_state"
)
def test_processors_give_the_same_rows_as_on_pysparks_own_engine(
    expected: dict[str, list[list[str]]], make: Make, spark: SparkSession, tmp_path: Path
) -> None:
    coordinator = make()
    feeds = [Feed(tmp_path / "in" / case.name, case) for case in CHOSEN]
    queries = []
    for feed in feeds:
        case = feed.case
        run = coordinator.transform_with_state_in_pandas if case.pandas else coordinator.transform_with_state
        output = run(
            feed.stream(spark),
            key=case.key,
            processor=case.processor,
            output=case.output,
            uid=case.name,
            shards=4,
            time_mode=case.time_mode,
            output_mode=case.output_mode,
            initial_state=feed.initial(spark),
        )
        writer = (
            output.writeStream.outputMode(case.output_mode).foreachBatch(feed.take).trigger(availableNow=True)
        )
        queries.append(coordinator.start(writer, name=case.name))
    for query in queries:
        query.awaitTermination(DEADLINE)
    assert {query.name: query.exception() for query in queries if query.exception()} == {}
    assert all(any(rows) for rows in expected.values())
    found = {feed.case.name: feed.outputs() for feed in feeds}
    assert [name for name in found if found[name] != expected[name]] == []
