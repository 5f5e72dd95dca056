"""IcebergSink on real Iceberg tables, with a SQL catalog in SQLite and files on a local disk."""

from __future__ import annotations

import json
import socket
import uuid
from pathlib import Path
from typing import Any

import attrs
import pytest
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.exceptions import CommitFailedException, NotInstalledError
from pyiceberg.partitioning import PartitionField, PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.table import Transaction
from pyiceberg.transforms import BucketTransform, IdentityTransform
from pyiceberg.types import LongType, NestedField, StringType
from typing_extensions import override

from chandy.coordinator.connectors.tables.iceberg import IcebergSink
from chandy.coordinator.errors import SetupError
from chandy.coordinator.sinks.two_phase.contract import Epoch
from chandy.coordinator.sinks.two_phase.errors import OutputError, TargetUnavailableError
from chandy.storage.errors import DamagedError, FencedError
from chandy.testing import SCHEMA, SinkPipeline, SinkTarget

from .boundaries import iceberg_calls
from .iceberg_tables import IcebergTarget, IcebergUpserts, roll_back_to
from .iceberg_tables import table as table
from .races import RaceConformance, within_the_next_commits
from .steps import Stepped, StepsConformance
from .table_conformance import TableConformance


@pytest.fixture
def pipeline(table: IcebergTarget, tmp_path: Path) -> SinkPipeline:
    return SinkPipeline(table.sink(), f"file://{tmp_path}/store/flights/")


def test_partitions_that_cannot_be_computed_here_are_refused_at_the_start(
    table: IcebergTarget, monkeypatch: pytest.MonkeyPatch
) -> None:
    with table.catalog().load_table(table.name).update_spec() as spec:
        spec.add_field("k", BucketTransform(4), "bucket")

    def is_missing(*_: object) -> None:
        raise NotInstalledError("pyiceberg_core needs to be installed")

    monkeypatch.setattr(BucketTransform, "pyarrow_transform", is_missing)
    with pytest.raises(SetupError, match=r"bucket\[4\].*pip install"):
        table.sink().check(SCHEMA)


class TestIceberg(TableConformance):
    # SQLite's, as long as a process stands still that writes to the catalog.
    locks = True
    client, extra = "pyiceberg.catalog", "iceberg"
    secret = IcebergSink({"uri": "postgresql://me:hush@db/catalog"}, "flights.delays", uid="out")

    @pytest.fixture
    def target(self, table: IcebergTarget) -> SinkTarget:
        return table

    @override
    def table(self, folder: Path, *, upserts: bool = False) -> IcebergTarget:
        (folder / "lake").mkdir()
        return (IcebergUpserts if upserts else IcebergTarget)(folder / "lake")

    @override
    def partitioned(self, folder: Path) -> IcebergTarget:
        table = self.table(folder)
        (table.folder / "warehouse").mkdir()
        catalog = table.catalog()
        catalog.create_namespace("flights")
        schema = Schema(NestedField(1, "k", LongType(), required=True), NestedField(2, "v", StringType()))
        by_v = PartitionSpec(PartitionField(2, 1000, IdentityTransform(), "v"))
        catalog.create_table(table.name, schema, partition_spec=by_v)
        return table

    @override
    def drop_column(self, table: IcebergTarget) -> None:
        found = table.catalog().load_table(table.name)
        with found.update_schema(allow_incompatible_changes=True) as update:
            update.delete_column("v")

    @override
    def fail_commits(self, patch: pytest.MonkeyPatch) -> None:
        def fail(*arguments: object) -> None:
            raise CommitFailedException("odd")

        patch.setattr(Transaction, "commit_transaction", fail)


@pytest.mark.full("coordinator/connectors/test_iceberg.py::TestIceberg")
class TestUpsert(RaceConformance):
    """Rows whose keys differ arrive as with appending."""

    locks = True

    @pytest.fixture
    def target(self, tmp_path: Path) -> SinkTarget:
        return IcebergUpserts(tmp_path / "lake").make()


class TestSteps(StepsConformance):
    @pytest.fixture(params=[IcebergTarget, IcebergUpserts], ids=["append", "upsert"])
    def stepped(self, request: pytest.FixtureRequest, tmp_path: Path) -> Stepped:
        def make() -> SinkTarget:
            table: IcebergTarget = request.param(tmp_path / "lakes" / uuid.uuid4().hex)
            return table.make()

        return Stepped(make, iceberg_calls, locks=True)


def test_rows_that_change_nothing_move_the_position_and_keep_the_fence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = IcebergUpserts(tmp_path / "lake").make()
    pipeline = SinkPipeline(table.sink(), f"file://{tmp_path}/store/flights/")
    zombie = pipeline.recover(1)
    zombie.commit(pipeline.epoch(1, [(1, "a")]))
    zombie.commit(pipeline.epoch(2, [(1, "a")]))
    assert pipeline.recover(1).position == 2
    within_the_next_commits(monkeypatch, [lambda: pipeline.recover(2)])
    with pytest.raises(FencedError):
        zombie.commit(pipeline.epoch(3, [(1, "a")]))
    assert pipeline.recover(2).position == 2


