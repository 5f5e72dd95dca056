"""A shadow takes its pipeline over: each row is in the target once, and state goes on as the shadow has it."""

from __future__ import annotations

import json
import os
from collections import defaultdict
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from pyspark.sql import Row, SparkSession
from pyspark.sql.streaming import StatefulProcessor

from chandy.coordinator import CheckpointConfig, CheckpointCoordinator, CheckpointedQuery
from chandy.coordinator.connectors.files.sink import FilesSink
from chandy.coordinator.protocol.life import LifePhase
from chandy.coordinator.switch_orders import await_switch, order_switch
from chandy.coordinator.upgrade.shadow import Shadow
from chandy.storage.backends.open import open_store
from chandy.storage.checkpoints.catalog import Catalog
from chandy.storage.checkpoints.layout import SHADOWS
from chandy.storage.errors import FencedError

from ..waiting import eventually

pytestmark = pytest.mark.spark

KEYS = 5


class Numbered(StatefulProcessor):
    """Numbers the rows of a key; the new version also keeps who has numbered the last one."""

    def __init__(self, version: str) -> None:
        self.version = version

    def init(self, handle: Any) -> None:
        self.count = handle.getValueState("count", "n long")

    def handleInputRows(self, key: Any, rows: Iterable[Row], timers: Any) -> Iterator[Row]:  # noqa: N802
        n = self.count.get()[0] if self.count.exists() else 0
        for id in sorted(row["id"] for row in rows):
            n += 1
            yield Row(id=id, n=n)
        self.count.update((n,))


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
    if not folder.exists():
        return []
    tables = [pq.read_table(path) for path in sorted(folder.glob("*.parquet"))]
    return sorted((row["id"], row["n"]) for table in tables for row in table.to_pylist())


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
        output="id long, n long",
        uid="numbered",
        shards=4,
        parallelism=2,
    )
    sink = FilesSink(f"file://{folder}/out", uid="files")
    return coordinator.start(counted.writeStream, name="q", sink=sink)


def coordinator(spark: SparkSession, folder: Path, **more: Any) -> CheckpointCoordinator:
    config = CheckpointConfig(interval="1 s", record_batches=True)
    return CheckpointCoordinator(spark, pipeline="p", storage=str(folder / "store"), config=config, **more)


def test_a_shadow_leads_when_it_is_told_to_and_each_row_is_there_once(
    spark: SparkSession, tmp_path: Path
) -> None:
    store = open_store(f"file://{tmp_path}/store/p")
    catalog = Catalog(store)
    add_files(tmp_path / "in", 0, 2)
    with coordinator(spark, tmp_path) as leader:
        old = start(leader, spark, tmp_path, "old")
        eventually(lambda: catalog.latest(), "a checkpoint")
        with coordinator(spark, tmp_path, shadow=Shadow()) as shadow:
            new = start(shadow, spark, tmp_path, "new")
            add_files(tmp_path / "in", 2, 3)
            eventually(
                lambda: shadow.verdict and shadow.verdict.states and shadow.verdict.equal >= 2, "batches"
            )
            name, nonce = order_switch(store, None)
            await_switch(store, name, nonce, 200.0)
            add_files(tmp_path / "in", 5, 2)
            # What its user has of the query is that of the leader now.
            eventually(lambda: target(tmp_path / "out") == numbered(7), "all rows")
            assert new.isActive and shadow.life.phase is LifePhase.RUNNING
            assert leader.life.phase is LifePhase.FENCED
            with pytest.raises(FencedError):
                old.awaitTermination()
            latest = shadow.checkpoint().result()
            named = frozenset[str]().union(*(one.keys() for one in catalog.completed()))
            others = (key for key in store.list(SHADOWS) if not key.startswith(f"{SHADOWS}{name}/"))
            assert any(key.startswith(SHADOWS) for key in named) and set(others) <= named
    # It is the pipeline's own state now: the next start goes on from there.
    add_files(tmp_path / "in", 7, 1)
    with coordinator(spark, tmp_path) as again:
        assert again.restored is not None and again.restored.id >= latest.id
        start(again, spark, tmp_path, "new")
        eventually(lambda: target(tmp_path / "out") == numbered(8), "all rows")
