"""The tests of what every transactional sink must do, with a target that needs no server."""

from __future__ import annotations

from pathlib import Path

import attrs
import pytest

from chandy.testing import SCHEMA, Row, SinkConformance, SinkTarget
from tests.coordinator.connectors.batch_conformance import BatchRaces
from tests.coordinator.sinks.two_phase.sqlite_sink import SqliteSink


class SqliteTarget(SinkTarget):
    def __init__(self, path: Path) -> None:
        self._path = path

    def sink(self, uid: str = "out") -> SqliteSink:
        return SqliteSink(self._path, tuple(SCHEMA.names), uid)

    def rows(self) -> list[Row]:
        return [(k, v) for k, v in self.sink().rows() if isinstance(k, int) and isinstance(v, str)]


class AtOnceTarget(SqliteTarget):
    def sink(self, uid: str = "out") -> SqliteSink:
        return attrs.evolve(super().sink(uid), publish="batch")


class TestBatches(BatchRaces):
    @pytest.fixture
    def target(self, tmp_path: Path) -> SinkTarget:
        return AtOnceTarget(tmp_path / "out.db")


class TestSqlite(SinkConformance):
    @pytest.fixture
    def target(self, tmp_path: Path) -> SinkTarget:
        return SqliteTarget(tmp_path / "out.db")
