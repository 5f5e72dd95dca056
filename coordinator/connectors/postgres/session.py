"""A session with a PostgreSQL server whose every wait ends, and whose errors are Chandy's."""

from __future__ import annotations

import contextlib
import os
import re
import socket
import threading
from collections.abc import Iterable, Iterator
from types import ModuleType
from typing import TYPE_CHECKING, Any, Final

import attrs

from ....storage.errors import ChandyError
from ...errors import SetupError
from ...extras import needs_extra
from ...sinks.two_phase.errors import OutputError, TargetFullError, TargetUnavailableError
from . import sql

if TYPE_CHECKING:
    import psycopg

_SLACK: Final = 5.0
"""Seconds that a server is given to end a statement by itself before its connection is cut."""
_IDLE_S: Final = 600
"""Seconds after which a server ends a transaction whose client does nothing. It reads staged files in between."""
_AGAIN: Final = re.compile("08|40|53|57|58|25006|25P0[34]|55006|55P03")
"""Beginnings of the SQLSTATE of what may succeed later: connections, conflicts, resources, an operator's doing, the
system, a server that is a standby, what has waited too long."""
_LOCKED: Final = "55P03"
_CANCELED: Final = "57014"
_FORBIDDEN: Final = "42501"
_FULL: Final = "53100"
_ROW: Final = re.compile("09|2[0-37]|38|44|54000|P0")
"""Beginnings of the SQLSTATE of what is wrong with a row: a value that its type does not take, a constraint, the check
of a view, a value too large for an index, a trigger that fails."""
_SERVER: Final = re.compile("0[012389ABFLPZ]|10|2[0-8BDF]|34|38|39|3[BDF]|40|42|44|5[3-578]|72|F0|HV|P0|XX")
"""The classes of SQLSTATE that the server itself has (https://www.postgresql.org/docs/current/errcodes-appendix.html)."""
_RAISE: Final = "exec_stmt_raise"
"""The function of the server that carries out PL/pgSQL's RAISE, with any SQLSTATE."""
# The client tells nothing but the server's words when it cannot connect. In other languages than English it is tried
# again, and the words are in the error all the same.
_NO_ENTRY: Final = re.compile(
    r"FATAL:\s+(?:password authentication failed|no pg_hba\.conf entry|(?:database|role) .* does not exist"
    r"|permission denied|\w+ authentication failed|role .* is not permitted to log in)"
)
_ADVICE: Final = {
    "22": "correct the rows in the query, or the column's type in the table; or give the sink dead_letters",
    "23": "correct the rows in the query, or the table's constraint; or give the sink dead_letters",
    "42501": "grant it to the user of the sink",
    "42": "let the table be as the query's rows are, or the rows as the table is",
}
"""What to do, by the beginning of the SQLSTATE; the longest counts."""


@attrs.define(eq=False)
class LockedError(TargetUnavailableError):
    """Another session has locked what is needed, for longer than this one waits."""


@attrs.define(eq=False)
class ForbiddenError(OutputError):
    """The user may not do that."""


@attrs.define(eq=False)
class RowRefusedError(OutputError):
    """A row is refused for a value of its own."""


def client() -> ModuleType:
    """Return psycopg.

    Raises:
        SetupError: it is not installed.
    """
    needed = "psycopg 3, the client of PostgreSQL"
    with needs_extra("postgres", what="PostgresSink cannot be used", needed=needed):
        import psycopg
    return psycopg


