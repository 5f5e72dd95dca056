"""A transactional sink into a table of SQLite: rows and position change in one transaction."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager

import attrs

from chandy import Committer, Epoch, Fence, Position, StagedRows, StagedSink

POSITIONS = "CREATE TABLE IF NOT EXISTS positions (writer PRIMARY KEY, store, generation, epoch)"


@attrs.frozen
class SqliteSink(StagedSink):
    """Appends rows to a table that is there, with the columns of the query."""

    target = "SQLite"
    path: str
    table: str
    uid: str = "sqlite"

    def recover(self, fence: Fence) -> SqliteCommitter:
        """Take the table over from earlier lives of the pipeline, which publish nothing any more."""
        with transaction(self.path) as db:
            found = read(db, fence)
            # Refuses a driver that has a successor, and the pipeline of another storage.
            position = found.taken_by(fence) if found else Position.first(fence)
            write(db, fence, position)
        return SqliteCommitter(self, fence, position.epoch)


@attrs.define
class SqliteCommitter(Committer):
    """The connection of one life."""

    sink: SqliteSink
    fence: Fence
    position: int | None

    def commit(self, epoch: Epoch) -> None:
        """Publish an epoch: all of it, or nothing if a successor has taken the table over."""
        with transaction(self.sink.path) as db:
            found = read(db, self.fence) or Position.first(self.fence)
            position = found.taken_by(attrs.evolve(self.fence, may_take_over=False))
            for rows in StagedRows(epoch).tables():
                places = ", ".join(f":{name}" for name in rows.column_names)
                db.executemany(f"INSERT INTO {self.sink.table} VALUES ({places})", rows.to_pylist())
            write(db, self.fence, attrs.evolve(position, epoch=epoch.id))
        self.position = epoch.id


@contextmanager
def transaction(path: str) -> Iterator[sqlite3.Connection]:
    """Open the database, and commit what is done in the block as a whole, unless it raises."""
    with closing(sqlite3.connect(path, isolation_level=None)) as db:
        db.execute("BEGIN IMMEDIATE")
        db.execute(POSITIONS)
        yield db
        db.execute("COMMIT")


def read(db: sqlite3.Connection, fence: Fence) -> Position | None:
    """Return what the database has of a writer: who publishes, and what was published last."""
    query = "SELECT store, generation, epoch FROM positions WHERE writer = ?"
    found = db.execute(query, [fence.writer]).fetchone()
    return Position(*found) if found else None


def write(db: sqlite3.Connection, fence: Fence, position: Position) -> None:
    """Set what the database has of a writer."""
    values = [fence.writer, position.store, position.generation, position.epoch]
    db.execute("INSERT OR REPLACE INTO positions VALUES (?, ?, ?, ?)", values)
