"""The formats in which changes of a state are written to a target, as transformations of a DataFrame of changes.

| format | rows |
|---|---|
| ``table`` | the columns of the key and the value, and ``_deleted``: for an upsert and delete by key |
| ``upsert`` | ``key`` and ``value``, null of a deletion: for a compacted topic, as Flink's and Kafka Streams' |
| ``debezium`` | ``key`` and ``value``: an envelope, and after a deletion a tombstone |
| ``changes`` | the columns of ``state.reader.changes``: for a log of all changes |

The envelope is that of Debezium (https://debezium.io/documentation/reference/stable/connectors/postgresql.html,
"Data change events"), without its schema: ``op`` is c, u, d or r, and the transaction is the checkpoint.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Final, Literal, get_args

import attrs
from pyspark.sql import functions as F  # noqa: N812 (its usual name)

from ...state.operators.dataframe import quoted
from ...state.reader.changes import (
    BEFORE,
    CHANGE,
    CHECKPOINT,
    COMPLETED_AT,
    DELETE,
    INSERT,
    READ,
    SHARD,
    UPDATE,
)
from ..errors import ArgumentError
from .encodings import KEY, VALUE

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

Format = Literal["table", "upsert", "debezium", "changes"]
FORMATS: Final[tuple[Format, ...]] = get_args(Format)
MESSAGES: Final[tuple[Format, ...]] = ("upsert", "debezium")
"""The formats of messages: structs ``key`` and ``value``, which an encoding makes text or bytes."""

DELETED: Final = "_deleted"
"""The column of a table's rows that marks deletions."""

_OPS: Final = {READ: "r", INSERT: "c", UPDATE: "u", DELETE: "d"}


@attrs.frozen
class Origin:
    """Where changes come from, for readers of an envelope."""

    pipeline: str
    operator: str
    state: str


@attrs.frozen
class ChangedRows:
    """A DataFrame of changes, and which of its columns say what."""

    rows: DataFrame
    key: tuple[str, ...]
    """The columns that say which item a row is about: of the key, the map's key or the position in a list."""
    value: tuple[str, ...]
    """The columns of the value."""

    def written_as(self, wanted: Format, origin: Origin) -> DataFrame:
        """Return the rows in a format; those of messages are still to be encoded."""
        return _WRITERS[wanted](self, origin)


def check_format(wanted: str) -> None:
    """Refuse a format that there is not.

    Raises:
        ArgumentError: there is no such format.
    """
    if wanted not in FORMATS:
        raise ArgumentError(
            "a state cannot be replicated in this format",
            f"one of {', '.join(map(repr, FORMATS))}",
            repr(wanted),
        )


def _table(changes: ChangedRows, origin: Origin) -> DataFrame:
    names = (*changes.key, *changes.value)
    return changes.rows.select(*_columns(names), _is_deleted().alias(DELETED))


def _upsert(changes: ChangedRows, origin: Origin) -> DataFrame:
    return changes.rows.select(_key(changes), _after(changes).alias(VALUE))


def _debezium(changes: ChangedRows, origin: Origin) -> DataFrame:
    after = _after(changes)
    has_before = BEFORE in changes.rows.columns
    nothing = F.lit(None).cast(changes.rows.select(after.alias(VALUE)).schema[VALUE].dataType)
    op = F.lit(None).cast("string")
    for change, letter in _OPS.items():
        op = F.when(F.col(CHANGE) == change, letter).otherwise(op)
    source = F.struct(
        F.lit("chandy").alias("connector"),
        F.lit(origin.pipeline).alias("name"),
        F.lit(origin.operator).alias("operator"),
        F.lit(origin.state).alias("state"),
        F.col(CHECKPOINT).alias("checkpoint"),
        F.col(SHARD).alias("shard"),
        F.when(F.col(CHANGE) == READ, "true").otherwise("false").alias("snapshot"),
        _milliseconds().alias("ts_ms"),
    )
    envelope = F.struct(
        (F.col(BEFORE) if has_before else nothing).alias("before"),
        after.alias("after"),
        source.alias("source"),
        op.alias("op"),
        _milliseconds().alias("ts_ms"),
        F.struct(F.col(CHECKPOINT).cast("string").alias("id")).alias("transaction"),
    )
    tombstone = F.lit(None)
    values = F.when(_is_deleted(), F.array(envelope, tombstone)).otherwise(F.array(envelope))
    return changes.rows.select(_key(changes), F.explode(values).alias(VALUE))


def _changes(changes: ChangedRows, origin: Origin) -> DataFrame:
    own = [name for name in changes.rows.columns if name in (CHANGE, CHECKPOINT, COMPLETED_AT, SHARD, BEFORE)]
    return changes.rows.select(*_columns((*changes.key, *changes.value, *own)))


_WRITERS: Final[dict[Format, Callable[[ChangedRows, Origin], DataFrame]]] = {
    "table": _table,
    "upsert": _upsert,
    "debezium": _debezium,
    "changes": _changes,
}


def _is_deleted() -> Column:
    return F.col(CHANGE) == DELETE


def _milliseconds() -> Column:
    return F.unix_millis(F.col(COMPLETED_AT))


def _key(changes: ChangedRows) -> Column:
    return F.struct(*_columns(changes.key)).alias(KEY)


def _after(changes: ChangedRows) -> Column:
    return F.when(~_is_deleted(), F.struct(*_columns(changes.value)))


def _columns(names: Iterable[str]) -> list[Column]:
    return [F.col(quoted(name)) for name in names]
