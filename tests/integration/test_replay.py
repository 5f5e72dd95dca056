from __future__ import annotations

import json
import pdb
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import attrs
import pyarrow.parquet as pq
import pytest
from click.testing import CliRunner
from pyspark import cloudpickle
from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql import functions as F  # noqa: N812 (its usual name)

from chandy import CheckpointConfig, CheckpointCoordinator, FilesSink
from chandy.coordinator.cli import main
from chandy.coordinator.errors import GivenBatchError, WriterError
from chandy.testing import PipelineTester

from ..waiting import DEADLINE
from .support import TOTALS, Events, Totals

pytestmark = pytest.mark.spark
# Workers do not have the tests' modules: what the tests define travels by value.
cloudpickle.register_pickle_by_value(sys.modules[__name__])


class WrongFromRow25(Totals):
    """From its 25th row on, the total of one key is too high by one."""

    def handleInputRows(self, key: Any, rows: Iterator[Row], timerValues: Any) -> Iterator[Row]:  # noqa: N802, N803
        for row in super().handleInputRows(key, rows, timerValues):
            if row.k == "k3" and row.n >= 25:
                self.state.update((row.n, row.total + 1))
                row = Row(k=row.k, n=row.n, total=row.total + 1)
            yield row


class FailsFromRow25(Totals):
    """Fails where ``WrongFromRow25`` is wrong."""

    def handleInputRows(self, key: Any, rows: Iterator[Row], timerValues: Any) -> Iterator[Row]:  # noqa: N802, N803
        for row in super().handleInputRows(key, rows, timerValues):
            if row.n >= 25:
                raise ValueError(f"{row.n} rows are too many")
            yield row


@attrs.frozen
class Recorded:
    """A pipeline that has run: a stateful query into transactional files, and windows of Spark's into Spark's files."""

    folder: Path
    spark: SparkSession

    @property
    def storage(self) -> str:
        return str(self.folder / "store")

    @property
    def events(self) -> Events:
        return Events(self.folder / "in")

    def build(self, coordinator: CheckpointCoordinator, processor: Totals | None = None) -> None:
        events = self.events.stream(self.spark)
        totals = coordinator.transform_with_state(
            events, key=["k"], processor=processor or Totals(), output=TOTALS, uid="totals", shards=4
        )
        sink = FilesSink(str(self.folder / "totals"), uid="files")
        coordinator.start(totals.writeStream.outputMode("update"), name="totals", sink=sink)
        coordinator.start(
            self.windows(events).format("parquet").option("path", str(self.folder / "w")), name="w"
        )

    @staticmethod
    def windows(events: DataFrame) -> Any:
        timed = events.withColumn("t", F.timestamp_seconds(F.col("v") * 100)).withWatermark("t", "1 minute")
        rows = timed.groupBy(F.window("t", "5 minutes"), "k").agg(F.sum("v").alias("s"))
        return rows.selectExpr("k", "s", "window.start AS w").writeStream.outputMode("append")

    def files(self) -> dict[str, bytes]:
        return {str(path): path.read_bytes() for path in self.folder.rglob("*") if path.is_file()}


