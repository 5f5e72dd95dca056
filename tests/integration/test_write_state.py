"""Savepoints are written from DataFrames, and pipelines start from them."""

from __future__ import annotations

import datetime
import json
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from pyspark import cloudpickle
from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql import functions as F  # noqa: N812 (its usual name)
from pyspark.sql.streaming import StatefulProcessor

from chandy import Permit
from chandy.coordinator import CheckpointCoordinator, CheckpointedQuery
from chandy.coordinator.cli import main
from chandy.state import SavepointWriter, read_state
from chandy.state.errors import DefinitionError, NoSuchStateError, StateTypeError
from chandy.storage import ChandyError
from chandy.storage.backends.open import open_store, pipeline_uri
from chandy.storage.checkpoints.savepoint import read_savepoint

from ..effort import sampled
from ..waiting import DEADLINE
from .support import TOTALS, Events, Make, Totals

pytestmark = pytest.mark.spark
cloudpickle.register_pickle_by_value(sys.modules[__name__])

HOUR = 3_600_000


class EveryState(StatefulProcessor):
    """Keeps the rows of a key in every kind of state, and sets timers that are not due for long."""

    def init(self, handle: Any) -> None:
        self.handle = handle
        self.total = handle.getValueState("total", "n long")
        self.listed = handle.getValueState("listed", "n long")
        self.last = handle.getValueState("last", "v long", HOUR)
        self.values = handle.getListState("values", "v long, text string", HOUR)
        self.counts = handle.getMapState("counts", "v long", "n long", HOUR)

    def handleInputRows(self, key: Any, rows: Iterator[Row], timerValues: Any) -> Iterator[Row]:  # noqa: N802, N803
        now = timerValues.getCurrentProcessingTimeInMs()
        (n,) = self.total.get() or (0,)
        for row in rows:
            n += 1
            self.last.update((row.v,))
            self.values.appendValue((row.v, "x" * 100))
            (count,) = self.counts.getValue((row.v,)) or (0,)
            self.counts.updateValue((row.v,), (count + 1,))
            self.handle.registerTimer(now + HOUR * (1 + row.v))
        self.total.update((n,))
        # Timers are listed from the key's own, and fire by those of the shard.
        self.listed.update((len(list(self.handle.listTimers())),))
        return iter(())


STATES = ("total", "last", "values", "counts", "$timers")


def start_totals(coordinator: CheckpointCoordinator, stream: DataFrame, shards: int = 4) -> CheckpointedQuery:
    out = coordinator.transform_with_state(
        stream, key=["k"], processor=Totals(), output=TOTALS, uid="totals", shards=shards
    )
    return coordinator.start(out.writeStream.format("noop"), name="q")


def contents(spark: SparkSession, uri: str, operator: str, state: str) -> list[Row]:
    return sorted(read_state(spark, uri, operator=operator, state=state).collect(), key=repr)


def left_in(folder: Path) -> list[Path]:
    return [path for path in folder.rglob("*") if path.is_file()]


@pytest.mark.compat
def test_a_new_pipeline_starts_from_state_of_a_table(
    make: Make, spark: SparkSession, events: Events, tmp_path: Path
) -> None:
    # Columns in another order, and of a narrower type; a key that the stream has, and one that it has not.
    table = spark.createDataFrame([(1000, "k1", 5), (7, "absent", 1)], "total int, k string, n long")
    uri = (
        SavepointWriter.new(spark, "p")
        .with_operator("totals", query="q", key="k string", shards=4)
        .with_state("totals", "totals", table, schema="n long, total long")
        .write(str(tmp_path / "save"))
    )
    found = read_state(spark, uri)
    assert found.columns == ["k", "n", "total", "expires_at"]
    assert sorted(map(tuple, found.collect())) == [("absent", 1, 7, None), ("k1", 5, 1000, None)]

    events.add(2)
    coordinator = make(restore=uri)
    query = start_totals(coordinator, events.stream(spark))
    query.processAllAvailable()
    totals = events.totals(spark)
    n, total = totals["k1"]
    assert coordinator.get("totals", "k1") == Row(n=n + 5, total=total + 1000)
    assert coordinator.get("totals", "k2") == Row(*totals["k2"])
    assert coordinator.get("totals", "absent") == Row(n=1, total=7)
    checkpoint = coordinator.checkpoint().result(DEADLINE)
    coordinator.stop()
    # It goes on as any other pipeline.
    events.add(1)
    coordinator = make()
    assert coordinator.restored and coordinator.restored.id >= checkpoint.id
    start_totals(coordinator, events.stream(spark)).processAllAvailable()
    n, total = events.totals(spark)["k1"]
    assert coordinator.get("totals", "k1") == Row(n=n + 5, total=total + 1000)


