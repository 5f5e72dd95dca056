"""DeltaSink on real Delta tables: on a local disk, and on an S3 server."""

from __future__ import annotations

import contextlib
import datetime
import math
import re
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any

import attrs
import deltalake
import pyarrow as pa
import pytest
from deltalake.schema import Field, PrimitiveType
from deltalake.schema import Schema as DeltaSchema
from typing_extensions import override

from chandy.coordinator.connectors.tables import delta
from chandy.coordinator.connectors.tables.delta import DeltaSink
from chandy.coordinator.connectors.tables.delta_history import is_by, newest_commits
from chandy.coordinator.connectors.tables.upserting import last_by_key
from chandy.coordinator.sinks.two_phase.contract import Epoch, TwoPhaseSink, WriteContext
from chandy.coordinator.sinks.two_phase.errors import OutputError, TargetUnavailableError
from chandy.storage.errors import DamagedError, FencedError
from chandy.testing import SCHEMA, SinkConformance, SinkPipeline, SinkTarget

from ...storage import servers
from ...storage.conftest import moto, s3_keys, s3proxy
from ...storage.lossy_proxy import LossyProxy
from ...storage.servers import Server
from .batch_conformance import BatchRaces
from .boundaries import Server as ServerBoundary
from .boundaries import http_requests
from .delta_tables import DeltaTarget, DeltaUpserts
from .races import RaceConformance, within_the_next_commits
from .server_kills import publish_while_killed
from .steps import Stepped, StepsConformance, rows_up_to
from .table_conformance import TableConformance

__all__ = ["moto", "s3_keys", "s3proxy"]


@pytest.fixture
def table(tmp_path: Path) -> DeltaTarget:
    return DeltaTarget(str(tmp_path / "table")).make()


@pytest.fixture
def pipeline(table: DeltaTarget, tmp_path: Path) -> SinkPipeline:
    return SinkPipeline(table.sink(), f"file://{tmp_path}/store/flights/")


def s3_options(port: int) -> dict[str, str]:
    return {
        "AWS_ENDPOINT_URL": f"http://127.0.0.1:{port}",
        "AWS_ALLOW_HTTP": "true",
        "AWS_REGION": "us-east-1",
        "AWS_ACCESS_KEY_ID": servers.ACCESS_KEY,
        "AWS_SECRET_ACCESS_KEY": servers.SECRET_KEY,
    }


class TestOnDisk(TableConformance):
    client, extra = "deltalake", "delta"
    secret = DeltaSink("s3://bucket/table", {"AWS_SECRET_ACCESS_KEY": "hush"}, uid="out")

    @pytest.fixture
    def target(self, table: DeltaTarget) -> SinkTarget:
        return table

    @override
    def table(self, folder: Path, *, upserts: bool = False) -> DeltaTarget:
        return (DeltaUpserts if upserts else DeltaTarget)(str(folder / "table"))

    @override
    def partitioned(self, folder: Path) -> DeltaTarget:
        sink = DeltaSink(str(folder / "table"), partition_by=["v"])
        sink.check(SCHEMA)
        assert deltalake.DeltaTable(sink.table).metadata().partition_columns == ["v"]
        with pytest.raises(OutputError, match="partitioned by k"):
            attrs.evolve(sink, partition_by=["k"]).check(SCHEMA)
        return DeltaTarget(sink.table)

    @override
    def drop_column(self, table: DeltaTarget) -> None:
        other = pa.schema([pa.field("k", pa.int64()), pa.field("w", pa.int64())])
        deltalake.write_deltalake(
            table.open(), other.empty_table(), mode="overwrite", schema_mode="overwrite"
        )

    @override
    def fail_commits(self, patch: pytest.MonkeyPatch) -> None:
        def fail(*arguments: object) -> None:
            raise deltalake.exceptions.CommitFailedError("odd")

        patch.setattr(delta, "_commit_nothing", fail)


