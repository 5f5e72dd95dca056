"""What is kept of a difference: the first rows or items of both sides, beside each other, as Parquet.

Of the leader's output there is only a digest, unless its sink stages rows in the pipeline's own storage: then the
checkpoint that has the batch has its rows, too. So of output, the shadow's rows are kept for sure, and the leader's if
they can be read. Of state, both sides are there.
"""

from __future__ import annotations

import io
import json
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, Final

import attrs

from ...state.reader.differences import OperatorDifferences, StateDifferences
from .outputs import LEADER_AND_SHADOW, Sides, counted

if TYPE_CHECKING:
    import pyarrow as pa

SIDE: Final = "side"
_LONGEST: Final = 300
"""Characters of an example. The file has it all."""


@attrs.frozen
class Kept:
    """What is kept of one comparison."""

    example: str
    """One row or key, as both sides have it."""
    parquet: bytes
    says: str = ""
    """What else can be said now that rows were looked at; empty: nothing."""


# --- state --------------------------------------------------------------------------------------------------


def differing_states(found: OperatorDifferences) -> tuple[StateDifferences, ...]:
    """Return the states of an operator that differ."""
    return tuple(state for state in found.states if state.total)


def says_of(state: StateDifferences, sides: Sides = LEADER_AND_SHADOW) -> str:
    """Say how a state differs."""
    counts = {
        f"that only the {sides.old} has": state.removed,
        f"that only the {sides.new} has": state.added,
        "with other values": state.changed,
    }
    what = "item" if state.kind in ("list", "map") else "timer" if state.kind == "timers" else "key"
    return ", ".join(f"{counted(count, what)} {how}" for how, count in counts.items() if count)


def kept_state(operator: str, states: Sequence[StateDifferences], sides: Sides = LEADER_AND_SHADOW) -> Kept:
    """Return what is kept of an operator whose state differs: the first items of each state."""
    import pyarrow as pa

    rows = [
        {
            "operator": operator,
            "state": state.name,
            "change": {"added": f"only the {sides.new}", "removed": f"only the {sides.old}"}.get(
                one.change.value, "other values"
            ),
            "key": _text(one.key),
            "place": _text(one.place) if one.place else None,
            sides.old: None if one.old is None else _text(one.old),
            sides.new: None if one.new is None else _text(one.new),
        }
        for state in states
        for one in state.shown
    ]
    names = ("operator", "state", "change", "key", "place", sides.old, sides.new)
    table = pa.Table.from_pylist(rows, pa.schema([(name, pa.string()) for name in names]))
    return Kept(_example_of_item(states, sides), _parquet(table))


def _example_of_item(states: Sequence[StateDifferences], sides: Sides) -> str:
    one = next((one for state in states for one in state.shown), None)
    if one is None:
        return ""
    whose = _fields(one.key | one.place)
    return _cut(f"{whose}: {_side(sides.old, one.old)}, {_side(sides.new, one.new)}")


# --- rows ---------------------------------------------------------------------------------------------------


def kept_rows(
    old: Iterable[pa.Table] | None,
    new: Iterable[pa.Table],
    ignored: frozenset[str],
    limit: int,
    sides: Sides = LEADER_AND_SHADOW,
) -> Kept:
    """Return what is kept of output that differs: the first rows that only one side has, those alike together.

    Args:
        old: the rows of the old side; None: they cannot be read. Then the first rows of the new side are kept.
        new: those of the new side.
        ignored: columns in which they may differ.
        limit: the most rows of each side.
        sides: what they are called.
    """
    was = None if old is None else list(_rows(old))
    now = list(_rows(new))
    if was is None:
        first = _cut(_side(sides.new, now[0])) if now else ""
        return Kept(first, _parquet(_beside({sides.new: now[:limit]})))
    keys = Counter(_key(row, ignored) for row in was)
    keys.subtract(_key(row, ignored) for row in now)
    only = {sides.old: _surplus(was, keys, ignored, limit), sides.new: _surplus(now, -keys, ignored, limit)}
    counts = {sides.old: sum((+keys).values()), sides.new: sum((-keys).values())}
    says = ", ".join(
        f"{counted(count, 'row')} that only the {side} has" for side, count in counts.items() if count
    )
    return Kept(_example_of_rows(only, ignored), _parquet(_beside(only)), says)


def _rows(tables: Iterable[pa.Table]) -> Iterator[dict[str, Any]]:
    for table in tables:
        yield from table.to_pylist()


def _key(row: dict[str, Any], ignored: frozenset[str]) -> str:
    return _text({name: value for name, value in row.items() if name not in ignored})


def _surplus(
    rows: Sequence[dict[str, Any]], counts: Counter[str], ignored: frozenset[str], limit: int
) -> list[dict[str, Any]]:
    """Return the first rows of which one side has more, in the order of their values."""
    left, found = +counts, list[dict[str, Any]]()
    for row in rows:
        if len(found) < limit and left[key := _key(row, ignored)] > 0:
            left[key] -= 1
            found.append(row)
    return sorted(found, key=lambda row: _key(row, ignored))


def _beside(only: dict[str, list[dict[str, Any]]]) -> pa.Table:
    """Return rows of both sides as one table. Rows that are alike follow each other."""
    import pyarrow as pa

    both = [{SIDE: side} | row for side, rows in only.items() for row in rows]
    both.sort(key=lambda row: _text({name: value for name, value in row.items() if name != SIDE}))
    names = dict.fromkeys([SIDE, *(name for row in both for name in row)])
    filled = {name: [row.get(name) for row in both] for name in names}
    try:
        return pa.table(filled)
    except pa.ArrowException:
        # The sides have other types.
        return pa.table(
            {name: [value if value is None else _text(value) for value in filled[name]] for name in names}
        )


def _example_of_rows(only: dict[str, list[dict[str, Any]]], ignored: frozenset[str]) -> str:
    (old, was), (new, now) = only.items()
    if not was or not now:
        return _cut(f"only the {old if was else new} has {_fields((was or now)[0])}") if was or now else ""

    def alike(pair: tuple[dict[str, Any], dict[str, Any]]) -> int:
        one, other = pair
        return sum(
            name in other and other[name] == value for name, value in one.items() if name not in ignored
        )

    one, other = max(((one, other) for one in was for other in now), key=alike)
    same = {name: value for name, value in one.items() if name in other and other[name] == value}
    rest = [{name: value for name, value in row.items() if name not in same} for row in (one, other)]
    whose = f"{_fields(same)}: " if same else ""
    return _cut(f"{whose}{_side(old, rest[0])}, {_side(new, rest[1])}")


# --- texts --------------------------------------------------------------------------------------------------


def _side(side: str, values: dict[str, Any] | None) -> str:
    return f"{side} has {'nothing' if values is None else _fields(values) or 'it'}"


def _fields(values: dict[str, Any]) -> str:
    return " ".join(f"{name}={_text(value)}" for name, value in values.items())


def _text(value: object) -> str:
    return json.dumps(value, ensure_ascii=False, sort_keys=True, default=str)


def _cut(text: str) -> str:
    return text if len(text) <= _LONGEST else f"{text[: _LONGEST - 3]}..."


def _parquet(table: pa.Table) -> bytes:
    import pyarrow.parquet as pq

    stream = io.BytesIO()
    pq.write_table(table, stream)
    return stream.getvalue()
