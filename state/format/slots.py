"""The layout of a packed row: the width and the offset of each field, for single rows and for columns."""

from __future__ import annotations

from typing import Final

import attrs
import numpy as np
from pyspark.sql import types

EXPIRES: Final = 0x80
"""The bit of the first byte that marks a row with an expiry."""
EXPIRY_BYTES: Final = 8
DECIMAL_BYTES: Final = 16

_FIXED: dict[type[types.DataType], tuple[str, str]] = {
    types.BooleanType: ("?", "u1"),
    types.ByteType: ("b", "i1"),
    types.ShortType: ("h", "<i2"),
    types.IntegerType: ("i", "<i4"),
    types.LongType: ("q", "<i8"),
    types.FloatType: ("f", "<f4"),
    types.DoubleType: ("d", "<f8"),
    types.DateType: ("i", "<i4"),
    types.TimestampType: ("q", "<i8"),
    types.TimestampNTZType: ("q", "<i8"),
    types.DayTimeIntervalType: ("q", "<i8"),
    types.TimeType: ("q", "<i8"),
    types.DecimalType: (f"{DECIMAL_BYTES}s", f"V{DECIMAL_BYTES}"),
    types.NullType: ("0s", "V0"),
}
"""The slot of a value by its type, as a code of ``struct`` and of NumPy."""
_LENGTH = ("I", "<u4")
"""The slot of a value without a fixed width: its length."""


def is_fixed(dtype: types.DataType) -> bool:
    """Return whether the values of a type are in their slot, not behind the slots."""
    return type(dtype) in _FIXED


def is_nested(dtype: types.DataType) -> bool:
    """Return whether the values of a type are nested, and so packed one by one by msgpack."""
    return isinstance(dtype, types.ArrayType | types.MapType | types.StructType)


@attrs.frozen
class Slots:
    """The layout of a row's fields behind the first byte and the expiry."""

    bitmap: int
    """Bytes of the null bitmap."""
    code: str
    """The slots as a format of ``struct``, without a byte order."""
    variable: tuple[int, ...]
    """Positions of the fields whose values are behind the slots, in order."""
    plain: np.dtype[np.void]
    """First byte, bitmap and slots (fields ``head``, ``nulls``, ``0``, ``1``, ...)."""
    expiring: np.dtype[np.void]
    """The same with ``expiry`` behind the first byte."""

    @classmethod
    def of(cls, schema: types.StructType) -> Slots:
        """Lay out the fields of a schema."""
        slots = [_FIXED.get(type(field.dataType), _LENGTH) for field in schema.fields]
        bitmap = (len(slots) + 7) // 8
        fields = [(str(position), numpy) for position, (_, numpy) in enumerate(slots)]
        nulls = ("nulls", "u1", (bitmap,))
        return cls(
            bitmap=bitmap,
            code="".join(code for code, _ in slots),
            variable=tuple(at for at, field in enumerate(schema.fields) if not is_fixed(field.dataType)),
            plain=np.dtype([("head", "u1"), nulls, *fields]),
            expiring=np.dtype([("head", "u1"), ("expiry", "<i8"), nulls, *fields]),
        )


def is_text(dtype: types.DataType) -> bool:
    """Return whether the values of a type are strings."""
    return not (is_fixed(dtype) or is_nested(dtype) or isinstance(dtype, types.BinaryType))
