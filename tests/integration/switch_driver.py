"""A pipeline whose target shows each row once, and its driver, which tests run as a process of its own and kill.

``python -m tests.integration.switch_driver <options as JSON>``; with ``shadow`` it begins as the pipeline's shadow.
"""

from __future__ import annotations

import json
import logging
import os
import sys
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
from pyspark import cloudpickle
from pyspark.sql import Row, SparkSession
from pyspark.sql.streaming import StatefulProcessor

from chandy.coordinator import CheckpointConfig, CheckpointCoordinator, CheckpointedQuery
from chandy.coordinator.connectors.files.sink import FilesSink
from chandy.coordinator.recovery.pipeline_events import PipelineEvent
from chandy.coordinator.upgrade.shadow import Shadow

from .drivers import say, session

# Workers do not have the tests' modules: what the tests define travels by value.
cloudpickle.register_pickle_by_value(sys.modules[__name__])

KEYS = 5


SHADOW = Shadow(name="next", ignore=("numbered.last", "files.by"))
"""The new version is one of these: it keeps one more field, and says of each row that it has numbered it."""


class Numbered(StatefulProcessor):
    """Numbers the rows of a key; the new version also keeps which row was the last one."""

    def __init__(self, version: str) -> None:
        self.version = version

    def init(self, handle: Any) -> None:
        more = ", last long" if self.version == "new" else ""
        self.count = handle.getValueState("count", f"n long{more}")

    def handleInputRows(self, key: Any, rows: Iterable[Row], timers: Any) -> Iterator[Row]:  # noqa: N802
        n, id = self.count.get()[0] if self.count.exists() else 0, -1
        for id in sorted(row["id"] for row in rows):
            n += 1
            yield Row(id=id, n=n, by=self.version)
        self.count.update((n, id) if self.version == "new" else (n,))


def add_files(folder: Path, first: int, number: int) -> None:
    """Put input files there, one a batch."""
    folder.mkdir(exist_ok=True)
    for file in range(first, first + number):
        hidden = folder / f".{file:04}"
        rows = [{"id": id, "k": f"k{id % KEYS}"} for id in range(file * 10, file * 10 + 10)]
        hidden.write_text("\n".join(map(json.dumps, rows)))
        os.utime(hidden, (1_600_000_000 + file,) * 2)
        hidden.rename(folder / f"{file:04}.json")


def numbered(files: int) -> list[tuple[int, int]]:
    """What the target has for these files: each row once, with its number within its key."""
    counts: defaultdict[int, int] = defaultdict(int)
    found = []
    for id in range(files * 10):
        counts[id % KEYS] += 1
        found.append((id, counts[id % KEYS]))
    return found


def target(folder: Path) -> list[tuple[int, int]]:
    return [(id, n) for id, n, _ in rows_by(folder)]


def rows_by(folder: Path) -> list[tuple[int, int, str]]:
    """What the target has, with the version that has numbered each row."""
    if not folder.exists():
        return []
    tables = [pq.read_table(path) for path in sorted(folder.glob("*.parquet"))]
    return sorted((row["id"], row["n"], row["by"]) for table in tables for row in table.to_pylist())


def start(
    coordinator: CheckpointCoordinator, spark: SparkSession, folder: Path, version: str
) -> CheckpointedQuery:
    rows = (
        spark.readStream.schema("id long, k string").option("maxFilesPerTrigger", 1).json(str(folder / "in"))
    )
    counted = coordinator.transform_with_state(
        rows,
        key=["k"],
        processor=Numbered(version),
        output="id long, n long, by string",
        uid="numbered",
        shards=4,
        parallelism=2,
    )
    sink = FilesSink(f"file://{folder}/out", uid="files")
    return coordinator.start(counted.writeStream, name="q", sink=sink)


def coordinator(
    spark: SparkSession, folder: Path, on_event: Callable[[PipelineEvent], object] | None = None, **more: Any
) -> CheckpointCoordinator:
    config = CheckpointConfig(interval="1 s", record_batches=True, on_event=on_event)
    return CheckpointCoordinator(spark, pipeline="p", storage=str(folder / "store"), config=config, **more)


def run(options: dict[str, Any]) -> int:
    """Lead, or follow and then lead, and follow again."""
    folder = Path(options["folder"])
    logging.basicConfig(level="INFO", stream=sys.stderr)
    spark = session("local[2]", folder)
    shadow = SHADOW if options["shadow"] else None
    with coordinator(spark, folder, shadow=shadow) as one:
        start(one, spark, folder, "new" if shadow else "old")
        say("started")
        return int(one.run())


if __name__ == "__main__":
    sys.exit(run(json.loads(sys.argv[1])))
