"""``PostgresSink``: rows in a table of PostgreSQL, exactly once."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, ClassVar, Literal

import attrs
from typing_extensions import override

from ...errors import ConfigError
from ...sinks.two_phase.contract import Batch, Committer, Epoch, Fence, Position, Publish
from ...sinks.two_phase.errors import OutputError, TargetUnavailableError
from ...sinks.two_phase.limits import Limits
from ...sinks.two_phase.sink_set import check_publish
from ...sinks.two_phase.staged import FILE_BYTES, StagedRows, StagedSink
from ..record import TargetIds
from ..values import far_year, unclean_text
from . import dead_letters, rows, sql
from .catalog import Relation, columns_of, find
from .dead_letters import DeadLetterWriter
from .positions import create_table, make_own_table, make_positions, take
from .session import Session
from .sql import TableName
from .table_use import TableUse
from .table_writer import TableWriter

if TYPE_CHECKING:
    import pyarrow as pa


def _names(value: str | Iterable[str]) -> tuple[str, ...]:
    return (value,) if isinstance(value, str) else tuple(value)


@attrs.frozen(kw_only=True)
class PostgresSink(StagedSink):
    """Writes a query's rows to a table of PostgreSQL, each exactly once.

    The rows of a checkpoint and the record of it are one transaction, but see ``publish``. The record is in the table
    ``chandy_positions``, which is made in the schema of the target. So readers see whole checkpoints only, and a server
    that was killed, a lost answer or a second driver never leads to a row too many or too few. Several sinks may write
    to one table, each with a record of its own.

    Columns are found by name, and names are case-sensitive. A string may be written to ``text``, ``json``, ``jsonb``,
    ``uuid``, an enum and the like; a timestamp without zone to ``timestamp``, one with a zone to ``timestamptz``; a
    list of scalars to an array. Turn structs and maps into JSON with ``to_json``. A column that would change values is
    refused: ``char(n)`` fills them with blanks, ``timestamp(0)`` rounds. A batch with a year outside 1 to 9999, or with
    text that has a NUL character or is no UTF-8, fails; see ``dead_letters`` for another way.

    A position is of one table: of one that was dropped and made again, or of another one under the same ``uid``,
    nothing is known to be published. An UNLOGGED table is refused, because it is empty after a crash.

    The user needs INSERT on the table, also SELECT and UPDATE (with ``deleted``, DELETE) and TEMPORARY on the database
    for upserts, and CREATE on the schema at the first start or a table ``chandy_positions`` that it may SELECT, INSERT
    and UPDATE. Connect to the server itself or through a pooler that keeps sessions, because a transaction that a
    frozen driver has left open is ended by the session's name. What was published cannot be taken back.
    """

    target: ClassVar[str] = "PostgreSQL"

    conninfo: str = attrs.field(repr=False)
    """Where to connect to, as libpq takes it: ``host=db dbname=flights user=chandy`` or ``postgresql://...``. What is
    not in it comes from libpq's environment variables, service file and password file on the driver."""
    table: str
    """``table`` or ``schema.table``, each part as it is; a part with a dot in it stands in double quotes."""
    mode: Literal["append", "upsert"] = "append"
    """``upsert``: a row replaces the one with the same key."""
    key: tuple[str, ...] = attrs.field(default=(), converter=_names)
    """Columns of the key of an upsert. Of several rows of a key in a checkpoint, that of the last batch counts; within
    a batch that is any of them."""
    deleted: str | None = None
    """Boolean column whose true rows delete their key. It is not a column of the table."""
    publish: Publish = "checkpoint"
    """``batch``: an upsert publishes each batch at once, in a transaction of its own, at least once. See
    ``query.guarantee``."""
    uid: str = "postgres"
    """Names the sink in its query. Keep it across restarts."""
    timeout: float = 60.0
    """Seconds that a connection, one statement or a wait for a lock may take. A statement has at most about 128 MB of
    rows."""
    create_table: bool = False
    """Whether ``check`` makes the table from the query's schema if there is none."""
    dead_letters: str | None = None
    """Table for the rows that the target refuses, as ``table``; without a schema, in that of the target. It is made if
    there is none. None: such a row ends the pipeline."""
    max_dead_letters: int = 100
    """The most rows of a checkpoint that may become dead letters. If the target refuses more, nothing is published, and
    the pipeline ends."""

    def __attrs_post_init__(self) -> None:
        for wrong, expected, found in (
            (
                TableName.parse(self.table) is None,
                'a table as "table" or "schema.table"',
                repr(self.table),
            ),
            (self.mode not in ("append", "upsert"), 'the mode "append" or "upsert"', repr(self.mode)),
            (self.mode == "upsert" and not self.key, "the columns of the key for an upsert", "no key"),
            (self.mode == "append" and bool(self.key), "no key for an append", f"key {self.key}"),
            (
                self.mode == "append" and self.deleted is not None,
                "no deletions in an append",
                f"deleted={self.deleted!r}",
            ),
            (
                self.deleted is not None and self.deleted in self.key,
                "a mark apart from the key",
                "one of both",
            ),
            (len(set(self.key)) < len(self.key), "each column once in the key", f"key {self.key}"),
            (not self.timeout > 0, "a timeout above 0 s", f"{self.timeout} s"),
            (not self.uid, "a uid", "an empty one"),
            (
                self.dead_letters is not None and TableName.parse(self.dead_letters) is None,
                'a table of dead letters as "table" or "schema.table"',
                repr(self.dead_letters),
            ),
            (
                self.dead_letters == self.table,
                "a table of dead letters beside the target",
                "one table for both",
            ),
            (
                type(self.max_dead_letters) is not int or self.max_dead_letters < 1,
                "max_dead_letters as a positive number",
                repr(self.max_dead_letters),
            ),
        ):
            if wrong:
                raise ConfigError(f"PostgresSink for table {self.table} cannot be made", expected, found)
        check_publish(f"PostgresSink for table {self.table}", self.publish, self.mode)

    def check(self, schema: pa.Schema) -> Limits:
        """Check that the table takes rows of this schema; make it if it is missing and ``create_table`` says so.

        Returns:
            Which columns take no nulls, and how long texts may be.

        Raises:
            OutputError: it does not take them: all that is missing or of another type is named.
            SetupError: psycopg is missing, or the server does not let the sink in.
            TargetUnavailableError: the server cannot be reached.
        """
        session = self._connect("chandy check")
        try:
            self._check_schema(schema, session.where)
            found = find(session, self._name)
            if found is None:
                if not self.create_table:
                    raise self._missing(session.where, schema)
                create_table(session, self._definition(schema))
                found = find(session, self._name)
            if found is None:
                raise self._missing(session.where, schema)
            columns = list(columns_of(session, found))
            problems = self._use.problems(session, found, columns, schema)
            if letters := self._dead_letters(found):
                problems += dead_letters.problems(session, letters)
            session.commit()
            problems += [] if problems else self._refusals(session, found.name, schema)
            if problems:
                raise OutputError(
                    f"{session.where} does not take the query's rows",
                    "a table that fits",
                    "; ".join(problems),
                    "change the table, the user's rights or the query",
                )
            # A row that is beyond a limit may become a dead letter.
            return Limits() if letters else self._use.limits(columns)
        finally:
            session.close()

    def _refusals(self, session: Session, name: TableName, schema: pa.Schema) -> list[str]:
        """Say why the server refuses rows of this schema, though there are none. Nothing of it stays."""
        try:
            self.writer(session, name).write([schema.empty_table()], self.beyond_all_types)
        except OutputError as error:
            return [str(error.found)]
        finally:
            session.rollback()
        return []

    @override
    def unpublishable(self, rows: pa.Table) -> str | None:
        return None if self.dead_letters is not None else self.beyond_all_types(rows)

    def beyond_all_types(self, rows: pa.Table) -> str | None:
        """Say which value no table of PostgreSQL can have; None if there is none."""
        return far_year(rows, rows.column_names) or unclean_text(rows, rows.column_names)

    def recover(self, fence: Fence) -> PostgresCommitter:
        """Connect, shut out earlier lives of the writer, and read what the table has of it.

        An earlier life that has the record locked, because it was frozen in the middle of a commit, has its session
        ended.

        Raises:
            FencedError: a later life publishes.
            OutputTakenError: the output is another pipeline's.
            TargetUnavailableError: the server cannot be reached; or somebody else has the record locked.
            OutputError: there is no such table, or the user may not do that.
            SetupError: psycopg is missing, or the server does not let the sink in.
        """
        session = self._connect(sql.session_name(fence.writer))
        try:
            found = find(session, self._name)
            if found is None:
                raise self._missing(session.where, None)
            positions = make_positions(session, found.name.beside(sql.POSITIONS))
            recorded = take(session, positions.name, fence, self.timeout)
            identity = TargetIds(str(positions.oid), str(found.oid))
            ((target,),) = session.query(sql.read_target(positions.name), fence.writer)
            letters = None
            if name := self._dead_letters(found):
                made = make_own_table(session, name, sql.create_dead_letters(name), "dead letters")
                letters = DeadLetterWriter(session, made.name, fence.writer, self.max_dead_letters)
            session.commit()
        except BaseException:
            session.close()
            raise
        return PostgresCommitter(self, session, found.name, fence, recorded, target, identity, letters)

    @property
    def _name(self) -> TableName:
        name = TableName.parse(self.table)
        assert name is not None
        return name

    def _dead_letters(self, target: Relation) -> TableName | None:
        """The table of dead letters, with its schema; None: there are none."""
        name = None if self.dead_letters is None else TableName.parse(self.dead_letters)
        return target.name.beside(name.name) if name and name.schema is None else name

    def _connect(self, name: str) -> Session:
        return Session.connect(self.conninfo, self.table, name, self.timeout)

    @property
    def _use(self) -> TableUse:
        return TableUse(self.table, self.mode, self.key, self.deleted)

    def writer(self, session: Session, name: TableName) -> TableWriter:
        """Return what writes rows in the transaction that begins with it."""
        return TableWriter.begin(session, self._use, name)

    def _columns(self, schema: pa.Schema) -> list[str]:
        """The columns of the table that are written."""
        return self._use.written(schema.names)

    def _definition(self, schema: pa.Schema) -> str:
        types = {name: rows.type_for(schema.field(name).type) or "text" for name in self._columns(schema)}
        return sql.create_table(self._name, types, self.key)

    def _missing(self, where: str, schema: pa.Schema | None) -> OutputError:
        advice = "create it, or give the sink create_table=True"
        if schema is not None:
            advice += f"; this would fit: {self._definition(schema)}"
        return OutputError(
            f"{where} cannot be written to",
            f"a table {self.table}",
            "none, or none that the user may see",
            advice,
        )

    def _check_schema(self, schema: pa.Schema, where: str) -> None:
        """Check what no server needs to be asked for."""
        import pyarrow as pa

        problems = [f"the query has no key column {name!r}" for name in self.key if name not in schema.names]
        problems += [f"the query has {name!r} twice" for name in _twice(schema.names)]
        if not self._columns(schema):
            problems.append("the query has no columns")
        if not problems:
            problems += [
                f"column {name!r} is {schema.field(name).type}, which has no type in PostgreSQL: turn it into a "
                "string, such as with to_json"
                for name in self._columns(schema)
                if rows.type_for(schema.field(name).type) is None
                and not pa.types.is_null(schema.field(name).type)
            ]
        if self.deleted is not None and self.deleted not in schema.names:
            problems.append(f"the query has no column {self.deleted!r} that marks deletions")
        elif self.deleted is not None and not pa.types.is_boolean(schema.field(self.deleted).type):
            problems.append(f"column {self.deleted!r} marks deletions and is not boolean")
        if problems:
            raise OutputError(f"{where} does not take the query's rows", "rows that fit", "; ".join(problems))


