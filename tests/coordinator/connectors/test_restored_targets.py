"""Targets that were put back from a backup, each really: the next start says that they lack what was published."""

from __future__ import annotations

import abc
import os
import shutil
import subprocess
import uuid
from collections.abc import Callable
from pathlib import Path

import pytest

from chandy.coordinator.permit import Permit, Permits
from chandy.coordinator.sinks.owner import SinkOwner
from chandy.coordinator.sinks.sink import StartPoint
from chandy.coordinator.sinks.two_phase.contract import Fence
from chandy.coordinator.sinks.two_phase.errors import OutputLostError
from chandy.coordinator.sinks.two_phase.publisher import Publisher
from chandy.coordinator.sinks.two_phase.takeover import SinkTakeover
from chandy.storage.checkpoints.manifest import OutputRecord
from chandy.storage.checkpoints.proof import Unshared
from chandy.testing import SinkPipeline, SinkTarget

from ...permits import printed
from ...waiting import eventually
from . import delta_tables, iceberg_tables, kafka_targets, postgres_tables
from .directory_target import Directory
from .kafka_broker import Broker, delete_topic, new_topic
from .kafka_broker import kafka as kafka
from .postgres_server import PostgresServer
from .postgres_server import postgres as postgres


def begin(
    pipeline: SinkPipeline, generation: int, *published: int, permit: Permit | None = None
) -> Publisher:
    """Begin a life from the checkpoint after what was published, as a coordinator does."""
    fence = Fence("flights", "delays", "out", pipeline.store, generation)
    publisher = Publisher(pipeline.sink, fence, Unshared(), on_failure=lambda error: None)
    newest = max(published, default=None)
    beginning = StartPoint(
        SinkOwner(pipeline.store, "flights"),
        Unshared(),
        None,
        checkpoint=None if newest is None else newest + 1,
        outputs=() if newest is None else (OutputRecord(pipeline.sink.uid, (), newest),),
        root=pipeline.store,
    )
    permits = Permits(permit or Permit())
    SinkTakeover({"out": publisher}, fence, permits, 1 if newest is None else newest + 2).run(beginning)
    return publisher


class RestoredConformance(abc.ABC):
    """The tests. A subclass has the fixture ``target`` and says how its backups are made."""

    left: int | None = 1
    """The newest epoch in the backup; None: nothing of the sink is left."""

    @pytest.fixture
    def target(self) -> SinkTarget:
        raise NotImplementedError

    @abc.abstractmethod
    def back_up(self, target: SinkTarget) -> Callable[[], object]:
        """Back a target up, and return what puts it back."""

    def test_a_start_says_what_is_lost_and_goes_on_if_that_is_accepted(
        self, target: SinkTarget, tmp_path: Path
    ) -> None:
        pipeline = SinkPipeline(target.sink(), f"file://{tmp_path}/store/flights/")
        pipeline.sink.check(delta_tables.SCHEMA)
        first = begin(pipeline, 1)
        first.publish_now([pipeline.epoch(1, [(1, "a")])], 30)
        put_back = self.back_up(target)
        first.publish_now([pipeline.epoch(number, [(number, "a")]) for number in (2, 3)], 30)
        first.close(30)
        put_back()
        there = sorted(target.rows())
        found = "nothing of it" if self.left is None else f"it up to checkpoint {self.left}"
        # However often it is tried.
        for generation in (2, 3):
            with pytest.raises(OutputLostError, match=rf"found {found}; put back") as refused:
                begin(pipeline, generation, 1, 2, 3)
        assert sorted(target.rows()) == there
        later = begin(pipeline, 4, 1, 2, 3, permit=printed(refused.value))
        later.publish_now([pipeline.epoch(5, [(5, "b")])], 30)
        later.close(30)
        assert sorted(target.rows()) == [*there, (5, "b")]
        # It is no loss of the next one.
        begin(pipeline, 5, 5).close(30)


