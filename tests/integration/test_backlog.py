"""Checkpoints are fewer while a pipeline reads what has piled up in its source."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyspark
import pytest
from pyspark.sql import SparkSession
from pyspark.sql.datasource import DataSource, DataSourceStreamReader, InputPartition

from .. import insides
from ..waiting import DEADLINE, eventually
from .support import Make

pytestmark = [
    pytest.mark.spark,
    pytest.mark.skipif(
        pyspark.__version__ < "4.2", reason="PySpark 4.1 asks no Python source how far it is behind"
    ),
]


@pytest.mark.full(
    "coordinator/protocol/test_schedule.py::test_while_the_pipeline_is_behind_ticks_come_at_the_other_interval"
)
def test_a_pipeline_that_is_behind_takes_fewer_checkpoints_and_one_at_once_when_it_has_caught_up(
    make: Make, spark: SparkSession, tmp_path: Path
) -> None:
    class Reader(DataSourceStreamReader):
        """Gives a row a batch, and has more as long as a file is there."""

        def initialOffset(self) -> dict[str, int]:  # noqa: N802
            return {"at": 0}

        def latestOffset(self, start: dict[str, int], limit: Any) -> dict[str, int]:  # noqa: N802
            self.at = start["at"] + self._has_more()
            return {"at": self.at}

        def reportLatestOffset(self) -> dict[str, int]:  # noqa: N802
            return {"at": self.at + 5 * self._has_more()}

        def partitions(self, start: dict[str, int], end: dict[str, int]) -> list[InputPartition]:
            return [InputPartition(end["at"])]

        def read(self, partition: InputPartition) -> Iterator[tuple[int]]:
            yield (partition.value,)

        def _has_more(self) -> bool:
            return Path(tmp_path / "more").exists()

    class Source(DataSource):
        """Named ``pile``."""

        @classmethod
        def name(cls) -> str:
            return "pile"

        def schema(self) -> str:
            return "a int"

        def streamReader(self, schema: object) -> Reader:  # noqa: N802
            return Reader()

    spark.dataSource.register(Source)
    (tmp_path / "more").touch()
    coordinator = make(interval="1 s", interval_during_backlog="1 h")
    coordinator.start(spark.readStream.format("pile").load().writeStream.format("noop"), name="rows")

    def interval() -> float | None:
        return insides.protocol(coordinator).read(lambda state: state.admission.schedule.current)

    eventually(lambda: interval() == 3600)
    # One by hand, and no periodic one: its turn comes in an hour.
    taken = coordinator.checkpoint().result(DEADLINE).id
    (tmp_path / "more").unlink()
    eventually(lambda: interval() == 1)
    eventually(
        lambda: (latest := coordinator.statistics().latest_completed) is not None and latest.id > taken + 1
    )
