"""What a target does not take although its columns have the types of the rows: values, and what names a row."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING

import attrs

from .errors import OutputError

if TYPE_CHECKING:
    import pyarrow as pa


@attrs.frozen
class Limits:
    """Limits of values, by the names of columns. A column that the rows do not have limits nothing."""

    never_null: frozenset[str] = frozenset()
    lengths: Mapping[str, int] = attrs.field(factory=dict)
    """The most characters that a text of a column, or of a list in it, may have."""
    columns: tuple[pa.Field, ...] = ()
    """Columns as the target has them: none of their values, nor of those nested in them, is null where its field is
    not nullable, or has another number of bytes than its type."""

    def broken_by(self, rows: pa.Table) -> str | None:
        """Say which value is beyond a limit; None if there is none."""
        return next(self._broken_by(rows), None)

    def _broken_by(self, rows: pa.Table) -> Iterator[str]:
        for name in sorted(self.never_null.intersection(rows.column_names)):
            if rows[name].null_count:
                yield f"null in column {name!r}"
        for name, most in self.lengths.items():
            if name in rows.column_names and (found := longest(rows[name])) > most:
                yield f"a text of {found} characters in column {name!r}, which takes {most}"
        for field in self.columns:
            if field.name in rows.column_names:
                for what in _beyond(rows[field.name], field):
                    yield f"{what} in column {field.name!r}"


def limits_values(field: pa.Field) -> bool:
    """Return whether a field takes less than all values of its type, whatever the number of their bytes."""
    import pyarrow.types as types

    parts = [field.type.field(at) for at in range(field.type.num_fields)]
    return (
        not field.nullable
        or types.is_fixed_size_binary(field.type)
        or any(limits_values(part) for part in parts)
    )


def _beyond(values: pa.ChunkedArray, field: pa.Field, within: str = "") -> Iterator[str]:
    """Say what a field does not take of values, also within them."""
    import pyarrow as pa
    import pyarrow.compute as pc

    if values.null_count:
        if not field.nullable:
            yield f"null{within}"
        # What is nested in a null does not count.
        values = values.drop_null()
    given, wanted = values.type, field.type
    if pa.types.is_fixed_size_binary(wanted) and _is_bytes(given):
        found = pc.min_max(pc.binary_length(values)).as_py()
        for size in {found["min"], found["max"]} - {None, wanted.byte_width}:
            yield f"{size} bytes{within} instead of {wanted.byte_width}"
    elif pa.types.is_struct(wanted) and pa.types.is_struct(given):
        for part in wanted:
            if (at := given.get_field_index(part.name)) >= 0:
                yield from _beyond(pc.struct_field(values, at), part, f" as {part.name!r}{within}")
    elif pa.types.is_map(wanted) and pa.types.is_map(given):
        entry = pa.struct([given.key_field, given.item_field])
        entries = pc.list_flatten(values.cast(pa.list_(entry)))
        # Neither Spark nor any target has null keys.
        yield from _beyond(pc.struct_field(entries, 1), wanted.item_field, f" as a value of a map{within}")
    elif _is_list(wanted) and _is_list(given):
        yield from _beyond(pc.list_flatten(values), wanted.value_field, f" in a list{within}")


def check_key(target: str, schema: pa.Schema, key: Iterable[str]) -> None:
    """Check that the columns that name a row are among the rows' columns, and can be compared.

    Raises:
        OutputError: one is missing or nested.
    """
    import pyarrow as pa

    found = {
        name: str(schema.field(name).type) if name in schema.names else "missing"
        for name in key
        if name not in schema.names or pa.types.is_nested(schema.field(name).type)
    }
    if found:
        raise OutputError(
            f"{target} cannot be written",
            f"key columns that are not nested, among the rows' columns: {', '.join(schema.names)}",
            "; ".join(f"{name!r} is {what}" for name, what in found.items()),
            "correct `key` of the sink, or make one text of the column in the query",
        )


def one_key(values: pa.ChunkedArray) -> pa.ChunkedArray:
    """Return the values of a key column so that those are alike that are one group of Spark's GROUP BY.

    Spark takes -0.0 for 0.0, and one NaN for another.
    """
    import pyarrow as pa
    import pyarrow.compute as pc

    if not pa.types.is_floating(values.type):
        return values
    nan, zero = pa.scalar(math.nan, values.type), pa.scalar(0.0, values.type)
    return pc.if_else(pc.is_nan(values), nan, pc.add(values, zero))


def longest(values: pa.ChunkedArray) -> int:
    """Return how many characters the longest text has that is a value or in a list; 0 if there is no text."""
    import pyarrow as pa
    import pyarrow.compute as pc

    if _is_list(values.type):
        return longest(pc.list_flatten(values))
    if not (pa.types.is_string(values.type) or pa.types.is_large_string(values.type)):
        return 0
    return pc.max(pc.utf8_length(values)).as_py() or 0


def _is_list(type_: pa.DataType) -> bool:
    import pyarrow.types as types

    return bool(types.is_list(type_) or types.is_large_list(type_))


def _is_bytes(type_: pa.DataType) -> bool:
    import pyarrow.types as types

    return bool(types.is_binary(type_) or types.is_large_binary(type_) or types.is_fixed_size_binary(type_))
