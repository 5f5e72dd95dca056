"""Values that a column's type can have and many targets cannot: far years, and text that is no Unicode."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import pyarrow as pa

_YEARS = range(1, 10_000)
"""The years that have four digits, as dates are written down."""


def far_year(rows: pa.Table, columns: Iterable[str]) -> str | None:
    """Say which date or timestamp of some columns, also within nested values, is outside the years 1 to 9999."""
    import pyarrow as pa
    import pyarrow.compute as pc

    for name in columns:
        for values in _leaves(rows.column(name)):
            if not (pa.types.is_date(values.type) or pa.types.is_timestamp(values.type)):
                continue
            # Of a moment in another zone, its year there could be another one.
            is_zoned = pa.types.is_timestamp(values.type) and values.type.tz is not None
            moments = values.cast(pa.timestamp(values.type.unit)) if is_zoned else values
            found = pc.min_max(pc.year(moments)).as_py()
            for year in (found["max"], found["min"]):
                if year is not None and year not in _YEARS:
                    return f"year {year} in column {name!r}"
    return None


def not_a_number(rows: pa.Table, columns: Iterable[str]) -> str | None:
    """Say which of some columns has NaN; None if there is none."""
    import pyarrow as pa
    import pyarrow.compute as pc

    numbers = (name for name in columns if pa.types.is_floating(rows.schema.field(name).type))
    found = next((name for name in numbers if pc.any(pc.is_nan(rows[name])).as_py()), None)
    return None if found is None else f"NaN in column {found!r}"


def unclean_text(rows: pa.Table, columns: Iterable[str]) -> str | None:
    """Say which text of some columns, also within nested values, is no UTF-8 or has a NUL character in it."""
    import pyarrow as pa
    import pyarrow.compute as pc

    for name in columns:
        for values in _leaves(rows.column(name)):
            if not (pa.types.is_string(values.type) or pa.types.is_large_string(values.type)):
                continue
            try:
                values.validate(full=True)
            except pa.ArrowInvalid:
                return f"text that is no UTF-8 in column {name!r}"
            if pc.any(pc.match_substring(values, "\0")).as_py():
                return f"text with a NUL character in column {name!r}"
    return None


def _leaves(values: pa.ChunkedArray | pa.Array) -> Iterator[pa.ChunkedArray | pa.Array]:
    """Yield the values that are not nested, and those that nested ones have in them."""
    import pyarrow as pa
    import pyarrow.compute as pc

    given = values.type
    if pa.types.is_struct(given):
        for at in range(given.num_fields):
            yield from _leaves(pc.struct_field(values, at))
    elif pa.types.is_map(given):
        for one in values.chunks if isinstance(values, pa.ChunkedArray) else [values]:
            yield from _leaves(one.keys)
            yield from _leaves(one.items)
    elif pa.types.is_list(given) or pa.types.is_large_list(given):
        yield from _leaves(pc.list_flatten(values))
    else:
        yield values