@pytest.mark.server
class TestOnS3(SinkConformance):
    @pytest.fixture
    def target(self, moto: Server) -> SinkTarget:
        return DeltaTarget(f"s3://{servers.BUCKET}/{uuid.uuid4().hex}", s3_options(moto.port)).make()


@pytest.mark.full("coordinator/connectors/test_delta.py::TestOnDisk")
class TestUpsert(RaceConformance):
    """Rows whose keys differ arrive as with appending."""

    @pytest.fixture
    def target(self, tmp_path: Path) -> SinkTarget:
        return DeltaUpserts(str(tmp_path / "table")).make()


class AtOnceTable(DeltaUpserts):
    def sink(self, uid: str = "out") -> DeltaSink:
        return attrs.evolve(super().sink(uid), publish="batch")


class TestBatches(BatchRaces):
    @pytest.fixture
    def target(self, tmp_path: Path) -> SinkTarget:
        return AtOnceTable(str(tmp_path / "table")).make()


@pytest.mark.server
@pytest.mark.full("coordinator/connectors/test_delta.py::TestOnS3")
class TestBatchesOnS3(BatchRaces):
    @pytest.fixture
    def target(self, moto: Server) -> SinkTarget:
        return AtOnceTable(f"s3://{servers.BUCKET}/{uuid.uuid4().hex}", s3_options(moto.port)).make()


def through(sink: TwoPhaseSink, port: int) -> TwoPhaseSink:
    """The same sink through a proxy."""
    assert isinstance(sink, DeltaSink)
    return attrs.evolve(sink, storage_options=s3_options(port))


class TestSteps(StepsConformance):
    """delta-rs is not Python: what it asks of a server can be seen, and what it does with a disk cannot."""

    @pytest.fixture(params=[DeltaTarget, DeltaUpserts], ids=["append", "upsert"])
    def stepped(self, request: pytest.FixtureRequest, moto: Server) -> Stepped:
        def make() -> SinkTarget:
            table: DeltaTarget = request.param(
                f"s3://{servers.BUCKET}/{uuid.uuid4().hex}", s3_options(moto.port)
            )
            return table.make()

        return Stepped(make, ServerBoundary(moto.port, http_requests, through))