class Session:
    """One connection, in one transaction at a time. One thread uses it at a time.

    All methods raise:
        TargetUnavailableError: the server cannot be reached, does not answer in time, or says that it may be able to
            do it later. It is a LockedError if it waited for a lock.
        OutputError: it refuses. It is a ForbiddenError if the user may not.
    """

    def __init__(self, connection: psycopg.Connection, where: str, timeout: float) -> None:
        self._connection = connection
        self._timeout = timeout
        # A descriptor of its own, because another thread cuts the connection by it.
        self._socket = socket.socket(fileno=os.dup(connection.fileno()))
        self.where = where
        """The server, the database and the table, for messages."""
        self.closed = False

    @classmethod
    def connect(cls, conninfo: str, table: str, name: str, timeout: float) -> Session:
        """Connect.

        Args:
            conninfo: where to, as libpq takes it.
            table: what the session is for.
            name: its ``application_name``.
            timeout: seconds that a statement or a wait may take.

        Raises:
            SetupError: ``conninfo`` cannot be used, or psycopg is not installed.
            As the other methods.
        """
        psycopg = client()
        from psycopg.conninfo import conninfo_to_dict

        seconds = max(1, round(timeout / 4))
        defaults = {
            "connect_timeout": max(2, round(timeout)),
            "keepalives_idle": seconds,
            "keepalives_interval": seconds,
            "keepalives_count": 3,
            "tcp_user_timeout": _ms(timeout),
        }
        if _is_ambiguous(conninfo):
            raise SetupError(
                f"table {table} cannot be written to",
                "a URL that has '@' once, between the user and the host",
                "one with an '@' or '/' in the user or the password",
                "write '@' there as %40, and '/' as %2F",
            )
        try:
            given = conninfo_to_dict(conninfo)
        except psycopg.Error:
            given = None
        if given is None:
            # The client's own words may have a part of the password.
            raise SetupError(
                f"table {table} cannot be written to",
                'a conninfo such as "host=db port=5432 dbname=flights user=chandy" or "postgresql://..."',
                "one that libpq does not understand",
            )
        where = f"{_place(given)}, table {table}"
        try:
            connection = psycopg.connect(
                **(defaults | given | {"application_name": name, "client_encoding": "UTF8"}),
                prepare_threshold=None,
            )
        except psycopg.Error as error:
            raise _not_connected(error, where) from error
        session = cls(connection, where, timeout)
        try:
            session._set_timeouts(seconds)
        except BaseException:
            session.close()
            raise
        return session

    def query(self, statement: str, *parameters: object) -> list[tuple[Any, ...]]:
        """Carry out a statement, and return its rows."""
        with self._bounded():
            cursor = self._connection.execute(statement.encode(), parameters or None)
            return cursor.fetchall() if cursor.description else []

    def copy(self, statement: str, data: Iterable[memoryview]) -> None:
        """Carry out ``COPY ... FROM STDIN``."""
        with self._bounded(), self._connection.cursor() as cursor, cursor.copy(statement.encode()) as copy:
            for some in data:
                copy.write(some)

    def commit(self) -> None:
        """End the transaction, and keep what it did. After TargetUnavailableError nobody knows whether it is kept."""
        with self._bounded():
            self._connection.commit()

    def rollback(self) -> None:
        """End the transaction, and keep nothing."""
        with self._bounded():
            self._connection.rollback()

    def close(self) -> None:
        """End the connection. It may be called twice, and never fails."""
        self.closed = True
        self._connection.close()
        self._socket.close()

    def _set_timeouts(self, seconds: int) -> None:
        # By statements and not by the connection's options, which poolers refuse.
        settings = {
            "statement_timeout": _ms(self._timeout),
            "lock_timeout": _ms(self._timeout),
            "idle_in_transaction_session_timeout": _ms(_IDLE_S),
            "default_transaction_isolation": "read committed",
            "tcp_keepalives_idle": seconds,
            "tcp_keepalives_interval": seconds,
            "tcp_keepalives_count": 3,
            "tcp_user_timeout": _ms(self._timeout),
        }
        self.query(sql.SETTINGS, list(settings), [str(value) for value in settings.values()])
        self.commit()

    @contextlib.contextmanager
    def _bounded(self) -> Iterator[None]:
        """Translate errors, and cut the connection if the server says nothing at all, not even that time is up."""
        psycopg = client()
        if self.closed:
            raise TargetUnavailableError(self.where, "the connection has been closed", is_understood=True)
        late = threading.Event()

        def cut() -> None:
            late.set()
            with contextlib.suppress(OSError):
                self._socket.shutdown(socket.SHUT_RDWR)

        timer = threading.Timer(self._timeout + min(self._timeout, _SLACK), cut)
        timer.daemon = True
        timer.start()
        try:
            yield
        except psycopg.Error as error:
            if late.is_set():
                reason = f"it has not answered within {timer.interval:g} s"
                raise TargetUnavailableError(self.where, reason, is_understood=True) from error
            raise translated(error, self.where) from error
        finally:
            timer.cancel()