def test_a_key_has_several_columns_or_names_what_is_wrong_with_it(
    table: IcebergTarget, tmp_path: Path
) -> None:
    sink = attrs.evolve(table.sink(), mode="upsert", key=["k", "v"])
    pipeline = SinkPipeline(sink, f"file://{tmp_path}/store/flights/")
    committer = pipeline.recover()
    committer.commit(pipeline.epoch(1, [(1, "a"), (1, "b")]))
    committer.commit(pipeline.epoch(2, [(1, "a"), (2, "a")]))
    assert sorted(table.rows()) == [(1, "a"), (1, "b"), (2, "a")]
    with pytest.raises(OutputError, match="among the rows' columns: k, v, found 'x' is missing"):
        attrs.evolve(sink, key=["x"]).check(SCHEMA)
    with pytest.raises(OutputError, match='key columns with mode="upsert"'):
        attrs.evolve(sink, key=[])
    # Of two rows with one key in the table, nobody knows which one is meant.
    by_number = attrs.evolve(pipeline, sink=attrs.evolve(sink, key=["k"], uid="other"))
    with pytest.raises(OutputError, match="duplicate rows"):
        by_number.recover().commit(by_number.epoch(3, [(1, "c")]))
    assert sorted(table.rows()) == [(1, "a"), (1, "b"), (2, "a")]


def test_other_writers_of_the_table_may_repeat_their_commits_as_before(
    table: IcebergTarget, pipeline: SinkPipeline
) -> None:
    pipeline.recover().commit(pipeline.epoch(1, [(1, "a")]))
    properties = table.catalog().load_table(table.name).properties
    writer = "flights/delays/out"
    assert sorted(properties) == [f"chandy.position.{writer}", f"chandy.table.{writer}"]


def test_the_position_outlives_snapshots(table: IcebergTarget, pipeline: SinkPipeline) -> None:
    committer = pipeline.recover()
    for number in (1, 2, 3):
        committer.commit(pipeline.epoch(number, [(number, "a")]))
    expire(table)
    assert pipeline.recover(2).position == 3


def expire(table: IcebergTarget) -> None:
    """Expire all snapshots but the newest one."""
    found = table.catalog().load_table(table.name)
    newest = found.current_snapshot()
    assert newest is not None
    expiry = found.maintenance.expire_snapshots()
    expiry.by_ids(
        [one.snapshot_id for one in found.snapshots() if one.snapshot_id != newest.snapshot_id]
    ).commit()
    assert len(table.catalog().load_table(table.name).snapshots()) == 1


def test_a_table_that_was_made_anew_with_the_old_properties_has_no_position(
    table: IcebergTarget, pipeline: SinkPipeline
) -> None:
    committer, catalog = pipeline.recover(), table.catalog()
    committer.commit(pipeline.epoch(1, [(1, "a")]))
    old = catalog.load_table(table.name)
    catalog.drop_table(table.name)
    catalog.create_table(table.name, old.schema(), properties=old.properties)
    table.add((100, "other"))
    table.add((101, "other"))
    expire(table)
    # Iceberg's Java library leaves the parent in what is left.
    place = Path(catalog.load_table(table.name).metadata_location.removeprefix("file://"))
    metadata = json.loads(place.read_text())
    metadata["snapshots"][0]["parent-snapshot-id"] = 7
    place.write_text(json.dumps(metadata))
    with pytest.raises(TargetUnavailableError, match="epoch=None"):
        committer.commit(pipeline.epoch(2, [(2, "b")]))
    committer = pipeline.recover()
    assert committer.position is None
    committer.commit(pipeline.epoch(3, [(3, "c")]))
    assert pipeline.recover(2).position == 3
    assert sorted(table.rows()) == [(3, "c"), (100, "other"), (101, "other")]


def test_a_table_that_was_rolled_back_has_the_position_of_the_snapshot(
    table: IcebergTarget, pipeline: SinkPipeline
) -> None:
    committer = pipeline.recover()
    snapshots = []
    for number in (1, 2, 3):
        committer.commit(pipeline.epoch(number, [(number, "a")]))
        table.add((100 + number, "other"))
        snapshots.append(roll_back_to(table, None))
    roll_back_to(table, snapshots[1])
    table.add((200, "other"))
    with pytest.raises(TargetUnavailableError, match="epoch=2"):
        committer.commit(pipeline.epoch(4, [(4, "a")]))
    assert pipeline.recover(1).position == 2
    # As who puts back what was lost.
    roll_back_to(table, snapshots[2])
    assert pipeline.recover(1).position == 3
    roll_back_to(table, snapshots[1])
    later = pipeline.recover(2)
    assert later.position == 2
    later.commit(pipeline.epoch(5, [(5, "a")]))
    assert pipeline.recover(3).position == 5
    assert sorted(k for k, _ in table.rows()) == [1, 2, 5, 101, 102]


