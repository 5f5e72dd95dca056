"""Schema evolution: how the schema of a state may change between two starts, and how older rows are converted.

| was | may become |
|---|---|
| a struct | one with the same fields by name, in any order, and more that are nullable |
| byte, short, int | a wider integer, or double |
| float | double |
| decimal | a decimal of greater precision and the same scale |
| char, varchar | string, or varchar that is as long or longer |
| void | any type |
| not null | nullable |
| a struct with bookkeeping of the operator | one without it, or with another; what it was stays |

So every old value has exactly one new value, and nothing is lost. The same rules hold for the elements of arrays,
the keys and values of maps and the fields of structs. The kind of a state and the keys of a map state cannot change.
A time to live can be added, changed and removed.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import Any, Final

import attrs
import pyarrow as pa
from pyspark.sql import types

from ...storage.checkpoints.manifest import OperatorRecord, StateRecord
from ...storage.ids import BatchId
from ..errors import StateSchemaError
from .schema import MADE_OF, arrow_struct, from_json, to_json

MAX_VERSIONS: Final = 128
"""The most schemas that one state can have had: a packed row has seven bits for the version of its schema."""

_INTEGERS: Final = (types.ByteType, types.ShortType, types.IntegerType, types.LongType)
_WIDER: dict[type[types.DataType], tuple[type[types.DataType], ...]] = {
    types.ByteType: (types.ShortType, types.IntegerType, types.LongType, types.DoubleType),
    types.ShortType: (types.IntegerType, types.LongType, types.DoubleType),
    types.IntegerType: (types.LongType, types.DoubleType),
    types.FloatType: (types.DoubleType,),
}

TIME: Final = "$time"
END: Final = "$end"
"""When a key ends in event time, and the event time of the row that has decided so, in milliseconds since 1970."""
EARLIER_TIMES: Final = ("$last_time", "$first_time")
"""What an earlier version of Chandy has instead: the event time alone."""
BOOKKEEPING: Final = frozenset({TIME, END, *EARLIER_TIMES})
"""Fields that an operator keeps for itself among those of a state. They stay when they are declared no more."""

RowConverter = Callable[[tuple[Any, ...]], tuple[Any, ...]]
ColumnConverter = Callable[[pa.StructArray], pa.StructArray]


def evolve(was: StateRecord | None, now: StateRecord, operator: str, name: str) -> StateRecord:
    """Return the record of a state from now on, with all schemas that its stored values may have.

    Args:
        was: the record in the restored checkpoint; None if the checkpoint does not have the state.
        now: the record that the operator declares, with one version.
        operator: uid of the operator, for errors.
        name: name of the state, for errors.

    Raises:
        StateSchemaError: values that were written cannot be read as what the operator declares.
    """
    if was is None:
        return now
    old, new = from_json(was.versions[-1]), from_json(now.versions[-1])
    kept = [field for field in old.fields if field.name in BOOKKEEPING and field.name not in new.names]
    if kept:
        new = types.StructType([*new.fields, *kept])
        now = attrs.evolve(now, versions=(to_json(new),))

    def refusal(expected: str, found: str, detail: str) -> StateSchemaError:
        return StateSchemaError(
            f"state {name!r} of operator {operator!r} cannot read its values in the checkpoint: {detail}",
            f"{expected} as in the checkpoint, or a change that keeps every value",
            found,
            "undo the change, or give the changed state another name",
        )

    if was.kind is not now.kind:
        raise refusal(f"a {was.kind}", f"a {now.kind}", "the kind of a state cannot change")
    if was.map_key != now.map_key:
        keys = [shown(from_json(key)) if key else "none" for key in (was.map_key, now.map_key)]
        raise refusal(keys[0], keys[1], "the keys of a map cannot change")
    if was.versions[-1] == now.versions[-1]:
        return attrs.evolve(now, versions=was.versions)
    obstacle = _obstacle("", old, new)
    if obstacle is None and len(was.versions) == MAX_VERSIONS:
        obstacle = (
            f"it has had {MAX_VERSIONS} schemas already, and stored values cannot tell more of them apart"
        )
    if obstacle is not None:
        raise refusal(shown(old), shown(new), obstacle)
    return attrs.evolve(now, versions=(*was.versions, now.versions[-1]))


def evolved(
    was: OperatorRecord, now: OperatorRecord, dropped: Collection[str], cut: BatchId
) -> OperatorRecord:
    """Return the record of an operator from now on.

    The values of a state that is no longer declared stay in the shards, and so does what is known of them: the state
    may be declared again. Of one that is deleted nothing is known any more: declared again, it begins empty, also if no
    batch has run in between and the first one has yet to delete its values.

    Args:
        was: the record in the restored checkpoint.
        now: what the operator declares.
        dropped: the states that it deletes, if they are there.
        cut: the last batch in the checkpoint.

    Raises:
        StateSchemaError: as of ``evolve``.
    """
    names = {*was.deleting, *(name for name in dropped if name in was.states)}
    known = {name: record for name, record in was.states.items() if name not in names}
    states = {name: evolve(known.get(name), record, now.uid, name) for name, record in now.states.items()}
    deleting = dict.fromkeys(sorted(names), BatchId(cut + 1))
    return attrs.evolve(now, states=known | states, deleting=deleting)


def shown(schema: types.StructType) -> str:
    """Return a schema as DDL, for people."""
    return ", ".join(
        f"{field.name} {field.dataType.simpleString()}{'' if field.nullable else ' not null'}"
        for field in schema.fields
    )


def _obstacle(path: str, was: types.DataType, now: types.DataType) -> str | None:
    """Return why values of type ``was`` cannot be read as ``now``; None if they can."""
    if isinstance(was, types.NullType) or was == now:
        return None
    if isinstance(was, types.StructType) and isinstance(now, types.StructType):
        return _struct_obstacle(path, was, now)
    if isinstance(was, types.ArrayType) and isinstance(now, types.ArrayType):
        return _part_obstacle(
            f"{path}[]", was.elementType, was.containsNull, now.elementType, now.containsNull
        )
    if isinstance(was, types.MapType) and isinstance(now, types.MapType):
        return _part_obstacle(f"{path}.key", was.keyType, False, now.keyType, False) or _part_obstacle(
            f"{path}.value", was.valueType, was.valueContainsNull, now.valueType, now.valueContainsNull
        )
    if widens(was, now):
        return None
    return f"field {path!r} cannot go from {was.simpleString()} to {now.simpleString()}"


def _struct_obstacle(path: str, was: types.StructType, now: types.StructType) -> str | None:
    prefix = f"{path}." if path else ""
    for field in now.fields:
        if field.name not in was.names:
            if not field.nullable:
                return f"field {prefix + field.name!r} is new and must be nullable, for stored values lack it"
            continue
        old = was[field.name]
        # A checkpoint of an earlier version of Chandy does not say it.
        made_of = [one.metadata.get(MADE_OF) for one in (old, field)]
        if None not in made_of and made_of[0] != made_of[1]:
            return f"field {prefix + field.name!r} is made of {made_of[0]} and cannot be made of {made_of[1]}"
        found = _part_obstacle(
            prefix + field.name, old.dataType, old.nullable, field.dataType, field.nullable
        )
        if found is not None:
            return found
    missing = [name for name in was.names if name not in now.names]
    return f"field {prefix + missing[0]!r} is missing, and its values would be lost" if missing else None


def _part_obstacle(
    path: str, was: types.DataType, had_nulls: bool, now: types.DataType, has_nulls: bool
) -> str | None:
    if (had_nulls or isinstance(was, types.NullType)) and not has_nulls:
        return f"field {path!r} was nullable and must stay nullable"
    return _obstacle(path, was, now)


def widens(was: types.DataType, now: types.DataType) -> bool:
    """Return whether each value of a type, which is not nested, is one of another type as well."""
    if isinstance(was, types.DecimalType) and isinstance(now, types.DecimalType):
        return was.scale == now.scale and was.precision <= now.precision
    if isinstance(was, types.CharType | types.VarcharType):
        return isinstance(now, types.StringType) or (
            isinstance(now, types.VarcharType) and was.length <= now.length
        )
    return type(now) in _WIDER.get(type(was), ())


# --- rows ---------------------------------------------------------------------------------------------------


def row_converter(was: types.StructType, now: types.StructType) -> RowConverter:
    """Return a function that converts a row of ``was``, as ``Packing.unpack_row`` returns it, to a row of ``now``.

    ``evolve`` must have accepted the change from ``was`` to ``now``.
    """
    convert = _fields_converter(was, now)
    return (lambda row: row) if convert is None else lambda row: tuple(convert(row))


def _fields_converter(was: types.StructType, now: types.StructType) -> Callable[[Any], list[Any]] | None:
    if was.names == now.names and all(
        _value_converter(old.dataType, new.dataType) is None
        for old, new in zip(was.fields, now.fields, strict=True)
    ):
        return None
    parts: list[tuple[int | None, Callable[[Any], Any] | None]] = [
        (was.names.index(field.name), _value_converter(was[field.name].dataType, field.dataType))
        if field.name in was.names
        else (None, None)
        for field in now.fields
    ]

    def convert(row: Any) -> list[Any]:
        items = [None if at is None else row[at] for at, _ in parts]
        return [
            item if item is None or part is None else part(item)
            for item, (_, part) in zip(items, parts, strict=True)
        ]

    return convert


def _value_converter(was: types.DataType, now: types.DataType) -> Callable[[Any], Any] | None:
    """Return a function that converts a value (never None) to the other type; None if it needs no conversion."""
    if isinstance(was, _INTEGERS) and isinstance(now, types.DoubleType):
        return float
    if isinstance(was, types.ArrayType) and isinstance(now, types.ArrayType):
        element = _value_converter(was.elementType, now.elementType)
        if element is None:
            return None
        return lambda items: [item if item is None else element(item) for item in items]
    if isinstance(was, types.MapType) and isinstance(now, types.MapType):
        key = _value_converter(was.keyType, now.keyType)
        value = _value_converter(was.valueType, now.valueType)
        if key is None and value is None:
            return None
        return lambda pairs: {
            k if key is None else key(k): v if v is None or value is None else value(v)
            for k, v in pairs.items()
        }
    if isinstance(was, types.StructType) and isinstance(now, types.StructType):
        convert = _fields_converter(was, now)
        if convert is None:
            return None
        row = types.Row(*now.names)
        return lambda items: row(*convert(items))
    return None


# --- columns ------------------------------------------------------------------------------------------------


def column_converter(was: types.StructType, now: types.StructType) -> ColumnConverter:
    """Return a function that converts rows of ``was``, as ``Packing.unpack`` returns them, to rows of ``now``.

    ``evolve`` must have accepted the change from ``was`` to ``now``.
    """
    if arrow_struct(was) == arrow_struct(now):
        return lambda rows: rows
    target = arrow_struct(now)
    return lambda rows: _converted(rows, target)


def _converted(column: pa.Array, target: pa.DataType) -> pa.Array:
    if column.type == target:
        return column
    if pa.types.is_struct(target) and pa.types.is_struct(column.type):
        there = [field.name for field in column.type]
        children = [
            _converted(column.field(there.index(field.name)), field.type)
            if field.name in there
            else pa.nulls(len(column), field.type)
            for field in target
        ]
        return pa.StructArray.from_arrays(children, fields=list(target), mask=column.is_null())
    if pa.types.is_map(target) and pa.types.is_map(column.type):
        entries = pa.StructArray.from_arrays(
            [_converted(column.keys, target.key_type), _converted(column.items, target.item_type)],
            fields=[target.key_field, target.item_field],
        )
        return _with_children(column, target, entries)
    if pa.types.is_list(target) and pa.types.is_list(column.type):
        return _with_children(column, target, _converted(column.values, target.value_type))
    return column.cast(target)


def _with_children(column: pa.Array, target: pa.DataType, children: pa.Array) -> pa.Array:
    return pa.Array.from_buffers(
        target, len(column), column.buffers()[:2], offset=column.offset, children=[children]
    )
