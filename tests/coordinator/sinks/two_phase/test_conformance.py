"""The tests of what every transactional sink must do, with a target that needs no server."""

from __future__ import annotations

from pathlib import Path

import attrs
import pytest

from tests.coordinator.connectors.batch_conformance import BatchConformance
from tests.coordinator.connectors.conformance import SCHEMA, Row, SinkConformance, Target
from tests.coordinator.sinks.two_phase.sqlite_sink import SqliteSink


class SqliteTarget(Target):
    def __init__(self, path: Path) -> None:
        self._path = path

    def sink(self, uid: str = "out") -> SqliteSink:
        return SqliteSink(self._path, tuple(SCHEMA.names), uid)

    def rows(self) -> list[Row]:
        return [(k, v) for k, v in self.sink().rows() if isinstance(k, int) and isinstance(v, str)]


class AtOnceTarget(SqliteTarget):
    def sink(self, uid: str = "out") -> SqliteSink:
        return attrs.evolve(super().sink(uid), publish="batch")


class TestBatches(BatchConformance):
    @pytest.fixture
    def target(self, tmp_path: Path) -> Target:
        return AtOnceTarget(tmp_path / "out.db")


class TestSqlite(SinkConformance):
    @pytest.fixture
    def target(self, tmp_path: Path) -> Target:
        return SqliteTarget(tmp_path / "out.db")