def test_a_checkpoint_before_the_first_batch_has_the_written_state(
    make: Make, spark: SparkSession, events: Events, tmp_path: Path
) -> None:
    table = spark.createDataFrame([("k1", 5, 1000)], TOTALS)
    uri = (
        SavepointWriter.new(spark, "p")
        .with_operator("totals", query="q", key="k string", shards=4)
        .with_state("totals", "totals", table)
        .write(str(tmp_path / "save"))
    )
    coordinator = make(restore=uri)
    start_totals(coordinator, events.stream(spark))
    coordinator.checkpoint().result(DEADLINE)
    pipeline = pipeline_uri(str(tmp_path / "store"), "p")
    assert contents(spark, pipeline, "totals", "totals") == contents(spark, uri, "totals", "totals")


@pytest.fixture
def everything(make: Make, spark: SparkSession, events: Events, tmp_path: Path) -> str:
    """A savepoint of a pipeline with every kind of state, and of an operator beside it."""
    coordinator = make()
    queries = [start(coordinator, events.stream(spark)) for start in (start_everything, start_totals)]
    events.add(3)
    for query in queries:
        query.processAllAvailable()
    saved = coordinator.stop(savepoint=str(tmp_path / "before"))
    assert saved
    return saved.uri


def start_everything(coordinator: CheckpointCoordinator, stream: DataFrame) -> CheckpointedQuery:
    out = coordinator.transform_with_state(
        stream,
        key=["k"],
        processor=EveryState(),
        output="k string",
        uid="all",
        shards=4,
        time_mode="ProcessingTime",
    )
    return coordinator.start(out.writeStream.format("noop"), name="all")


@pytest.mark.compat
@pytest.mark.full("integration/test_write_state.py::test_a_repaired_key_is_what_the_pipeline_goes_on_with")
def test_all_that_is_read_and_written_again_is_the_same(
    everything: str, make: Make, spark: SparkSession, events: Events, tmp_path: Path
) -> None:
    writer = SavepointWriter.from_existing(spark, everything)
    for state in STATES:
        writer.with_state("all", state, read_state(spark, everything, operator="all", state=state))
    uri = writer.write(str(tmp_path / "after"))
    for state in STATES:
        before = contents(spark, everything, "all", state)
        assert before == contents(spark, uri, "all", state)
        assert before
        assert state == "total" or state == "$timers" or all(row.expires_at for row in before)
    assert contents(spark, everything, "totals", "totals") == contents(spark, uri, "totals", "totals")
    done = CliRunner().invoke(main, ["diff", everything, everything, uri, "--json"])
    compared = json.loads(done.stdout)
    assert [query["change"] for query in compared["queries"]] == [None, None]
    assert [
        (state["added"], state["removed"], state["changed"])
        for operator in compared["operators"]
        for state in operator["states"]
    ] == [(0, 0, 0)] * 8
    assert CliRunner().invoke(main, ["verify", uri]).exit_code == 0

    # A pipeline goes on from it with what the savepoint had, timers and lists included.
    events.add(1)
    coordinator = make(restore=uri)
    query = start_everything(coordinator, events.stream(spark))
    start_totals(coordinator, events.stream(spark)).processAllAvailable()
    query.processAllAvailable()
    coordinator.checkpoint().result(DEADLINE)
    pipeline = pipeline_uri(str(tmp_path / "store"), "p")
    timers = Counter(row.k for row in contents(spark, pipeline, "all", "$timers"))
    for key, (n, _) in events.totals(spark).items():
        values, counts = (coordinator.get("all", key, state=state) for state in ("values", "counts"))
        assert isinstance(values, list) and isinstance(counts, dict)
        assert coordinator.get("all", key, state="total") == Row(n=n)
        assert Counter((value.v,) for value in values) == {v: count.n for v, count in counts.items()}
        assert coordinator.get("all", key, state="listed") == Row(n=timers[key])
        assert sum(row.k == key for row in contents(spark, uri, "all", "$timers")) < timers[key]


@pytest.mark.parametrize("mode", sampled(["overwrite", "merge"], 1))
def test_a_repaired_key_is_what_the_pipeline_goes_on_with(
    everything: str, make: Make, spark: SparkSession, events: Events, tmp_path: Path, mode: Any
) -> None:
    rows = read_state(spark, everything, operator="totals")
    repaired = rows.withColumn("total", F.expr("if(k = 'k1', -1, total)"))
    if mode == "merge":
        repaired = repaired.where("k = 'k1'")
    uri = (
        SavepointWriter.from_existing(spark, everything)
        .with_state("totals", "totals", repaired, mode=mode)
        .remove_operator("all")
        .write(str(tmp_path / "after"))
    )
    with pytest.raises(NoSuchStateError, match="'totals'"):
        read_state(spark, uri, operator="all")
    before = events.totals(spark)
    events.add(1)
    coordinator = make(restore=uri, permit=Permit(dropped_state={"all": read_savepoint(open_store(uri)).id}))
    start_totals(coordinator, events.stream(spark)).processAllAvailable()
    after = events.totals(spark)
    for key, (n, total) in after.items():
        # Sources go on where they were.
        expected = total if key != "k1" else total - before["k1"][1] - 1
        assert coordinator.get("totals", key) == Row(n=n, total=expected)


