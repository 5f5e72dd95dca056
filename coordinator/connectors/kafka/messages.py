"""Rows as Kafka's messages: which columns they have, and what is in them. The columns are those of Spark's own sink."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, Final

import attrs

from ...sinks.two_phase.errors import OutputError
from ..values import unclean_text

if TYPE_CHECKING:
    import pyarrow as pa

KEY: Final = "key"
SHOWN: Final = 60
"""Characters of a key that messages show."""


@attrs.frozen
class KafkaRecord:
    """One record to be published."""

    topic: str
    value: bytes | None
    """None deletes the key from a compacted topic."""
    key: bytes | None = None
    headers: list[tuple[str, bytes | None]] | None = None
    partition: int | None = None
    """None: Kafka's partitioner chooses it by the key."""

    def __str__(self) -> str:
        """Return which row it is, for an error."""
        partition = "" if self.partition is None else f" for partition {self.partition}"
        return f"the row with key {shown(self.key)}{partition}"


def shown(key: bytes | None) -> str:
    """Return a key as text for messages."""
    if key is None:
        return "null"
    text = repr(key.decode(errors="backslashreplace"))
    return text if len(text) <= SHOWN else f"{text[:SHOWN]}... ({len(key)} bytes)"


def check_columns(schema: pa.Schema, topic: str | None) -> None:
    """Check that rows of a schema are messages.

    Args:
        schema: of the rows.
        topic: the topic of all rows; None: each row names its own.

    Raises:
        OutputError: a column is missing, unknown, or of another type.
    """
    kinds = _kinds()
    for name, wanted in (("value", True), ("topic", topic is None)):
        if wanted and name not in schema.names:
            raise _refused(
                f"a column {name!r}", f"columns {', '.join(schema.names) or 'none'}", _ADVICE_MISSING[name]
            )
    for field in schema:
        if schema.names.count(field.name) > 1:
            raise _refused(f"one column {field.name!r}", "several", "select each once")
        if field.name not in kinds:
            raise _refused(
                f"columns {', '.join(kinds)} alone",
                f"column {field.name!r}",
                "select what is to be published, such as `to_json(struct(*)) AS value`",
            )
        expected, is_one = kinds[field.name]
        if not is_one(field.type):
            raise _refused(f"column {field.name!r} of type {expected}", f"type {field.type}", "cast it")


def check_has_key(schema: pa.Schema, topic: str) -> None:
    """Check that rows have the key that a compacted topic needs.

    Raises:
        OutputError: they have none.
    """
    import pyarrow as pa

    if KEY not in schema.names or pa.types.is_null(schema.field(KEY).type):
        advice = "give each row a key, or the topic another cleanup.policy"
        raise _refused(f"a column {KEY!r} of text or bytes for the compacted topic {topic!r}", "none", advice)


def unpublishable(rows: pa.Table, topic: str | None) -> str | None:
    """Say which rows can be no messages; None if all can. Args are those of ``messages``."""
    import pyarrow as pa
    import pyarrow.compute as pc

    texts: dict[str, pa.ChunkedArray] = {}
    if topic is None:
        topics = texts["topic"] = rows["topic"]
        if topics.null_count or pc.any(pc.equal(topics, "")).as_py():
            return "null or an empty text in column 'topic'"
    if "partition" in rows.column_names and (pc.min(rows["partition"]).as_py() or 0) < 0:
        return f"partition {pc.min(rows['partition']).as_py()}"
    if "headers" in rows.column_names and not pa.types.is_null(rows["headers"].type):
        headers = pc.list_flatten(rows["headers"])
        keys = texts["key of headers"] = pc.struct_field(headers, "key")
        if keys.null_count:
            return "a header without a key in column 'headers'"
    # The client ends names at a NUL character.
    found = (unclean_text(pa.table({name: values}), [name]) for name, values in texts.items())
    return next(filter(None, found), None)


