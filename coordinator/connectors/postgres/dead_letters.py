"""The table of dead letters: rows that the target refuses, kept with the reason in the transaction of all others."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING

import attrs

from ....storage.logs import logger
from ...sinks.two_phase.contract import Batch, Epoch
from ...sinks.two_phase.errors import OutputError
from . import rows, sql
from .catalog import columns_of, find
from .positions import UNLOGGED, may_create_in
from .session import RowRefusedError, Session
from .sql import TableName

if TYPE_CHECKING:
    import pyarrow as pa

log = logger(__name__)

Write = Callable[[Sequence["pa.Table"]], None]
"""Writes rows of one schema to the target.

Raises:
    RowRefusedError: the target does not take one of them.
"""


def problems(session: Session, name: TableName) -> Iterator[str]:
    """What keeps the user from writing dead letters, each as a sentence without its full stop.

    Args:
        session: with the server.
        name: of the table, with its schema.
    """
    found = find(session, name)
    if found is None:
        assert name.schema is not None
        if not may_create_in(session, name.schema):
            yield f"the user may not CREATE the table {name.sql} for dead letters, and there is none"
        return
    present = {column.name: column for column in columns_of(session, found)}
    missing = [column for column in sql.DEAD_LETTER if column not in present]
    if missing:
        yield (
            f"table {name.sql} has no column {', '.join(missing)} and is none of dead letters: "
            "name another one, which is made"
        )
    elif not all(present[column].may_insert for column in sql.DEAD_LETTER):
        yield f"the user has no right to INSERT into {name.sql}"
    if found.is_unlogged:
        yield UNLOGGED.format(name.sql)


@attrs.define
class Refused:
    """What the target has refused in a transaction."""

    rows: int = 0
    first: RowRefusedError | None = None


@attrs.frozen
class DeadLetterWriter:
    """Writes rows of an epoch or a batch to the target, and those that it refuses to the table of dead letters."""

    session: Session
    table: TableName
    writer: str
    most: int
    """The most letters of an epoch, or of a batch that is published at once."""

    def write(self, parts: Iterator[list[pa.Table]], of: Epoch | Batch, write: Write) -> Refused:
        """Write all parts, in the transaction that is open; return what was refused.

        Args:
            parts: rows of one schema each.
            of: what they are the rows of.
            write: writes some of them to the target.

        Raises:
            OutputError: the target refuses too many rows, or not because of a row.
        """
        # A constraint that is checked at the end of the transaction would not tell which row breaks it.
        self.session.query("SET CONSTRAINTS ALL IMMEDIATE")
        found = Refused()
        for part in parts:
            for row, error in self._refused(part, write):
                found.rows, found.first = found.rows + 1, found.first or error
                if found.rows > self.most:
                    raise OutputError(
                        f"{self.session.where} refuses rows",
                        f"at most max_dead_letters={self.most} rows that it refuses at a time",
                        f"{found.rows} and perhaps more; this one: {error.found}",
                        "correct the rows in the query, or the table; or raise max_dead_letters",
                    ) from error
                self._put(row, error, of)
        return found

    def tell(self, refused: Refused) -> None:
        """Log what was refused, once the transaction is committed."""
        if refused.first is not None:
            log.warning(
                "the table has refused rows; the table of dead letters has them",
                target=self.session.where,
                dead_letters=self.table.sql,
                rows=refused.rows,
                first=refused.first.found,
            )

    def _refused(self, part: list[pa.Table], write: Write) -> Iterator[tuple[pa.Table, RowRefusedError]]:
        """Write a part by halves, and yield each row that the target refuses; it stays unwritten."""
        error = self._tried(part, write)
        if error is None:
            return
        count = sum(table.num_rows for table in part)
        if count == 1:
            (row,) = (table for table in part if table.num_rows)
            yield row, error
            return
        for half in _halves(part, count // 2):
            yield from self._refused(half, write)

    def _tried(self, part: list[pa.Table], write: Write) -> RowRefusedError | None:
        """Write a part whole; return why not, and then nothing of it is written."""
        # After any other error, the whole transaction is taken back.
        self.session.query("SAVEPOINT chandy")
        refused = None
        try:
            write(part)
        except RowRefusedError as error:
            refused = error
            self.session.query("ROLLBACK TO SAVEPOINT chandy")
        self.session.query("RELEASE SAVEPOINT chandy")
        return refused

    def _put(self, row: pa.Table, error: RowRefusedError, of: Epoch | Batch) -> None:
        checkpoint = of.id if isinstance(of, Epoch) else None
        values = json.dumps(rows.texts(row), ensure_ascii=False)
        self.session.query(
            sql.insert_dead_letter(self.table), self.writer, checkpoint, str(error.found), values
        )


def _halves(part: list[pa.Table], count: int) -> Iterator[list[pa.Table]]:
    """Yield the first rows of some tables and the others, without copying them."""
    first: list[pa.Table] = []
    second: list[pa.Table] = []
    for table in part:
        here = min(count, table.num_rows)
        count -= here
        first += [table.slice(0, here)] if here else []
        second += [table.slice(here)] if here < table.num_rows else []
    yield first
    yield second
