"""What the columns of a target do not take although their types do, which only the target knows."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import attrs

if TYPE_CHECKING:
    import pyarrow as pa


@attrs.frozen
class Limits:
    """Limits of values, by the names of columns. A column that the rows do not have limits nothing."""

    never_null: frozenset[str] = frozenset()
    lengths: Mapping[str, int] = attrs.field(factory=dict)
    """The most characters that a text of a column, or of a list in it, may have."""

    def broken_by(self, rows: pa.Table) -> str | None:
        """Say which value is beyond a limit; None if there is none."""
        for name in sorted(self.never_null.intersection(rows.column_names)):
            if rows[name].null_count:
                return f"null in column {name!r}"
        for name, most in self.lengths.items():
            if name in rows.column_names and (found := longest(rows[name])) > most:
                return f"a text of {found} characters in column {name!r}, which takes {most}"
        return None


def longest(values: pa.ChunkedArray) -> int:
    """Return how many characters the longest text has that is a value or in a list; 0 if there is no text."""
    import pyarrow as pa
    import pyarrow.compute as pc

    if pa.types.is_list(values.type) or pa.types.is_large_list(values.type):
        return longest(pc.list_flatten(values))
    if not (pa.types.is_string(values.type) or pa.types.is_large_string(values.type)):
        return 0
    return pc.max(pc.utf8_length(values)).as_py() or 0