class PostgresCommitter(Committer):
    """A sink's connection to its server."""

    def __init__(
        self,
        sink: PostgresSink,
        session: Session,
        table: TableName,
        fence: Fence,
        recorded: int | None,
        target: str | None,
        identity: TargetIds,
        letters: DeadLetterWriter | None = None,
    ) -> None:
        """Make a committer.

        Args:
            sink: what it publishes for.
            session: its connection.
            fence: who publishes.
            recorded: the newest epoch in the writer's record.
            target: the table that this is recorded for; None: a version that did not record it has written it.
            identity: tells the table from others.
            letters: writes what the table refuses; None: that is an error.
        """
        self._letters = letters
        self._sink = sink
        self._session = session
        self._table = table
        self._positions = table.beside(sql.POSITIONS)
        self._fence = fence
        self._recorded = recorded
        self._identity = identity
        self._position = recorded if identity.is_of(target) else None

    @property
    def position(self) -> int | None:
        """The newest epoch that the table has of this writer."""
        return self._position

    def commit(self, epoch: Epoch) -> None:
        """Publish an epoch and its id in one transaction.

        Raises:
            TargetUnavailableError: the server does not answer, or is not what it was; the connection is closed.
            FencedError, OutputTakenError: a later life publishes.
            OutputError: the table refuses a row. Nothing has changed.
            DamagedError, ObjectMissingError, StoreFailedError: the staged rows cannot be read. Nothing has changed.
        """
        self._publish(StagedRows(epoch), epoch.id)

    def upsert(self, batch: Batch) -> None:
        """Publish a batch in one transaction.

        Raises:
            As ``commit``.
        """
        self._publish(StagedRows(batch), self._position)

    def close(self) -> None:
        """End the connection."""
        self._session.close()

    def _publish(self, staged: StagedRows, position: int | None) -> None:
        """Publish rows and the position that the writer has then."""
        try:
            self._transact(staged, position)
        except BaseException:
            # The server takes back a transaction whose client is gone.
            self._session.close()
            raise
        self._position = self._recorded = position

    def _transact(self, staged: StagedRows, position: int | None) -> None:
        # A transaction waits for nothing but the server as long as possible.
        parts = _parts(staged.tables())
        first = list(itertools.islice(parts, 1))
        self._lock()
        writer = self._writer()
        parts = itertools.chain(first, parts)
        refused = None
        if self._letters is not None:
            # Without dead letters, the tasks have looked at the values.
            write = functools.partial(writer.write, refusal=self._sink.beyond_all_types)
            refused = self._letters.write(parts, staged.of, write)
        else:
            for part in parts:
                writer.write(part, lambda _: None)
        moved = sql.move_position(self._positions)
        self._session.query(moved, position, str(self._identity), self._fence.writer)
        # A COMMIT that waits for a standby must not stop to wait and call itself done.
        self._session.query("SELECT set_config('statement_timeout', '0', true)")
        self._session.commit()
        if self._letters is not None and refused is not None:
            self._letters.tell(refused)

    def _lock(self) -> None:
        """Lock the record, and check that it is as this life has left it."""
        writer = self._fence.writer
        found = [Position(*row) for row in self._session.query(sql.lock_position(self._positions), writer)]
        if found:
            # This life has taken the output over already, if it may.
            found[0].taken_by(attrs.evolve(self._fence, may_take_over=False))
        expected = Position(self._fence.store, self._fence.generation, self._recorded)
        if found != [expected]:
            raise TargetUnavailableError(
                self._session.where,
                f"expected {expected} as the record of writer {writer!r}, found {found[0] if found else 'none'}: the "
                "server was restored, or another connection publishes",
                is_understood=True,
            )

    def _writer(self) -> TableWriter:
        """Return what writes to the table, which is the one that this life has found at its start.

        Raises:
            TargetUnavailableError: another one, or other positions, have its name now. The next recovery sees it.
        """
        writer = self._sink.writer(self._session, self._table)
        positions = find(self._session, self._positions)
        found = TargetIds(str(positions.oid if positions else 0), str(writer.table.oid))
        if found != self._identity:
            raise TargetUnavailableError(
                self._session.where,
                f"table {self._table.sql}, or that of positions, was recreated or exchanged",
                is_understood=True,
            )
        return writer


# --- rows ---------------------------------------------------------------------------------------------------


def _parts(tables: Iterator[pa.Table]) -> Iterator[list[pa.Table]]:
    """Put consecutive tables of one schema together, so that a statement has many rows and still ends in time."""
    part: list[pa.Table] = []
    size = 0
    for table in tables:
        if not table.num_rows:
            continue
        if part and (size >= FILE_BYTES or table.schema != part[0].schema):
            yield part
            part, size = [], 0
        part.append(table)
        size += table.nbytes
    if part:
        yield part


def _twice(names: list[str]) -> list[str]:
    return sorted({name for name in names if names.count(name) > 1})