def test_an_operator_gets_another_number_of_shards(
    everything: str, make: Make, spark: SparkSession, events: Events, tmp_path: Path
) -> None:
    rows = read_state(spark, everything, operator="totals")
    uri = (
        SavepointWriter.from_existing(spark, everything)
        .remove_operator("totals")
        .with_operator("totals", query="q", key="k string", shards=7)
        .with_state("totals", "totals", rows)
        .write(str(tmp_path / "after"))
    )
    assert contents(spark, everything, "totals", "totals") == contents(spark, uri, "totals", "totals")
    events.add(1)
    coordinator = make(restore=uri)
    everything_query = start_everything(coordinator, events.stream(spark))
    start_totals(coordinator, events.stream(spark), shards=7).processAllAvailable()
    everything_query.processAllAvailable()
    for key, found in events.totals(spark).items():
        assert coordinator.get("totals", key) == Row(*found)


def new(spark: SparkSession) -> SavepointWriter:
    return SavepointWriter.new(spark, "p").with_operator("op", query="q", key="k string, d date")


DAY = datetime.date(2026, 1, 1)


@pytest.mark.parametrize(
    ("rows", "schema", "options", "error", "told"),
    [
        ([(None, DAY, 1)], "k string, d date, n long", {}, StateTypeError, "key column 'k'.*null_keys"),
        ([("a", None, 1)], "k string, d date, n long", {}, StateTypeError, "key column 'd'"),
        (
            [("a", DAY, 1), ("b", DAY, 1), ("a", DAY, 2)],
            "k string, d date, n long",
            {},
            StateTypeError,
            r"one row of a key, .*\('a', datetime.date\(2026, 1, 1\)\)",
        ),
        (
            [("a", DAY, None)],
            "k string, d date, n long",
            {"schema": "n long not null"},
            StateTypeError,
            "field 'n' of state 's'.*not null",
        ),
        (
            [("a", DAY, "x")],
            "k string, d date, n string",
            {"schema": "n long"},
            DefinitionError,
            "column 'n'.*bigint, found string",
        ),
        ([("a", 1, 1)], "k string, d int, n long", {}, DefinitionError, "column 'd'.*date, found int"),
        ([("a", 1)], "k string, n long", {}, DefinitionError, "lack a column: expected 'd' of type date"),
        (
            [("a", DAY, 1, 2)],
            "k string, d date, n long, m long",
            {"schema": "n long"},
            DefinitionError,
            "'m'",
        ),
        ([("a", DAY, 1)], "k string, d date, n long", {"kind": "list"}, DefinitionError, "'position'"),
        ([("a", DAY, 1)], "k string, d date, n long", {"kind": "map"}, DefinitionError, "map_key"),
        ([("a", DAY)], "k string, d date", {}, DefinitionError, "at least one field"),
    ],
)
def test_what_cannot_be_written_is_told_and_leaves_nothing(
    spark: SparkSession,
    tmp_path: Path,
    rows: list[tuple[Any, ...]],
    schema: str,
    options: dict[str, Any],
    error: type[ChandyError],
    told: str,
) -> None:
    with pytest.raises(error, match=told):
        new(spark).with_state("op", "s", spark.createDataFrame(rows, schema), **options).write(
            str(tmp_path / "save")
        )
    assert left_in(tmp_path) == []


def test_a_folder_that_is_not_empty_and_an_error_of_spark_leave_what_was_there(
    spark: SparkSession, tmp_path: Path
) -> None:
    (tmp_path / "save").mkdir()
    (tmp_path / "save" / "other").write_text("mine")
    rows = spark.createDataFrame([("a", DAY, 1)], "k string, d date, n long")
    with pytest.raises(ChandyError, match="a new or empty folder"):
        new(spark).with_state("op", "s", rows).write(str(tmp_path / "save"))
    failing = rows.withColumn("n", F.expr("n + cast(raise_error('no such row') as long)"))
    with pytest.raises(Exception, match="no such row"):
        new(spark).with_state("op", "s", failing).write(str(tmp_path / "new"))
    assert left_in(tmp_path) == [tmp_path / "save" / "other"]


def test_null_keys_are_written_if_they_are_meant(spark: SparkSession, tmp_path: Path) -> None:
    rows = spark.createDataFrame([(None, DAY, 1), ("a", None, 2)], "k string, d date, n long")
    uri = new(spark).with_state("op", "s", rows, null_keys=True).write(str(tmp_path / "save"))
    assert {(row.k, row.d): row.n for row in read_state(spark, uri).collect()} == {
        (None, DAY): 1,
        ("a", None): 2,
    }