@pytest.fixture(scope="module")
def recorded(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Recorded:
    """Checkpoints 1, 2, 4 and 5 behind batches 1, 3, 5 and 7 of both queries; at the same cut as 2 savepoint 3."""
    found = Recorded(tmp_path_factory.mktemp("recorded"), spark)
    events = found.events
    config = CheckpointConfig(interval=None, retained=9, record_batches=True)
    with CheckpointCoordinator(spark, pipeline="p", storage=found.storage, config=config) as coordinator:
        found.build(coordinator)
        for _ in range(4):
            events.add(2)
            for query in coordinator.queries:
                query.processAllAvailable()
            taken = coordinator.checkpoint().result(DEADLINE)
            assert taken.batches == {"totals": events.files - 1, "w": events.files - 1}
            if taken.id == 2:
                coordinator.savepoint("half").result(DEADLINE)
    return found


PROGRAM = """
import sys
from pathlib import Path
from pyspark.sql import SparkSession
from chandy import CheckpointCoordinator
from tests.integration.test_replay import FailsFromRow25, Recorded, Totals

spark = SparkSession.builder.getOrCreate()
folder = Path(sys.argv[1])
with CheckpointCoordinator(spark, pipeline="p", storage=str(folder / "store")) as coordinator:
    Recorded(folder, spark).build(coordinator, globals()[sys.argv[2]]())
    for query in coordinator.queries:
        query.awaitTermination()
"""


def test_the_same_program_gives_the_same_in_every_batch_and_touches_nothing(
    recorded: Recorded, tmp_path: Path
) -> None:
    program = tmp_path / "app.py"
    program.write_text(PROGRAM)
    before = recorded.files()
    arguments = [
        recorded.storage,
        "--program",
        str(program),
        "--from",
        "1",
        "--json",
        "--",
        str(recorded.folder),
        "Totals",
    ]
    result = CliRunner().invoke(main, ["replay", *arguments])
    assert result.exit_code == 0, result.output
    found = json.loads(result.stdout)
    assert (found["batches"], found["compared"]) == (12, 6)
    assert (found["checkpoints"], found["differences"]) == ([2, 4, 5], [])
    assert recorded.files() == before


def test_a_wrong_total_of_one_key_is_found_in_its_batch_with_an_example(
    recorded: Recorded, spark: SparkSession, tmp_path: Path
) -> None:
    (found,) = PipelineTester.replay(
        recorded.storage,
        lambda coordinator: recorded.build(coordinator, WrongFromRow25()),
        spark=spark,
        keep=tmp_path,
    )
    first = next(row for row in _rows_of("k3", recorded) if row["n"] >= 25)
    assert (found.what, found.query, found.batch, found.name) == ("output", "totals", first["batch"], "files")
    assert 'k="k3"' in found.example and f"total={first['total'] + 1}" in found.example
    kept = pq.read_table(found.kept).to_pylist()
    assert {(row["side"], row["k"], row["total"]) for row in kept} == {
        ("record", "k3", first["total"]),
        ("replay", "k3", first["total"] + 1),
    }
    assert not PipelineTester.replay(
        recorded.storage,
        lambda coordinator: recorded.build(coordinator, WrongFromRow25()),
        spark=spark,
        ignore=["files.total", "totals.total"],
    )


def test_state_is_compared_at_checkpoints_where_no_output_tells(
    recorded: Recorded, spark: SparkSession
) -> None:
    *_, last = _rows_of("k3", recorded)

    class Silent(Totals):
        def handleInputRows(self, key: Any, rows: Iterator[Row], timerValues: Any) -> Iterator[Row]:  # noqa: N802, N803
            for row in super().handleInputRows(key, rows, timerValues):
                if row.k == "k3" and row.n == last["n"]:
                    self.state.update((row.n, row.total + 1))
                yield row

    (found,) = PipelineTester.replay(
        recorded.storage,
        lambda coordinator: recorded.build(coordinator, Silent()),
        spark=spark,
        from_="batch=totals:7",
    )
    assert (found.what, found.name, found.checkpoint, found.batch) == ("state", "totals", 5, 7)
    assert 'k="k3"' in found.example and f"total={last['total'] + 1}" in found.example


def test_a_program_that_fails_stops_at_its_batch_and_a_debugger_shows_the_key_on_which_it_fails(
    recorded: Recorded, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def stop() -> None:
        # As Python does, in whose place pytest has put another one; and click has it ask a terminal.
        pdb.Pdb(stdin=sys.stdin, stdout=sys.stdout).set_trace(sys._getframe(1))

    monkeypatch.setattr(sys, "breakpointhook", stop)
    program = tmp_path / "app.py"
    program.write_text(PROGRAM)
    half = f"{recorded.storage}/p/savepoints/half"
    places = ["--from", half, "--break", "batch=totals:4", 'key="k3"']
    result = CliRunner().invoke(
        main,
        [
            "replay",
            recorded.storage,
            "--program",
            str(program),
            *places,
            "--",
            str(recorded.folder),
            "FailsFromRow25",
        ],
        # Into the processor, and up to where it fails.
        input="step\nstep\np 'before', self.state.get()\ncontinue\n",
    )
    assert result.exit_code == 1
    assert re.search(
        r"batch 4 of query 'totals' fails: .*rows are too many, at .*test_replay\.py",
        result.output,
        re.DOTALL,
    )
    *_, before = (row for row in _rows_of("k3", recorded) if row["batch"] < 4)
    assert f"('before', ({before['n']}, {before['total']}))" in result.stdout
    assert "rows are too many" in result.stderr


def test_halves_find_a_difference_without_running_all_of_it(recorded: Recorded, spark: SparkSession) -> None:
    (found,) = PipelineTester.replay(
        recorded.storage,
        lambda coordinator: recorded.build(coordinator, WrongFromRow25()),
        spark=spark,
        until_different=True,
    )
    # All batches from there on are wrong; those of the later half are tried first.
    assert (found.query, found.batch) == ("totals", 4)


def test_a_query_that_writes_by_itself_is_refused_unless_it_may(
    recorded: Recorded, spark: SparkSession
) -> None:
    taken = []

    def build(coordinator: CheckpointCoordinator) -> None:
        totals = coordinator.transform_with_state(
            recorded.events.stream(spark),
            key=["k"],
            processor=Totals(),
            output=TOTALS,
            uid="totals",
            shards=4,
        )
        writer = totals.writeStream.outputMode("update")
        coordinator.start(
            writer.foreachBatch(lambda rows, batch: taken.append((batch, rows.count()))), name="totals"
        )
        coordinator.start(recorded.windows(recorded.events.stream(spark)).format("noop"), name="w")

    with pytest.raises(WriterError, match="writes by itself"):
        PipelineTester.replay(recorded.storage, build, spark=spark, from_=4)
    assert taken == []
    assert PipelineTester.replay(recorded.storage, build, spark=spark, from_=4, may_write=True) == []
    assert [batch for batch, _ in taken] == [6, 7]


def test_a_program_must_start_the_queries_and_make_the_coordinator(
    recorded: Recorded, spark: SparkSession
) -> None:
    def build(coordinator: CheckpointCoordinator) -> None:
        coordinator.start(recorded.windows(recorded.events.stream(spark)).format("noop"), name="w")

    with pytest.raises(GivenBatchError, match="a program that starts query 'totals'"):
        PipelineTester.replay(recorded.storage, build, spark=spark, from_=4)


def _rows_of(key: str, recorded: Recorded) -> Iterator[dict[str, int]]:
    """Yield what the key has after each batch that has rows of it."""
    n = total = 0
    for batch, path in enumerate(sorted(recorded.events.folder.glob("*.json"))):
        rows = [json.loads(line) for line in path.read_text().splitlines()]
        values = [row["v"] for row in rows if row["k"] == key]
        n, total = n + len(values), total + sum(values)
        if values:
            yield {"batch": batch, "n": n, "total": total}
