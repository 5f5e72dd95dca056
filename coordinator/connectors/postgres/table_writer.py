"""Writes rows to a table that was looked at in the same transaction."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING

import attrs

from ...sinks.two_phase.errors import OutputError
from . import rows, sql
from .catalog import Column, Relation, columns_of, find
from .session import RowRefusedError, Session
from .sql import TableName
from .table_use import TableUse, lengths_of

if TYPE_CHECKING:
    import pyarrow as pa


@attrs.frozen
class TableWriter:
    """Writes rows to a table, in the transaction that has made this writer: until its end, the table stays as it is."""

    session: Session
    use: TableUse
    table: Relation
    columns: Mapping[str, Column]

    @classmethod
    def begin(cls, session: Session, use: TableUse, name: TableName) -> TableWriter:
        """Lock a table against all that would alter, exchange or drop it, and look at it.

        Raises:
            OutputError: there is no such table.
            As the methods of ``Session``.
        """
        session.query(sql.keep_as_it_is(name))
        found = find(session, name)
        if found is None:
            raise OutputError(f"{session.where} cannot be written to", f"a table {name.sql}", "none")
        return cls(session, use, found, {column.name: column for column in columns_of(session, found)})

    def write(self, tables: Sequence[pa.Table], refusal: Callable[[pa.Table], str | None]) -> None:
        """Write rows of one schema.

        Args:
            tables: the rows.
            refusal: says which value PostgreSQL cannot have.

        Raises:
            RowRefusedError: the table does not take a row.
            OutputError: its columns do not take such rows any more.
            As the methods of ``Session``.
        """
        import pyarrow as pa

        if problems := self.use.column_problems(self.columns, tables[0].schema):
            raise OutputError(
                f"{self.session.where} does not take the query's rows any more",
                "a table that fits, as it did at the start",
                "; ".join(problems),
                "change the table back, or the query",
            )
        for table in tables:
            self._check_values(table, refusal)
        try:
            if self.use.mode == "append":
                self._copy(self.table.name, tables)
            else:
                self._upsert(tables)
        except (pa.ArrowException, ValueError) as error:
            raise RowRefusedError(
                f"{self.session.where} cannot be written to",
                "rows of types that PostgreSQL has",
                f"{error}, in rows of {', '.join(f'{field.name} {field.type}' for field in tables[0].schema)}",
                "turn the column into a string in the query",
            ) from error

    def _check_values(self, table: pa.Table, refusal: Callable[[pa.Table], str | None]) -> None:
        """Check what the server would take and change without a word: a far year, a text whose last blanks it cuts off.

        Raises:
            RowRefusedError: there is such a value.
        """
        if found := refusal(table):
            expected = "rows that PostgreSQL can have"
            raise RowRefusedError(f"{self.session.where} cannot be written to", expected, found)
        for name, length in lengths_of(self.columns.values()).items():
            if name in table.column_names and rows.would_be_cut(table.column(name), length):
                raise RowRefusedError(
                    f"{self.session.where} cannot be written to",
                    f"texts of at most {length} characters in column {name!r}",
                    "one with more blanks at its end, which PostgreSQL would cut off",
                    "trim it in the query, or change the type of the column to text",
                )

    def _upsert(self, tables: Sequence[pa.Table]) -> None:
        deleted, name = self.use.deleted, self.table.name
        columns = self.use.written(tables[0].column_names)
        types = {column: self.columns[column].base_type for column in columns}
        self.session.query(sql.create_rows(name, types, deleted))
        self.session.query(sql.number_rows(tables[0].column_names))
        self._copy(TableName(sql.ROWS), tables)
        self.session.query(sql.merge(name, columns, self.use.key, deleted))
        self.session.query(f"DROP TABLE {sql.quoted(sql.ROWS)}")

    def _copy(self, table: TableName, tables: Sequence[pa.Table]) -> None:
        data = itertools.chain.from_iterable(map(rows.copy_text, tables))
        self.session.copy(sql.copy(table, tables[0].column_names), data)