def test_a_table_that_was_rolled_back_to_before_all_output_has_no_position(tmp_path: Path) -> None:
    table = IcebergTarget(tmp_path / "lake").make()
    table.add((100, "other"))
    before = roll_back_to(table, None)
    pipeline = SinkPipeline(table.sink(), f"file://{tmp_path}/store/flights/")
    pipeline.recover().commit(pipeline.epoch(1, [(1, "a")]))
    roll_back_to(table, before)
    assert pipeline.recover(2).position is None
    assert pipeline.recover(3).position is None
    with pytest.raises(FencedError):
        pipeline.recover(2)


def test_nothing_is_left_of_an_attempt_that_failed_before_its_commit(
    table: IcebergTarget, pipeline: SinkPipeline
) -> None:
    committer = pipeline.recover()
    committer.commit(pipeline.epoch(1, [(1, "a")]))
    with pytest.raises(DamagedError):
        committer.commit(damaged(pipeline.epoch(2, [(2, "b")], [(3, "c")]), pipeline))
    assert len([*table.folder.rglob("*.parquet")]) == 1


def test_a_commit_that_a_client_repeats_by_itself_keeps_its_rows(
    table: IcebergTarget, pipeline: SinkPipeline, monkeypatch: pytest.MonkeyPatch
) -> None:
    committer = pipeline.recover()

    def commit_twice(*arguments: Any) -> Any:
        commit(*arguments)
        return commit(*arguments)

    commit = SqlCatalog.commit_table
    monkeypatch.setattr(SqlCatalog, "commit_table", commit_twice)
    with pytest.raises(TargetUnavailableError):
        committer.commit(pipeline.epoch(1, [(1, "a")], [(2, "b")]))
    monkeypatch.undo()
    assert pipeline.recover(2).position == 1
    assert sorted(table.rows()) == [(1, "a"), (2, "b")]


def damaged(epoch: Epoch, pipeline: SinkPipeline) -> Epoch:
    """Damage the last of its files."""
    path = Path(pipeline.store.removeprefix("file://"), epoch.files[-1].key)
    path.write_bytes(path.read_bytes()[:-1] + b"x")
    return epoch


# --- catalogs and tables that are not there, or do not fit --------------------------------------------------


def test_a_catalog_that_is_not_there_is_not_available(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    sink = IcebergSink({"type": "rest", "uri": f"http://127.0.0.1:{port}"}, "flights.delays")
    for step in (SinkPipeline(sink, f"file://{tmp_path}/store/").recover, lambda: sink.check(SCHEMA)):
        with pytest.raises(TargetUnavailableError, match=r"flights\.delays"):
            step()


def test_a_catalog_that_does_not_answer_is_given_up(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        uri = f"http://127.0.0.1:{silent.getsockname()[1]}"
        sink = IcebergSink({"type": "rest", "uri": uri}, "flights.delays", timeout=0.2)
        with pytest.raises(TargetUnavailableError, match="no answer within"):
            SinkPipeline(sink, f"file://{tmp_path}/store/").recover()


def test_a_catalog_that_is_locked_is_asked_again(table: IcebergTarget, pipeline: SinkPipeline) -> None:
    import sqlite3

    # SQLite itself waits five seconds for a lock, unless it is told otherwise.
    impatient = {**table.properties, "uri": f"{table.properties['uri']}?timeout=0.1"}
    committer = attrs.evolve(pipeline, sink=IcebergSink(impatient, table.name)).recover()
    epoch = pipeline.epoch(1, [(1, "a")])
    lock = sqlite3.connect(table.folder / "catalog.db")
    lock.execute("BEGIN EXCLUSIVE")
    with pytest.raises(TargetUnavailableError, match="locked"):
        committer.commit(epoch)
    lock.rollback()
    assert pipeline.recover().position is None
    committer.commit(epoch)
    assert table.rows() == [(1, "a")]


def test_a_catalog_of_no_kind_is_an_error_of_the_output() -> None:
    with pytest.raises(OutputError, match="catalog"):
        IcebergSink({"type": "nonsense"}, "flights.delays").check(SCHEMA)


def test_a_table_that_was_dropped_meanwhile_is_an_error_of_the_output(
    table: IcebergTarget, pipeline: SinkPipeline
) -> None:
    committer = pipeline.recover()
    table.catalog().drop_table(table.name)
    with pytest.raises(OutputError, match=r"flights\.delays"):
        committer.commit(pipeline.epoch(1, [(1, "a")]))


# --- the value ----------------------------------------------------------------------------------------------
