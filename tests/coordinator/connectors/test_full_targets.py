"""Targets that are full, each really: their output waits, nothing of it is half there, and then it comes once."""

from __future__ import annotations

import functools
import shutil
import tempfile
from base64 import b64encode
from collections.abc import Iterator
from pathlib import Path
from random import Random

import attrs
import pytest

from chandy.coordinator.sinks.two_phase.contract import Epoch, Fence
from chandy.coordinator.sinks.two_phase.errors import TargetFullError
from chandy.coordinator.sinks.two_phase.publisher import Publisher
from chandy.storage.checkpoints.proof import Unshared
from chandy.storage.errors import ChandyError
from chandy.testing import Row, SinkPipeline, SinkTarget

from ...small_disk import SmallDisk, small_disk
from ...waiting import eventually
from . import delta_tables, iceberg_tables, kafka_targets, postgres_tables
from .directory_target import Directory
from .kafka_broker import broker_or_skip, new_topic
from .postgres_server import PostgresServer
from .postgres_server import postgres as postgres

FIRST: list[Row] = [(0, "there is room for this")]


@functools.cache
def many(first: int) -> list[Row]:
    """Rows of more than 2 MB that no format makes much smaller."""
    chance = Random(first)
    return [(first + number, b64encode(chance.randbytes(750)).decode()) for number in range(2_500)]


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[SmallDisk]:
    with small_disk(tmp_path / "disk") as made:
        yield made


@attrs.define
class FullLives:
    """The lives of one pipeline, as a coordinator has them."""

    pipeline: SinkPipeline
    generation: int = 0
    failures: list[ChandyError] = attrs.field(factory=list)

    def begin(self) -> tuple[Publisher, int | None]:
        """Begin a life, and return with what position."""
        self.generation += 1
        fence = Fence("flights", "delays", self.pipeline.sink.uid, self.pipeline.store, self.generation)
        publisher = Publisher(self.pipeline.sink, fence, Unshared(), on_failure=self.failures.append)
        return publisher, publisher.begin(30)

    def epochs(self) -> list[Epoch]:
        """One that there is room for, and two that there is none for."""
        given = [FIRST], [many(10_000), many(20_000)], [many(30_000)]
        return [self.pipeline.epoch(number, *batches) for number, batches in enumerate(given, 1)]


EXPECTED = sorted(FIRST + many(10_000) + many(20_000) + many(30_000))


class FullConformance:
    """The tests. A subclass has the fixture ``target``, which is on ``disk``."""

    @pytest.fixture
    def target(self) -> SinkTarget:
        raise NotImplementedError

    @pytest.fixture
    def lives(self, target: SinkTarget, tmp_path: Path) -> FullLives:
        return FullLives(SinkPipeline(target.sink(), f"file://{tmp_path}/store/flights/"))

    def test_output_waits_until_there_is_room(
        self, target: SinkTarget, lives: FullLives, disk: SmallDisk, caplog: pytest.LogCaptureFixture
    ) -> None:
        publisher, _ = lives.begin()
        first, *others = lives.epochs()
        publisher.publish_now([first], 0)
        done: list[bool] = []
        publisher.publish(others, lambda: done.append(True))
        eventually(lambda: "is full" in caplog.text, "the log to say that it is full")
        assert "make room there" in caplog.text
        assert (target.rows(), done) == (FIRST, [])
        disk.resize("64m")
        eventually(lambda: bool(done), "the output")
        assert publisher.close(30)
        assert sorted(target.rows()) == EXPECTED
        assert not lives.failures

    def test_the_next_life_publishes_what_there_was_no_room_for(
        self, target: SinkTarget, lives: FullLives, disk: SmallDisk
    ) -> None:
        publisher, _ = lives.begin()
        first, second, third = lives.epochs()
        publisher.publish_now([first], 0)
        for _ in range(3):
            with pytest.raises(TargetFullError, match="make room there"):
                publisher.publish_now([second], 0)
            assert target.rows() == FIRST
        publisher.close(30)
        # Twice of what they have: what was tried in vain takes no room.
        disk.resize("16m")
        publisher, position = lives.begin()
        assert position == 1
        publisher.publish_now([second, third], 0)
        assert publisher.close(30)
        assert sorted(target.rows()) == EXPECTED


