"""A transactional sink to an SQLite file: a real database without a server, for tests of what all sinks share."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import attrs
import pyarrow as pa

from chandy.coordinator.sinks.two_phase.contract import Batch, Committer, Epoch, Fence, Position, Publish
from chandy.coordinator.sinks.two_phase.errors import OutputError, TargetUnavailableError
from chandy.coordinator.sinks.two_phase.staged import StagedRows, StagedSink

POSITIONS = "CREATE TABLE IF NOT EXISTS positions (writer PRIMARY KEY, store, generation, epoch)"


@attrs.frozen
class SqliteSink(StagedSink):
    """Appends to the table ``rows``, which has these columns. While a file ``away`` is beside it, it is away.

    If it publishes each batch at once, a row replaces the one with the same first column.
    """

    target = "SQLite"

    path: Path
    columns: tuple[str, ...]
    uid: str = "sqlite"
    publish: Publish = "checkpoint"

    def check(self, schema: pa.Schema) -> None:
        if tuple(schema.names) != self.columns:
            raise OutputError("the table does not fit", str(self.columns), str(schema.names))

    def recover(self, fence: Fence) -> SqliteCommitter:
        with self.transaction() as db:
            db.execute(POSITIONS)
            key = f", PRIMARY KEY ({self.columns[0]})" if self.publish == "batch" else ""
            db.execute(f"CREATE TABLE IF NOT EXISTS rows ({', '.join(self.columns)}{key})")
            found = self.position(db, fence)
            taken = found.taken_by(fence) if found else Position.first(fence)
            self.put(db, fence, taken)
        return SqliteCommitter(self, fence, taken.epoch)

    def transaction(self) -> closing[sqlite3.Connection]:
        """Connect and begin; the caller's ``with`` must call ``commit``, or nothing of it happens."""
        if self.path.with_name("away").exists():
            raise TargetUnavailableError(str(self.path), "it is away", is_understood=True)
        db = sqlite3.connect(self.path, isolation_level=None, timeout=30)
        # No test cuts the power.
        db.execute("PRAGMA synchronous = OFF")
        db.execute("BEGIN IMMEDIATE")
        return closing(db)

    @staticmethod
    def position(db: sqlite3.Connection, fence: Fence) -> Position | None:
        found = db.execute(
            "SELECT store, generation, epoch FROM positions WHERE writer = ?", (fence.writer,)
        ).fetchone()
        return Position(*found) if found else None

    @staticmethod
    def put(db: sqlite3.Connection, fence: Fence, position: Position) -> None:
        db.execute(
            "INSERT OR REPLACE INTO positions VALUES (?, ?, ?, ?)",
            (fence.writer, position.store, position.generation, position.epoch),
        )
        db.execute("COMMIT")

    def rows(self) -> list[tuple[object, ...]]:
        """What a reader sees."""
        return self._selected("*")

    def count(self) -> int:
        """How many rows a reader sees."""
        return sum(number for (number,) in self._selected("count(*)"))

    def _selected(self, what: str) -> list[Any]:
        with closing(sqlite3.connect(self.path)) as db:
            try:
                return list(db.execute(f"SELECT {what} FROM rows"))
            except sqlite3.OperationalError:
                return []


@attrs.define
class SqliteCommitter(Committer):
    """See ``SqliteSink``."""

    sink: SqliteSink
    fence: Fence
    _position: int | None
    before_commit: Callable[[Epoch], None] = lambda epoch: None

    @property
    def position(self) -> int | None:
        return self._position

    def commit(self, epoch: Epoch) -> None:
        self._commit(StagedRows(epoch), epoch.id)

    def upsert(self, batch: Batch) -> None:
        self._commit(StagedRows(batch), self._position)

    def _commit(self, staged: StagedRows, position: int | None) -> None:
        tables = list(staged.tables())
        with self.sink.transaction() as db:
            found = self.sink.position(db, self.fence)
            mine = attrs.evolve(self.fence, may_take_over=False)
            taken = found.taken_by(mine) if found else Position.first(mine)
            marks = ", ".join("?" for _ in self.sink.columns)
            for table in tables:
                rows = [tuple(row.values()) for row in table.to_pylist()]
                db.executemany(f"INSERT OR REPLACE INTO rows VALUES ({marks})", rows)
            self.sink.put(db, self.fence, attrs.evolve(taken, epoch=position))
        self._position = position
