"""The table of positions: which epoch each writer has published, and whose it is."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Final

from ...sinks.two_phase.contract import Fence, Position
from ...sinks.two_phase.errors import OutputError, TargetUnavailableError
from . import sql
from .catalog import Relation, columns_of, find
from .session import ForbiddenError, LockedError, Session
from .sql import TableName

_PATIENCE_S: Final = 1.0
"""Seconds that a new life waits for a commit of an earlier one to end before it ends that session."""
_CREATION: Final = 4_825_111_337
"""Key of the advisory lock under which tables are made: two that do it at once would disturb each other."""
UNLOGGED: Final = "{0} is UNLOGGED, or a partition of it, and empty after a crash: ALTER TABLE {0} SET LOGGED"


def rights_problems(session: Session, found: Relation) -> Iterator[str]:
    """What keeps the user from keeping positions, and the server from writing."""
    schema = found.name.schema
    assert schema is not None
    positions = find(session, found.name.beside(sql.POSITIONS))
    if positions is None:
        if not may_create_in(session, schema):
            yield f"the user may not CREATE the table {sql.POSITIONS} in schema {schema!r}, and there is none"
    else:
        if positions.is_unlogged:
            yield UNLOGGED.format(positions.name.sql)
        if is_old(session, positions):
            ((is_owner,),) = session.query(
                "SELECT pg_has_role(relowner, 'USAGE') FROM pg_class WHERE oid = %s", positions.oid
            )
            if not is_owner:
                yield f"{positions.name.sql} is of an earlier version: let its owner {sql.add_target(positions.name)}"
        for right in ("SELECT", "INSERT", "UPDATE"):
            ((may,),) = session.query(f"SELECT has_table_privilege(%s, '{right}')", positions.oid)
            if not may:
                yield f"the user has no right to {right} {positions.name.sql}"
    ((is_read_only,),) = session.query("SELECT current_setting('transaction_read_only')::boolean")
    if is_read_only:
        yield "the server or the database is read-only, such as a standby"


def may_create_in(session: Session, schema: str) -> bool:
    """Return whether the user may make tables in a schema; not if there is none."""
    query = "SELECT coalesce(has_schema_privilege(to_regnamespace(%s), 'CREATE'), false)"
    ((may,),) = session.query(query, sql.quoted(schema))
    return bool(may)


def create_table(session: Session, statement: str) -> None:
    """Make a table, unless another session does it at this moment."""
    session.query("SELECT pg_advisory_xact_lock(%s)", _CREATION)
    session.query(statement)
    session.commit()


def make_own_table(session: Session, name: TableName, statement: str, purpose: str) -> Relation:
    """Return a table that the sink keeps beside the target. It is made if there is none.

    Args:
        session: with the server.
        name: of the table.
        statement: makes it.
        purpose: what it is for, in the plural.

    Raises:
        OutputError: the user cannot see it.
    """
    # A user for whom the table exists needs no right to create one.
    found = find(session, name)
    if found is None:
        create_table(session, statement)
        found = find(session, name)
    if found is None:
        expected = f"a table {name.sql} for {purpose}"
        raise OutputError(f"{session.where} cannot be written to", expected, "none", "make it")
    return found


def make_positions(session: Session, name: TableName) -> Relation:
    """Return the table of positions. It is made if there is none."""
    found = make_own_table(session, name, sql.create_positions(name), "positions")
    if is_old(session, found):
        create_table(session, sql.add_target(name))
    session.commit()
    return found


def is_old(session: Session, positions: Relation) -> bool:
    """Return whether an earlier version of Chandy has made the table of positions."""
    return all(column.name != "target" for column in columns_of(session, positions))


def take(session: Session, positions: TableName, fence: Fence, timeout: float) -> int | None:
    """Take the record over for a life, and return the newest epoch; end earlier sessions that have locked it."""
    deadline = time.monotonic() + timeout
    while True:
        # Read without waiting first: who comes too late must not end the session of its successor.
        for row in session.query(sql.read_position(positions), fence.writer):
            Position(*row).taken_by(fence)
        session.commit()
        try:
            return _try_to_take(session, positions, fence, min(_PATIENCE_S, timeout / 4))
        except LockedError:
            session.rollback()
            holders = _end_holders(session, positions, fence.writer)
            if time.monotonic() > deadline:
                raise TargetUnavailableError(
                    session.where,
                    f"the record of writer {fence.writer!r} in {positions.sql} is locked by {holders}",
                    is_understood=True,
                ) from None


def _try_to_take(session: Session, positions: TableName, fence: Fence, patience: float) -> int | None:
    session.query("SELECT set_config('lock_timeout', %s, true)", f"{max(1, round(patience * 1000))}ms")
    first = Position.first(fence)
    session.query(sql.insert_position(positions), fence.writer, first.store, first.generation)
    (row,) = session.query(sql.lock_position(positions), fence.writer)
    position = Position(*row).taken_by(fence)
    session.query(sql.take_position(positions), position.store, position.generation, fence.writer)
    session.query("SELECT set_config('statement_timeout', '0', true)")
    session.commit()
    return position.epoch


def _end_holders(session: Session, positions: TableName, writer: str) -> str:
    """End the writer's own sessions that have locked its record, and return who has, for a message."""
    own = sql.session_name(writer)
    holders = session.query(sql.find_holders(positions), writer) or session.query(sql.NAMESAKES, own)
    described = []
    for pid, name, user in holders:
        who = f"session {pid} of user {user} ({name or 'without a name'})"
        if name == own:
            try:
                session.query(sql.TERMINATE, pid, own)
            except ForbiddenError:
                session.rollback()
                who += ", which the user may not end: end it with pg_terminate_backend, or grant pg_signal_backend"
        else:
            who += ", which is no sink's: end it"
        described.append(who)
    session.commit()
    return "; ".join(described) or "a session that is not known"