class TestFiles(FullConformance):
    @pytest.fixture
    def target(self, disk: SmallDisk) -> SinkTarget:
        return Directory(str(disk.path / "out"))

    def test_nothing_is_left_of_what_did_not_fit(self, lives: FullLives, disk: SmallDisk) -> None:
        publisher, _ = lives.begin()
        _, second, _ = lives.epochs()
        before = {path for path in disk.path.rglob("*") if path.is_file()}
        with pytest.raises(TargetFullError):
            publisher.publish_now([second], 0)
        publisher.close(30)
        assert {path for path in disk.path.rglob("*") if path.is_file()} == before


class TestDelta(FullConformance):
    @pytest.fixture
    def target(self, disk: SmallDisk) -> SinkTarget:
        return delta_tables.DeltaTarget(str(disk.path / "table")).make()


class TestIceberg(FullConformance):
    @pytest.fixture
    def target(self, disk: SmallDisk) -> SinkTarget:
        return iceberg_tables.IcebergTarget(disk.path / "lake").make()


@pytest.mark.server
class TestPostgres(FullConformance):
    @pytest.fixture
    def disk(self) -> Iterator[SmallDisk]:
        # Other folders may be closed to the user that the server runs as.
        folder = Path(tempfile.mkdtemp(prefix="full-"))
        folder.chmod(0o755)
        try:
            with small_disk(folder / "disk", "2m") as made:
                yield made
        finally:
            shutil.rmtree(folder, ignore_errors=True)

    @pytest.fixture
    def target(self, postgres: PostgresServer, disk: SmallDisk) -> Iterator[SinkTarget]:
        place = disk.path / "space"
        place.mkdir()
        if postgres.user:
            shutil.chown(place, postgres.user)
        table = postgres_tables.OutTable.make(postgres)
        name = f'"{table.schema} space"'
        postgres.execute(f"CREATE TABLESPACE {name} LOCATION '{place}'")
        postgres.execute(f"ALTER TABLE {table.sql} SET TABLESPACE {name}")
        yield table
        postgres.execute(f"DROP TABLE {table.sql}")
        postgres.execute(f"DROP TABLESPACE {name}")


# To its clients it is a broker that died, and what they do then is tried in each run.
@pytest.mark.full(
    "coordinator/connectors/test_kafka.py::test_a_broker_that_is_killed_at_any_moment_has_every_row_once"
)
@pytest.mark.server
def test_a_kafka_broker_whose_disk_is_full_is_waited_for(
    tmp_path: Path, pytestconfig: pytest.Config, caplog: pytest.LogCaptureFixture
) -> None:
    with small_disk(tmp_path / "disk", "4m") as disk:
        kafka = broker_or_skip(disk.path, pytestconfig)
        try:
            kafka.server.start()
            target = kafka_targets.KafkaTarget(kafka, new_topic(kafka, partitions=1), "positions")
            lives = FullLives(SinkPipeline(target.sink(), f"file://{tmp_path}/store/flights/"))
            publisher, _ = lives.begin()
            first, *others = lives.epochs()
            publisher.publish_now([first], 0)
            done: list[bool] = []
            publisher.publish(others, lambda: done.append(True))
            process = kafka.server.process
            assert process is not None
            # A broker without a disk to write to ends itself, and so it seems to be away.
            eventually(lambda: process.poll() is not None, "the end of the broker")
            eventually(
                lambda: "the output waits for its target" in caplog.text, "the log to say that it waits"
            )
            assert not done
            disk.resize("64m")
            kafka.server.start()
            eventually(lambda: bool(done), "the output")
            assert publisher.close(30)
            assert sorted(target.rows()) == EXPECTED
            assert not lives.failures
        finally:
            kafka.server.kill()