def test_a_batch_waits_for_other_writers_of_the_table(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = AtOnceTable(str(tmp_path / "table")).make()
    pipeline = SinkPipeline(table.sink(), f"file://{tmp_path}/store/flights/")
    committer = pipeline.recover()
    within_the_next_commits(monkeypatch, [lambda: table.add((100, "other"))])
    committer.upsert(pipeline.batch(0, (1, "a")))
    committer.upsert(pipeline.batch(1, (1, "b")))
    assert sorted(table.rows()) == [(1, "b"), (100, "other")]


# --- answers and servers that are lost ----------------------------------------------------------------------


@pytest.mark.server
@pytest.mark.parametrize("lose", [1, 100])
def test_a_commit_whose_answer_is_lost_is_found_again(moto: Server, tmp_path: Path, lose: int) -> None:
    with LossyProxy(moto.port).running() as proxy:
        table = DeltaTarget(
            f"s3://{servers.BUCKET}/{uuid.uuid4().hex}",
            {**s3_options(proxy.port), "retry_timeout": "3s", "max_retries": "3"},
        ).make()
        pipeline = SinkPipeline(table.sink(), f"file://{tmp_path}/store/flights/")
        committer = pipeline.recover()
        proxy.kind, proxy.lose = re.compile(rb"PUT [^ ]*_delta_log/"), lose
        with pytest.raises(TargetUnavailableError):
            committer.commit(pipeline.epoch(1, [(1, "a")]))
        assert proxy.lost
        proxy.lose = 0
        again = pipeline.recover()
        assert again.position == 1
        again.commit(pipeline.epoch(2, [(2, "b")]))
        assert sorted(table.rows()) == [(1, "a"), (2, "b")]


@pytest.mark.server
def test_a_store_that_is_lost_once_the_table_is_open_is_not_available(
    moto: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with LossyProxy(moto.port).running() as proxy:
        options = {**s3_options(proxy.port), "retry_timeout": "3s", "max_retries": "3"}
        table = DeltaTarget(f"s3://{servers.BUCKET}/{uuid.uuid4().hex}", options).make()
        pipeline = SinkPipeline(table.sink(), f"file://{tmp_path}/store/flights/")
        committer = pipeline.recover()
        opened = DeltaSink.open

        def open_and_lose(sink: DeltaSink) -> deltalake.DeltaTable:
            found = opened(sink)
            proxy.kind, proxy.lose = re.compile(rb"[A-Z]+ "), 100
            return found

        with monkeypatch.context() as patch:
            patch.setattr(DeltaSink, "open", open_and_lose)
            with pytest.raises(TargetUnavailableError):
                committer.commit(pipeline.epoch(1, [(1, "a")]))
        assert proxy.lost
        proxy.lose = 0
        pipeline.recover().commit(pipeline.epoch(1, [(1, "a")]))
        assert table.rows() == [(1, "a")]


@pytest.mark.server
@pytest.mark.parametrize("kind", [DeltaTarget, DeltaUpserts], ids=["append", "upsert"])
def test_a_store_that_is_killed_at_any_moment_has_every_row_once(
    s3proxy: Server, tmp_path: Path, kind: type[DeltaTarget]
) -> None:
    table = kind(f"s3://{servers.BUCKET}/{uuid.uuid4().hex}", s3_options(s3proxy.port)).make()
    pipeline = SinkPipeline(table.sink(), f"file://{tmp_path}/store/flights/")
    newest = publish_while_killed(pipeline, lambda: servers.restart_s3proxy(s3proxy), longest=2)
    assert sorted(table.rows()) == rows_up_to(newest)
    table.check_nothing_left()


def test_a_store_that_is_not_there_is_not_available(tmp_path: Path) -> None:
    options = {**s3_options(servers.free_port()), "max_retries": "1", "retry_timeout": "1s"}
    sink = DeltaSink("s3://bucket/table", options)
    pipeline = SinkPipeline(sink, f"file://{tmp_path}/store/flights/")
    with pytest.raises(TargetUnavailableError, match="s3://bucket/table"):
        pipeline.recover()
    with pytest.raises(TargetUnavailableError):
        sink.check(SCHEMA)


# --- tables that do not fit ---------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", [pa.decimal128(10, 2), pa.binary(), pa.list_(pa.int64())])
@pytest.mark.parametrize("is_there", [False, True])
def test_partitions_that_would_destroy_the_table_are_refused_at_the_start(
    tmp_path: Path, kind: pa.DataType, is_there: bool
) -> None:
    schema = pa.schema([("k", pa.int64()), ("d", kind)])
    sink = DeltaSink(str(tmp_path / "table"), partition_by=["d"])
    if is_there and kind == pa.decimal128(10, 2):
        deltalake.DeltaTable.create(sink.table, deltalake.Schema.from_arrow(schema), partition_by=["d"])
        sink = attrs.evolve(sink, partition_by=[])
    with pytest.raises(OutputError, match="column 'd', which is"):
        sink.check(schema)
    assert is_there or not list(tmp_path.iterdir())


def test_a_text_that_is_too_long_for_a_folder_is_refused_with_its_batch(tmp_path: Path) -> None:
    sink = DeltaSink(str(tmp_path / "table"), partition_by=["v"])
    context = WriteContext(f"file://{tmp_path}/store/", "staged/q/", 0, 0)
    for text, is_refused in (("x" * 200, False), ("ü" * 200, True), ("x" * 300, True)):
        rows = pa.RecordBatch.from_pydict({"v": [text]})
        with pytest.raises(OutputError, match="names the folder") if is_refused else contextlib.nullcontext():
            sink.write(iter([rows]), context)


def test_rows_of_a_narrower_schema_are_cast(table: DeltaTarget, pipeline: SinkPipeline) -> None:
    schema = pa.schema([("v", pa.large_string()), ("k", pa.int32())])
    table.sink().check(schema)
    batch = pa.RecordBatch.from_pylist([{"k": 1, "v": "a"}], schema=schema)
    pipeline.recover().commit(epoch_of(pipeline, 1, batch))
    assert table.rows() == [(1, "a")]


def test_a_damaged_staged_file_is_named(table: DeltaTarget, pipeline: SinkPipeline, tmp_path: Path) -> None:
    committer = pipeline.recover()
    epoch = pipeline.epoch(1, [(1, "a")])
    (file,) = epoch.record.staged.files
    path = tmp_path / "store" / "flights" / file.key
    path.write_bytes(path.read_bytes()[:-1] + b"x")
    with pytest.raises(DamagedError, match=re.escape(file.key)):
        committer.commit(epoch)
    assert table.rows() == []


def test_a_table_that_was_restored_has_the_position_of_the_version(
    table: DeltaTarget, pipeline: SinkPipeline
) -> None:
    committer = pipeline.recover()
    nothing = table.open().version()
    for number in (1, 2, 3):
        committer.commit(pipeline.epoch(number, [(number, "a")]))
        table.add((100 + number, "other"))
    newest = table.open().version()
    # Of three epochs there is a version of the sink and one of the other writer each.
    table.open().restore(nothing + 4)
    table.add((200, "other"))
    with pytest.raises(TargetUnavailableError, match="epoch=2"):
        committer.commit(pipeline.epoch(4, [(4, "a")]))
    assert pipeline.recover(1).position == 2
    # A restored version that was itself restored; and back again, as who puts back what was lost.
    table.open().restore(newest)
    assert pipeline.recover(1).position == 3
    table.open().restore(table.open().version() - 1)
    assert pipeline.recover(1).position == 2
    # From here on the table says so itself.
    later = pipeline.recover(2)
    assert later.position == 2
    later.commit(pipeline.epoch(5, [(5, "a")]))
    assert pipeline.recover(3).position == 5
    assert sorted(k for k, _ in table.rows()) == [1, 2, 5, 101, 102, 200]


def test_a_restored_version_is_found_behind_a_thousand_other_commits(
    table: DeltaTarget, pipeline: SinkPipeline
) -> None:
    committer = pipeline.recover()
    committer.commit(pipeline.epoch(1, [(1, "a")]))
    published = table.open().version()
    committer.commit(pipeline.epoch(2, [(2, "a")]))
    table.open().restore(published)
    table.add((100, "other"))
    log, newest = Path(table.uri) / "_delta_log", table.open().version()
    told = next(
        line for line in (log / f"{newest:020}.json").read_text().splitlines() if "commitInfo" in line
    )
    for version in range(newest + 1, newest + 1100):
        (log / f"{version:020}.json").write_text(told)
    assert pipeline.recover(2).position == 1


def test_a_table_that_was_restored_to_before_all_output_has_no_position(
    table: DeltaTarget, pipeline: SinkPipeline
) -> None:
    committer = pipeline.recover()
    began = table.open().history(1)[0]["timestamp"]
    committer.commit(pipeline.epoch(1, [(1, "a")]))
    # As of a time.
    table.open().restore(datetime.datetime.fromtimestamp(began / 1000, datetime.UTC))
    assert (table.rows(), pipeline.recover(2).position) == ([], None)
    assert pipeline.recover(3).position is None
    with pytest.raises(FencedError):
        pipeline.recover(2)


def test_the_history_is_read_only_after_commits_of_others(
    table: DeltaTarget, pipeline: SinkPipeline, monkeypatch: pytest.MonkeyPatch
) -> None:
    committer = pipeline.recover()
    committer.commit(pipeline.epoch(1, [(1, "a")]))
    looks: list[list[dict[str, Any]]] = []

    def read(uri: str, options: Any, writer: str, seconds: float) -> list[dict[str, Any]]:
        looks.append(newest_commits(uri, options, writer, seconds))
        assert any(is_by(one, writer) for one in looks[-1])
        return looks[-1]

    monkeypatch.setattr(delta, "newest_commits", read)
    committer.commit(pipeline.epoch(2, [(2, "a")]))
    assert not looks
    table.add((100, "other"))
    committer.commit(pipeline.epoch(3, [(3, "a")]))
    assert len(looks) == 1


def test_a_history_that_cannot_be_read_is_not_available(tmp_path: Path) -> None:
    with pytest.raises(OSError, match="history cannot be read"):
        newest_commits(str(tmp_path), {}, "chandy/flights/delays/out", 60)
    with pytest.raises(TimeoutError, match="timed out after"):
        newest_commits(str(tmp_path), {}, "chandy/flights/delays/out", 0.001)


def moved_away(table: DeltaTarget) -> None:
    Path(table.uri).rename(f"{table.uri}-old")
    table.make()


def replaced(table: DeltaTarget) -> None:
    # In the same log, which keeps application transactions.
    deltalake.DeltaTable.create(table.uri, table.open().schema(), mode="overwrite")


@pytest.mark.parametrize("make_anew", [moved_away, replaced])
def test_a_table_that_was_made_anew_has_no_position(
    table: DeltaTarget, pipeline: SinkPipeline, make_anew: Callable[[DeltaTarget], None]
) -> None:
    committer = pipeline.recover()
    committer.commit(pipeline.epoch(1, [(1, "a")]))
    make_anew(table)
    with pytest.raises(TargetUnavailableError):
        committer.commit(pipeline.epoch(2, [(2, "b")]))
    assert table.rows() == []
    committer = pipeline.recover()
    assert committer.position is None
    committer.commit(pipeline.epoch(3, [(3, "c")]))
    assert pipeline.recover(2).position == 3


def test_what_the_client_never_writes_is_refused_at_once(table: DeltaTarget, pipeline: SinkPipeline) -> None:
    committer = pipeline.recover()
    feature = deltalake.TableFeatures.RowTracking
    table.open().alter.add_feature(feature, allow_protocol_versions_increase=True)
    for attempt in (lambda: committer.commit(pipeline.epoch(1, [(1, "a")])), lambda: pipeline.recover(2)):
        with pytest.raises(OutputError, match=r"Unsupported table features required: \[RowTracking\]"):
            attempt()
    assert table.rows() == []


def test_upserts_need_a_table_whose_rows_may_be_replaced(tmp_path: Path) -> None:
    table = DeltaUpserts(str(tmp_path / "table")).make()
    pipeline = SinkPipeline(table.sink(), f"file://{tmp_path}/store/flights/")
    committer = pipeline.recover()
    committer.commit(pipeline.epoch(1, [(1, "a")]))
    table.open().alter.set_table_properties({"delta.appendOnly": "true"})
    with pytest.raises(OutputError, match="append-only"):
        committer.commit(pipeline.epoch(2, [(1, "b")]))
    with pytest.raises(OutputError, match=r"found delta\.appendOnly=true"):
        table.sink().check(SCHEMA)
    assert table.rows() == [(1, "a")]


def test_a_column_says_in_its_metadata_what_it_takes(tmp_path: Path) -> None:
    columns = {"k": ("long", {}), "g": ("long", {"delta.generationExpression": "k + 1"})}
    columns["v"] = "string", {"__CHAR_VARCHAR_TYPE_STRING": "varchar(3)"}
    fields = [Field(name, PrimitiveType(type), metadata=said) for name, (type, said) in columns.items()]
    table = DeltaTarget(str(tmp_path / "table"))
    deltalake.DeltaTable.create(table.uri, DeltaSchema(fields))
    assert table.sink().check(SCHEMA).lengths == {"v": 3}
    pipeline = SinkPipeline(table.sink(), f"file://{tmp_path}/store/flights/")
    pipeline.recover().commit(pipeline.epoch(1, [(1, "a")], [(2, "b")]))
    assert sorted(map(str, table.open().to_pyarrow_table().to_pylist())) == [
        "{'k': 1, 'g': 2, 'v': 'a'}",
        "{'k': 2, 'g': 3, 'v': 'b'}",
    ]
    # delta-rs would leave the old value where it replaces a row.
    with pytest.raises(OutputError, match=r"column 'g', which is computed as k \+ 1"):
        DeltaUpserts(table.uri).sink().check(SCHEMA)


def test_the_position_outlives_the_log(table: DeltaTarget, pipeline: SinkPipeline) -> None:
    committer = pipeline.recover(3)
    for number in range(1, 4):
        committer.commit(pipeline.epoch(number, [(number, "a")]))
    table.open().create_checkpoint()
    for entry in Path(table.uri, "_delta_log").glob("*.json"):
        if int(entry.stem) < table.open().version():
            entry.unlink()
    with pytest.raises(FencedError):
        pipeline.recover(2)
    assert pipeline.recover(4).position == 3


# --- upsert -------------------------------------------------------------------------------------------------


def test_columns_of_a_key_may_have_any_name(tmp_path: Path) -> None:
    schema = pa.schema([('an "odd" Name', pa.string()), ("v", pa.int64())])
    sink = DeltaSink(str(tmp_path / "table"), mode="upsert", key=['an "odd" Name'])
    sink.check(schema)
    pipeline = SinkPipeline(sink, f"file://{tmp_path}/store/flights/")
    committer = pipeline.recover()
    for number, value in enumerate((1, 2), 1):
        batch = pa.RecordBatch.from_pylist([{'an "odd" Name': "x", "v": value}], schema=schema)
        committer.commit(epoch_of(pipeline, number, batch))
    assert deltalake.DeltaTable(sink.table).to_pyarrow_table().column("v").to_pylist() == [2]


def epoch_of(pipeline: SinkPipeline, number: int, batch: pa.RecordBatch) -> Epoch:
    from chandy.coordinator.sinks.two_phase.contract import WriteContext
    from chandy.storage.checkpoints.manifest import EpochRecord, Handle

    staged = pipeline.sink.write(iter([batch]), WriteContext(pipeline.store, "staged/", number, 0))
    return Epoch(EpochRecord(number, staged.rows, Handle(staged.files)), pipeline.store)


def test_the_last_row_of_each_key_counts() -> None:
    rows = pa.table({"a": [1, 2, 1, 2], "b": ["x", "x", "x", "y"], "c": [10, 20, 30, 40]})
    assert last_by_key(rows, ("a", "b")).column("c").to_pylist() == [20, 30, 40]
    # As in Spark's GROUP BY.
    keys = pa.array([None, -0.0, math.nan, 0.0, None, -math.nan, -0.0], pa.float32())
    odd = pa.table({"a": keys, "c": range(7)})
    assert repr(last_by_key(odd, ("a",)).to_pydict()) == "{'a': [None, nan, 0.0], 'c': [4, 5, 6]}"


def test_an_upsert_of_a_column_that_delta_cannot_name_is_refused_before_the_start(tmp_path: Path) -> None:
    schema = pa.schema([("k", pa.int64()), ("x`y", pa.int64())])
    with pytest.raises(OutputError, match="backtick"):
        DeltaSink(str(tmp_path / "table"), mode="upsert", key=["k"]).check(schema)
    DeltaSink(str(tmp_path / "table")).check(schema)


def test_a_key_goes_with_upsert_alone() -> None:
    with pytest.raises(OutputError):
        DeltaSink("/table", mode="upsert")
    with pytest.raises(OutputError):
        DeltaSink("/table", key=["k"])


# --- the value ----------------------------------------------------------------------------------------------
