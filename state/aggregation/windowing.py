"""Aggregates of all rows, of windows and of sessions, described on the driver: their keys, and what fits together."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from enum import StrEnum

from pyspark.sql.types import StructType

from ...storage.checkpoints.manifest import OperatorRecord, StateRecord
from ..errors import invalid_argument
from ..operators.arrow_expiry import TimeToLive
from ..operators.time_mode import check_output_mode
from .aggregate_operator import STATE, Aggregation, Combine, aggregation
from .event_ttl import lives_by_event_time, living
from .sessions import SESSIONS, holds_sessions, in_sessions
from .windows import END, START, WindowColumn, closes_windows, windowed


class Scope(StrEnum):
    """What an aggregate is of."""

    ALL_ROWS = "all rows of a key"
    WINDOWS = "windows"
    SESSIONS = "sessions"

    @classmethod
    def of(cls, window: WindowColumn | None) -> Scope:
        """Return what aggregates are of, given the windows that rows are in."""
        if window is None:
            return cls.ALL_ROWS
        return cls.SESSIONS if window.are_sessions else cls.WINDOWS

    @classmethod
    def stored(cls, operator: OperatorRecord) -> Scope:
        """Return what the aggregates in a checkpoint are of."""
        sessions = operator.states.get(SESSIONS)
        if sessions is not None and holds_sessions(SESSIONS, sessions):
            return cls.SESSIONS
        return cls.WINDOWS if closes_windows(operator.key_schema) else cls.ALL_ROWS

    def takes_up(self, stored: Scope) -> bool:
        """Return whether aggregates of this go on from stored ones, so that none is left behind or stays open for ever.

        Windows that an operator has closed may go on as plain keys: nothing is closed any more, and nothing is lost.
        """
        return self is stored or (self, stored) == (Scope.ALL_ROWS, Scope.WINDOWS)


def has_ends(key_schema: str, name: str, record: StateRecord) -> bool:
    """Return whether the watermark ends what a state has of a key, so that the key needs an entry under ``WINDOWS``.

    Args:
        key_schema: schema of the key columns of its operator, as Spark's JSON.
        name: the state.
        record: its description.
    """
    if name == STATE:
        return closes_windows(key_schema) or lives_by_event_time(record)
    return holds_sessions(name, record)


def key_columns(by: Sequence[str], window: WindowColumn | None) -> tuple[str, ...]:
    """Return the names of the columns that state is keyed by: a window is part of the key, a session is not."""
    return (START, END, *by) if Scope.of(window) is Scope.WINDOWS else tuple(by)


def aggregation_in(
    window: WindowColumn | None,
    schema: StructType,
    by: Sequence[str],
    columns: Mapping[str, tuple[str, str]],
    *,
    uid: str,
    output_mode: str,
    combine: Combine = "auto",
    ttl: TimeToLive | None = None,
) -> Aggregation:
    """Describe running aggregates of all rows, of windows or of sessions.

    Args:
        window: the windows that rows are in; None if the aggregates are of all rows.
        schema: of the rows. In windows, they have the columns ``START`` and ``END``.
        by: names of the columns to group by beside the window.
        columns, uid, combine, ttl: as for ``living``.
        output_mode: "update" or "append".

    Raises:
        DefinitionError: an argument cannot be used, or arguments do not fit each other.
    """
    scope = Scope.of(window)
    check_output_mode(output_mode)
    mode = output_mode.lower()
    if mode == "append" and scope is Scope.ALL_ROWS:
        expected = "'update' for aggregates without window=, which may always change"
        raise invalid_argument("output_mode", expected, repr(output_mode))
    if mode != "append" and scope is Scope.SESSIONS:
        expected = "'append' for sessions, which are output when they close: until then they may become one"
        raise invalid_argument("output_mode", expected, repr(output_mode))
    if window is None:
        return living(schema, by, columns, uid=uid, combine=combine, ttl=ttl)
    if ttl is not None:
        expected = "None for aggregates with window=, which live until their window closes"
        raise invalid_argument("ttl", expected, f"{ttl.ms} ms")
    if scope is Scope.SESSIONS:
        made = aggregation(schema, (*by, START, END), columns, uid=uid, combine=combine)
        return in_sessions(made, window.output)
    made = aggregation(schema, (START, END, *by), columns, uid=uid, combine=combine)
    return windowed(made, window.output, only_closed=mode == "append")