def translated(error: psycopg.Error, where: str) -> ChandyError:
    """Return the error of the client or the server as one of Chandy's."""
    said = _said(error)
    code = error.sqlstate
    if code is not None and _is_about_a_row(error, code):
        return RowRefusedError(_refuses(where), "that it takes all rows", said, _advice(code))
    if code == _LOCKED:
        return LockedError(where, said, is_understood=True)
    if code == _FULL:
        return TargetFullError(where, said)
    if code == _CANCELED:
        # The server is there. What never fits into its time would be tried for ever.
        why = f"{said}; raise the sink's `timeout` if a statement needs longer than that"
        return TargetUnavailableError(where, why, is_understood=False)
    # A client's own error without a code is that of its connection, or of its use.
    if code is None and isinstance(error, client().OperationalError):
        return TargetUnavailableError(where, said, is_understood=True)
    if code is not None and _AGAIN.match(code):
        return TargetUnavailableError(where, said, is_understood=True)
    kind = ForbiddenError if code == _FORBIDDEN else OutputError
    return kind(_refuses(where), "that it takes all rows", said, _advice(code or ""))


def _is_about_a_row(error: psycopg.Error, code: str) -> bool:
    """Return whether a row is refused, perhaps by the table's own functions, which choose the SQLSTATE."""
    is_raised = error.diag.source_function == _RAISE or not _SERVER.match(code)
    return is_raised or bool(_ROW.match(code))


def _refuses(where: str) -> str:
    return f"{where} refuses what is to be published"


def _advice(code: str) -> str:
    fitting = [start for start in _ADVICE if code.startswith(start)]
    return _ADVICE[max(fitting, key=len)] if fitting else ""


def _not_connected(error: psycopg.Error, where: str) -> ChandyError:
    said = " ".join(str(error).split())
    if _NO_ENTRY.search(said):
        return SetupError(
            f"{where} cannot be opened",
            "a server that lets the sink in",
            said,
            "correct the conninfo of the sink, or grant access",
        )
    return TargetUnavailableError(where, said, is_understood=True)


def _said(error: psycopg.Error) -> str:
    """The server's words, with the row and the column if it names them."""
    diagnosis = error.diag
    if diagnosis.message_primary is None:
        return " ".join(str(error).split())
    context = (diagnosis.context or "").split("\n")[0]
    said = [diagnosis.message_primary, diagnosis.message_detail, context, diagnosis.message_hint]
    return "; ".join(part for part in said if part) + f" (SQLSTATE {error.sqlstate})"


def _is_ambiguous(conninfo: str) -> bool:
    """Return whether a URL has characters in its password that end it: the rest would be taken for the host's name."""
    _, separator, rest = conninfo.partition("://")
    place = rest.partition("?")[0]
    return bool(separator) and (place.count("@") > 1 or "@" in place.partition("/")[2])


def _place(given: dict[str, Any]) -> str:
    """The server and the database of a conninfo, without what is secret."""
    host = given.get("host") or given.get("hostaddr") or os.environ.get("PGHOST", "localhost")
    port = given.get("port") or os.environ.get("PGPORT", "5432")
    database = given.get("dbname") or os.environ.get("PGDATABASE", "")
    return f"PostgreSQL at {host}:{port}/{database}"


def _ms(seconds: float) -> int:
    return max(1, round(seconds * 1000))
