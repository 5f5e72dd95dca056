"""Tables in HTML: how values show themselves in notebooks."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from html import escape
from itertools import islice
from typing import Final

_MOST: Final = 100
"""How many rows a table shows."""


def table(title: str, columns: Sequence[str], rows: Sequence[Sequence[object]]) -> str:
    """Return a table; what is in it is text, whatever it looks like.

    Args:
        title: is above the table.
        columns: the names of the columns.
        rows: a value for each column. None is shown as nothing; of many rows the first ones are.
    """
    shown = "".join(f"<tr>{_cells(row, 'td')}</tr>" for row in islice(rows, _MOST))
    left = len(rows) - _MOST
    more = f"<p>and {left:,} more</p>" if left > 0 else ""
    return (
        f"<table><caption>{escape(title)}</caption>"
        f"<thead><tr>{_cells(columns, 'th')}</tr></thead><tbody>{shown}</tbody></table>{more}"
    )


def _cells(values: Iterable[object], kind: str) -> str:
    return "".join(f"<{kind}>{'' if value is None else escape(str(value))}</{kind}>" for value in values)
