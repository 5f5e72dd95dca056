"""The fields of structs that are given as Python values: a dict or a Row by name, a tuple or a list by position.

Arrow and PySpark make null of a field that a value lacks, and lose one that the struct does not have. So a typo in a
name would go unseen. Here both are errors.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import attrs
import numpy as np
from pyspark.sql.types import ArrayType, DataType, MapType, StructType

Check = Callable[[Any], None]
_COLLECTIONS = (list, tuple, dict, np.ndarray)


@attrs.define(eq=False)
class FieldsError(ValueError):
    """A value has other fields than its struct."""

    expected: str
    wrong: str
    """How its fields differ: ``without 'total'``, ``with 'totl'``, or both."""


def named(value: Any, fields: Sequence[str]) -> list[Any]:
    """Return the items of a struct that is given as a dict or a Row, in the order of its fields.

    Raises:
        FieldsError: the value does not have exactly these fields.
    """
    # A Row may have fewer values than names.
    items = value if isinstance(value, dict) else dict(zip(value.__fields__, value, strict=False))
    if items.keys() != set(fields):
        raise FieldsError(f"a value or None for each of {', '.join(fields)}", _difference(items, fields))
    return [items[name] for name in fields]


def has_names(value: object) -> bool:
    """Return whether a value gives the items of a struct by name."""
    return isinstance(value, dict) or hasattr(value, "__fields__")


def structs_check(dtype: DataType) -> Check | None:
    """Return a function that raises FieldsError for a struct with other fields than its type, anywhere in a value.

    It looks at nothing else: whatever is no struct or collection is left to the conversion. None if the type has no
    struct.
    """
    if isinstance(dtype, ArrayType):
        return _each(structs_check(dtype.elementType), lambda value: value)
    if isinstance(dtype, MapType):
        return _each(
            structs_check(dtype.valueType), lambda value: value.values() if isinstance(value, dict) else ()
        )
    return _struct_check(dtype) if isinstance(dtype, StructType) else None


def _each(check: Check | None, items: Callable[[Any], Iterable[Any]]) -> Check | None:
    if check is None:
        return None

    def each(value: Any) -> None:
        for item in items(value) if isinstance(value, _COLLECTIONS) else ():
            check(item)

    return each


def _struct_check(dtype: StructType) -> Check:
    fields = dtype.names
    checks = [
        (at, check) for at, field in enumerate(dtype.fields) if (check := structs_check(field.dataType))
    ]

    def struct(value: Any) -> None:
        if has_names(value):
            items: Sequence[Any] = named(value, fields)
        elif not isinstance(value, tuple | list):
            return
        elif len(value) == len(fields):
            items = value
        else:
            raise FieldsError(f"{len(fields)} items ({', '.join(fields)})", f"of {len(value)} items")
        for at, check in checks:
            check(items[at])

    return struct


def _difference(found: Iterable[str], fields: Sequence[str]) -> str:
    given = list(found)
    parts = {
        "without": [name for name in fields if name not in given],
        "with": [name for name in given if name not in fields],
    }
    return " and ".join(f"{word} {', '.join(map(repr, names))}" for word, names in parts.items() if names)
