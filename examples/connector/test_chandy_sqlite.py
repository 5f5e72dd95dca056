"""The sink does what every transactional sink must: ``chandy.testing`` has the tests."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path

import pytest
from chandy_sqlite import SqliteSink

from chandy.testing import Row, SinkConformance, SinkTarget


class Database(SinkTarget):
    """An empty table in a file."""

    def __init__(self, path: Path) -> None:
        self.path = str(path)
        with closing(sqlite3.connect(self.path)) as db:
            db.execute("CREATE TABLE numbers (k INTEGER NOT NULL, v TEXT)")

    def sink(self, uid: str = "out") -> SqliteSink:
        return SqliteSink(self.path, "numbers", uid)

    def rows(self) -> list[Row]:
        with closing(sqlite3.connect(self.path)) as db:
            return db.execute("SELECT k, v FROM numbers").fetchall()


class TestSqlite(SinkConformance):
    @pytest.fixture
    def target(self, tmp_path: Path) -> SinkTarget:
        return Database(tmp_path / "out.db")