def messages(rows: pa.Table, topic: str | None) -> Iterator[KafkaRecord]:
    """Yield the rows as messages, in their order.

    Args:
        rows: with columns that ``check_columns`` accepts.
        topic: the topic of all rows. It goes before the column ``topic``.

    Raises:
        OutputError: a row cannot be a message. It is named by its key.
    """
    for batch in rows.to_batches():
        nothing = [None] * batch.num_rows
        columns: dict[str, list[Any]] = dict.fromkeys(_kinds(), nothing)
        for name in batch.schema.names:
            columns[name] = _values(batch.column(name), name)
        topics = columns["topic"] if topic is None else [topic] * batch.num_rows
        for of, key, value, headers, partition in zip(
            topics, columns["key"], columns["value"], columns["headers"], columns["partition"], strict=True
        ):
            if not of:
                raise _refused_row(key, "a topic", "null" if of is None else "an empty one")
            if partition is not None and partition < 0:
                raise _refused_row(key, "a partition of 0 or more, or null", str(partition))
            yield KafkaRecord(of, value, key, None if headers is None else _headers(key, headers), partition)


_ADVICE_MISSING: Final = {
    "value": "name what is to be published `value`, such as `to_json(struct(*)) AS value`",
    "topic": "give the sink its `topic`, or each row its own in a column `topic`",
}


def _kinds() -> dict[str, tuple[str, Callable[[pa.DataType], bool]]]:
    """Return, by the name of each column, the type that it has, for messages and as a test."""
    import pyarrow as pa

    kinds = pa.types

    def is_text(type_: pa.DataType) -> bool:
        return bool(kinds.is_string(type_) or kinds.is_large_string(type_))

    def is_bytes(type_: pa.DataType) -> bool:
        return is_text(type_) or kinds.is_binary(type_) or kinds.is_large_binary(type_)

    def are_headers(type_: pa.DataType) -> bool:
        if not (kinds.is_list(type_) or kinds.is_large_list(type_)):
            return False
        pair = type_.value_type
        if not kinds.is_struct(pair) or [field.name for field in pair] != ["key", "value"]:
            return False
        return is_text(pair.field("key").type) and is_bytes(pair.field("value").type)

    def or_null(test: Callable[[pa.DataType], bool]) -> Callable[[pa.DataType], bool]:
        return lambda type_: kinds.is_null(type_) or test(type_)

    return {
        "key": ("string or binary", or_null(is_bytes)),
        "value": ("string or binary", is_bytes),
        "topic": ("string", is_text),
        "headers": ("array<struct<key: string, value: binary>>", or_null(are_headers)),
        "partition": ("int", or_null(kinds.is_int32)),
    }


def _values(column: pa.Array, name: str) -> list[Any]:
    import pyarrow as pa

    # The bytes of a string are those of its UTF-8, so that nothing is copied or decoded.
    if name in ("key", "value"):
        if pa.types.is_string(column.type):
            column = column.cast(pa.binary())
        elif pa.types.is_large_string(column.type):
            column = column.cast(pa.large_binary())
    elif name == "headers" and not pa.types.is_null(column.type):
        column = column.cast(
            pa.large_list(pa.struct([("key", pa.large_string()), ("value", pa.large_binary())]))
        )
    values: list[Any] = column.to_pylist()
    return values


def _headers(key: bytes | None, headers: list[dict[str, Any] | None]) -> list[tuple[str, bytes | None]]:
    found = []
    for header in headers:
        if header is None or header["key"] is None:
            raise _refused_row(key, "headers with a key each", "null")
        found.append((header["key"], header["value"]))
    return found


def _refused(expected: str, found: str, advice: str) -> OutputError:
    return OutputError("rows cannot be published to Kafka", expected, found, advice)


def _refused_row(key: bytes | None, expected: str, found: str) -> OutputError:
    return OutputError(
        f"the row with key {shown(key)} cannot be published to Kafka", expected, found, "correct the query"
    )