def copied(folder: Path) -> Callable[[], object]:
    """Copy a folder, and return what puts it back."""
    backup = folder.with_name(f"{folder.name}-{uuid.uuid4().hex}")
    shutil.copytree(folder, backup)

    def put_back() -> None:
        shutil.rmtree(folder)
        shutil.copytree(backup, folder)

    return put_back


class TestFiles(RestoredConformance):
    @pytest.fixture
    def target(self, tmp_path: Path) -> SinkTarget:
        return Directory(str(tmp_path / "out"))

    def back_up(self, target: SinkTarget) -> Callable[[], object]:
        assert isinstance(target, Directory)
        return copied(Path(target.path) / "_spark_metadata")


class TestDelta(RestoredConformance):
    @pytest.fixture
    def target(self, tmp_path: Path) -> SinkTarget:
        return delta_tables.DeltaTarget(str(tmp_path / "table")).make()

    def back_up(self, target: SinkTarget) -> Callable[[], object]:
        assert isinstance(target, delta_tables.DeltaTarget)
        return copied(Path(target.uri))


class TestDeltaRestore(TestDelta):
    def back_up(self, target: SinkTarget) -> Callable[[], object]:
        assert isinstance(target, delta_tables.DeltaTarget)
        version = target.open().version()
        return lambda: target.open().restore(version)


class TestIcebergCatalog(RestoredConformance):
    """The catalog is put back, and the files are as they are."""

    @pytest.fixture
    def target(self, tmp_path: Path) -> SinkTarget:
        return iceberg_tables.IcebergTarget(tmp_path / "lake").make()

    def back_up(self, target: SinkTarget) -> Callable[[], object]:
        assert isinstance(target, iceberg_tables.IcebergTarget)
        catalog = target.folder / "catalog.db"
        backup = catalog.with_suffix(".backup")
        shutil.copy(catalog, backup)
        return lambda: shutil.copy(backup, catalog)


class TestIcebergRollback(TestIcebergCatalog):
    def back_up(self, target: SinkTarget) -> Callable[[], object]:
        assert isinstance(target, iceberg_tables.IcebergTarget)
        snapshot = iceberg_tables.roll_back_to(target, None)
        return lambda: iceberg_tables.roll_back_to(target, snapshot)


@pytest.mark.server
class TestPostgres(RestoredConformance):
    """Restored from a dump."""

    @pytest.fixture
    def target(self, postgres: PostgresServer) -> SinkTarget:
        return postgres_tables.OutTable.make(postgres)

    def back_up(self, target: SinkTarget) -> Callable[[], object]:
        assert isinstance(target, postgres_tables.OutTable)
        server, schema = target.server, f'"{target.schema}"'
        to = ["-h", "127.0.0.1", "-p", str(server.port), "-U", "postgres", "-d", "postgres"]
        environment = {**os.environ, "PGSSLMODE": "disable"}

        def run(program: str, *arguments: str, given: bytes = b"") -> bytes:
            command = [server.programs / program, *to, *arguments]
            return subprocess.run(
                command, input=given, check=True, capture_output=True, env=environment
            ).stdout

        dump = run("pg_dump", "--schema", schema)

        def put_back() -> None:
            server.execute(f"DROP SCHEMA {schema} CASCADE")
            run("psql", "-q", "-v", "ON_ERROR_STOP=1", given=dump)

        return put_back


@pytest.mark.server
class TestKafka(RestoredConformance):
    """The topic that keeps the positions is lost, and the rows are there."""

    left = None

    @pytest.fixture
    def target(self, kafka: Broker) -> SinkTarget:
        return kafka_targets.KafkaTarget(kafka, new_topic(kafka), f"positions-{uuid.uuid4().hex[:8]}")

    def back_up(self, target: SinkTarget) -> Callable[[], object]:
        assert isinstance(target, kafka_targets.KafkaTarget)

        def lose() -> None:
            delete_topic(target.kafka.servers, target.positions)
            eventually(
                lambda: target.positions not in kafka_targets.topics(target.kafka), "the end of the topic"
            )

        return lose
