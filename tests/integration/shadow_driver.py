"""A pipeline with a shadow, and a driver that is the shadow, which tests run as a process of its own and kill.

``python -m tests.integration.shadow_driver <options as JSON>``: the end of stdin stops it.
"""
# The methods have PySpark's names.
# ruff: noqa: N802, N803

from __future__ import annotations

import json
import logging
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import attrs
from pyspark import cloudpickle
from pyspark.sql import Row, SparkSession
from pyspark.sql import functions as F  # noqa: N812 (its usual name)

from chandy import CheckpointConfig, CheckpointCoordinator, FilesSink, PipelineEvent, Shadow, ShadowDiffers

from .drivers import say, session
from .support import TOTALS, Events, Totals

# Workers do not have the tests' modules: what the tests define travels by value.
cloudpickle.register_pickle_by_value(sys.modules[__name__])

RARE = 49
"""A value that only a file with fifty rows has. It is the second of its row, too."""


class Refactored(Totals):
    """The same in other words."""

    def handleInputRows(self, key: Any, rows: Iterator[Row], timerValues: Any) -> Iterator[Row]:
        values = [row.v for row in rows]
        n, total = self.state.get() or (0, 0)
        self.state.update((n + len(values), total + sum(values)))
        yield Row(k=key[0], n=n + len(values), total=total + sum(values))


class WrongForOneKey(Totals):
    """With a row of a value that no other batch has, the total of one key is too high by one."""

    def handleInputRows(self, key: Any, rows: Iterator[Row], timerValues: Any) -> Iterator[Row]:
        values = list(rows)
        for row in super().handleInputRows(key, iter(values), timerValues):
            if max(one.v for one in values) == RARE:
                self.state.update((row.n, row.total + 1))
                row = Row(k=row.k, n=row.n, total=row.total + 1)
            yield row


class Failing(Totals):
    """Fails where ``WrongForOneKey`` is wrong."""

    def handleInputRows(self, key: Any, rows: Iterator[Row], timerValues: Any) -> Iterator[Row]:
        values = list(rows)
        if max(one.v for one in values) == RARE:
            raise ValueError(f"{RARE} is too much")
        return super().handleInputRows(key, iter(values), timerValues)


@attrs.define
class Pipeline:
    """A pipeline, one file a batch, and versions of its program."""

    folder: Path
    spark: SparkSession
    events: Events = attrs.field(init=False)

    def __attrs_post_init__(self) -> None:
        self.events = Events(self.folder / "in")

    @property
    def storage(self) -> str:
        return str(self.folder / "store")

    def build(
        self,
        coordinator: CheckpointCoordinator,
        processor: Totals | None = None,
        *,
        late: str = "10 seconds",
        sums: str = "total",
    ) -> None:
        events = self.events.stream(self.spark).withColumn("t", F.timestamp_seconds("v"))
        totals = coordinator.transform_with_state(
            events.withWatermark("t", late),
            key=["k"],
            processor=processor or Totals(),
            output=TOTALS,
            uid="totals",
            shards=4,
        )
        sink = FilesSink(str(self.folder / "out"), uid="files")
        coordinator.start(
            totals.withColumnRenamed("total", sums).writeStream.outputMode("update"), name="totals", sink=sink
        )

    def lead(self, **options: Any) -> CheckpointCoordinator:
        config = CheckpointConfig(interval=None, retained=10, record_batches=True)
        return CheckpointCoordinator(
            self.spark, pipeline="p", storage=self.storage, **{"config": config} | options
        )

    def shadow(self, events: list[ShadowDiffers] | None = None, **options: Any) -> CheckpointCoordinator:
        def take(event: PipelineEvent) -> None:
            if events is not None and isinstance(event, ShadowDiffers):
                events.append(event)

        config = CheckpointConfig(on_event=take)
        return CheckpointCoordinator(
            self.spark, pipeline="p", storage=self.storage, config=config, shadow=Shadow(**options)
        )

    def files(self) -> dict[str, bytes]:
        """All files of the storage and of the target that are not the shadows'."""
        return {
            str(path): path.read_bytes()
            for folder in ("store", "out")
            for path in (self.folder / folder).rglob("*")
            if path.is_file() and not {"shadows", "verdicts", "pins"} & set(path.parts)
        }


def run(options: dict[str, Any]) -> None:
    """Follow until it is killed or told to stop."""
    folder = Path(options["folder"])
    logging.basicConfig(level="INFO", stream=sys.stderr)
    pipeline = Pipeline(folder, session("local[2]", folder))
    with pipeline.shadow(name="own", compare_state_every=options["compare_state_every"]) as shadow:
        pipeline.build(shadow)
        say("follows")
        sys.stdin.readline()
    say("stopped")


if __name__ == "__main__":
    run(json.loads(sys.argv[1]))
