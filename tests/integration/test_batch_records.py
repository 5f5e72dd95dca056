"""What checkpoints record of batches, under Spark: what was logged of each, and a digest of the rows that went out."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pyarrow as pa
import pytest
from click.testing import CliRunner
from pyspark.sql import SparkSession

from chandy import FilesSink, export
from chandy.coordinator import Checkpoint, CheckpointCoordinator, CheckpointedQuery
from chandy.coordinator.cli import main
from chandy.coordinator.sinks.two_phase.digest import digest
from chandy.coordinator.upgrade.leader import stage_of
from chandy.storage.backends.local import LocalStore
from chandy.storage.checkpoints.batch_record import BatchRecord, Digest, total
from chandy.storage.checkpoints.catalog import Catalog
from chandy.storage.checkpoints.locate import find

from .. import insides
from ..waiting import DEADLINE
from .support import TOTALS, Events, Make, Totals

pytestmark = pytest.mark.spark


class RecordedPipeline:
    """Totals into a transactional sink, and the same events into one of Spark's own."""

    def __init__(self, spark: SparkSession, events: Events, folder: Path) -> None:
        self.spark, self.events, self.folder = spark, events, folder

    def start(self, coordinator: CheckpointCoordinator) -> tuple[CheckpointedQuery, CheckpointedQuery]:
        rows = self.events.stream(self.spark)
        totals = coordinator.transform_with_state(
            rows, key=["k"], processor=Totals(), output=TOTALS, uid="totals", shards=4
        )
        sink = FilesSink(str(self.folder / "out"), uid="out")
        return (
            coordinator.start(totals.writeStream, sink=sink, name="totals"),
            coordinator.start(rows.writeStream.format("noop"), name="plain"),
        )

    def live(self, coordinator: CheckpointCoordinator, files: int) -> None:
        queries = self.start(coordinator)
        self.run(queries, files)

    def run(self, queries: tuple[CheckpointedQuery, ...], files: int) -> None:
        self.events.add(files)
        for query in queries:
            query.processAllAvailable()

    def records(self, query: str, *checkpoints: Checkpoint) -> list[BatchRecord]:
        """The records of checkpoints that each go on from the one before."""
        found: list[BatchRecord] = []
        for one in checkpoints:
            located = find(Catalog(LocalStore(self.folder / "store" / "p")), one.id)
            records = stage_of(located.store, located.manifest).records[query]
            # The first one is the last one of the checkpoint before, whose digest may have stayed with that.
            found += [record for record in records.batches if record.batch >= len(found)]
        assert [record.batch for record in found] == list(range(checkpoints[-1].batches[query] + 1))
        return found

    def expected(self) -> list[Digest]:
        """The digest of what each batch gives out, by a plain dict."""
        state: dict[str, tuple[int, int]] = {}
        found = []
        for path in sorted(self.events.folder.glob("*.json"), key=lambda one: one.stat().st_mtime):
            given = [json.loads(line) for line in path.read_text().splitlines()]
            for one in given:
                n, sum = state.get(one["k"], (0, 0))
                state[one["k"]] = n + 1, sum + one["v"]
            rows = [(key, *state[key]) for key in {one["k"] for one in given}]
            found.append(
                digest(
                    [pa.record_batch(dict(zip(("k", "n", "total"), zip(*rows, strict=True), strict=True)))]
                )
            )
        return found

    def check_output(self) -> None:
        """What readers of the target see has the digest of all batches together."""
        seen = self.spark.read.parquet(str(self.folder / "out")).select("k", "n", "total").toArrow()
        assert digest(seen.to_batches()) == total(self.expected())


@pytest.fixture
def pipeline(spark: SparkSession, events: Events, tmp_path: Path) -> RecordedPipeline:
    return RecordedPipeline(spark, events, tmp_path)


def check_entries(directory: Path, records: tuple[BatchRecord, ...], files: Path) -> None:
    """Each batch of a query has one file, and its texts are those that Spark has written."""
    for record in records:
        assert record.offsets == (directory / "offsets" / str(record.batch)).read_text()
        ((name, entry),) = record.sources.items()
        assert name == f"sources/0/{record.batch}"
        head, line = entry.split("\n")
        logged = json.loads(line)
        assert (head, logged["batchId"]) == ("v1", record.batch)
        assert logged["path"] == (files / f"{record.batch:05}.json").as_uri()
        if (plain := directory / name).exists():
            assert plain.read_text() == entry


def test_checkpoints_have_each_batch_as_spark_has_logged_it_and_the_digest_of_what_went_out(
    make: Make, pipeline: RecordedPipeline, tmp_path: Path
) -> None:
    coordinator = make(record_batches=True)
    queries = pipeline.start(coordinator)
    # More than Spark has between two compact entries of a source's log.
    pipeline.run(queries, 11)
    first = coordinator.checkpoint().result(DEADLINE)
    pipeline.run(queries, 2)
    second = coordinator.checkpoint().result(DEADLINE)
    pipeline.run(queries, 1)
    savepoint = coordinator.savepoint(str(tmp_path / "saved")).result(DEADLINE)

    records = pipeline.records("totals", first, second, savepoint)
    assert [record.outputs for record in records] == [{"out": found} for found in pipeline.expected()]
    check_entries(insides.run(coordinator, "totals").directory, records, pipeline.events.folder)
    plain = pipeline.records("plain", first, second, savepoint)
    assert [record.outputs for record in plain] == [{}] * 14
    check_entries(insides.run(coordinator, "plain").directory, plain, pipeline.events.folder)

    # The pipeline goes back, and runs others under the numbers of the batches that it has given up.
    coordinator.stop(checkpoint=False)
    os.utime(pipeline.events.folder / "00012.json", (1_600_000_013.5, 1_600_000_013.5))
    again = make(record_batches=True, restore=first.id)
    pipeline.live(again, 1)
    third = again.checkpoint().result(DEADLINE)
    new = pipeline.records("totals", first, third)
    assert [record.outputs for record in new] == [{"out": found} for found in pipeline.expected()]
    assert new[:11] == records[:11]
    assert new[12] != records[12]
    pipeline.check_output()
    again.stop(savepoint=str(tmp_path / "last"))

    storage = str(tmp_path / "store")
    for arguments in (["verify", storage], ["diff", storage, str(first.id), str(third.id)], ["gc", storage]):
        done = CliRunner().invoke(main, arguments)
        assert done.exit_code == 0, done.output
    export(str(tmp_path / "last"), str(tmp_path / "exported"))
    assert not [*(tmp_path / "exported").rglob("records.json")]


def test_digests_outlive_the_driver_that_took_them(make: Make, pipeline: RecordedPipeline) -> None:
    killed = make(record_batches=True)
    queries = pipeline.start(killed)
    pipeline.run(queries, 2)
    first = killed.checkpoint().result(DEADLINE)
    pipeline.run(queries, 3)
    insides.crash(killed)
    again = make(record_batches=True)
    pipeline.live(again, 1)
    assert again.restored is not None
    (run, _) = insides.runs(again)
    assert run.resumed is not None
    last = again.checkpoint().result(DEADLINE)
    records = pipeline.records("totals", first, last)
    assert [record.outputs for record in records] == [{"out": found} for found in pipeline.expected()]
    pipeline.check_output()
