"""Values that a column's type can have and many targets cannot: far years, and text that is no Unicode."""

from __future__ import annotations

import datetime
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    import pyarrow as pa

YEARS: Final = range(1, 10_000)
"""The years that have four digits, as dates are written down."""
_SECOND: Final = 1_000_000
_DAY: Final = 86_400 * _SECOND
_DAYS: Final = {"s": 86_400, "ms": 86_400_000, "us": _DAY, "ns": 1000 * _DAY}
"""A day in the units of Arrow."""
_CYCLE_YEARS: Final = 400
_CYCLE_DAYS: Final = 146_097
"""The days of the Gregorian calendar's 400 years, after which it repeats itself."""


def calendar_day(days: int) -> tuple[int, str]:
    """Return the year, and month and day as ``MM-DD``, of a number of days since 1970, in any year. 0 is 1 BC."""
    cycles, rest = divmod(days, _CYCLE_DAYS)
    found = datetime.date(1970, 1, 1) + datetime.timedelta(rest)
    return found.year + cycles * _CYCLE_YEARS, f"{found:%m-%d}"


def clock(micros: int) -> tuple[int, str]:
    """Return the days since 1970, and the time as ``HH:MM:SS.ffffff``, of a number of microseconds since then."""
    days, rest = divmod(micros, _DAY)
    seconds, fraction = divmod(rest, _SECOND)
    return days, f"{seconds // 3600:02}:{seconds // 60 % 60:02}:{seconds % 60:02}.{fraction:06}"


def far_year(rows: pa.Table, columns: Iterable[str]) -> str | None:
    """Say which date or timestamp of some columns, also within nested values, is outside the years 1 to 9999."""
    for name in columns:
        for values in _leaves(rows.column(name)):
            for year in years_of(values):
                if year not in YEARS:
                    return f"year {year} in column {name!r}"
    return None


def is_near(values: pa.ChunkedArray | pa.Array) -> bool:
    """Return whether dates or timestamps are of the years 1 to 9999 alone."""
    return all(year in YEARS for year in years_of(values))


def years_of(values: pa.ChunkedArray | pa.Array) -> list[int]:
    """Return the last and the first year of dates or timestamps, which are those of UTC; none of other values."""
    import pyarrow as pa
    import pyarrow.compute as pc

    given = values.type
    if pa.types.is_date32(given):
        days, a_day = values.cast(pa.int32()), 1
    elif pa.types.is_date64(given) or pa.types.is_timestamp(given):
        days, a_day = values.cast(pa.int64()), _DAYS["ms" if pa.types.is_date64(given) else given.unit]
    else:
        return []
    # Arrow's own function counts years in 16 bits.
    found = pc.min_max(days).as_py()
    return [calendar_day(one // a_day)[0] for one in (found["max"], found["min"]) if one is not None]


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
