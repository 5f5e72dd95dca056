"""Converts Arrow tables to many small pandas DataFrames, and many small DataFrames to Arrow record batches.

The types are those of PySpark's ``transformWithStateInPandas`` (found by experiment on 4.3). Integers of all widths are
int64, floats float64, booleans bool, timestamps naive datetime64[ns] in the session's time zone. All else is object:
strings, bytes, dates, decimals, None; an array is an ndarray, a map and a struct are dicts.

As in PySpark, an integer column with a null is float64, and a boolean column with a null is object. In PySpark, nulls
of *other* keys in the same Arrow batch have this effect as well. Here they do not: what a processor sees of a key
depends only on this key. Columns keep their names, even those that PySpark renames ("a b" to "_1").
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from itertools import chain, islice
from typing import Any, Final

import attrs
import numpy as np
import numpy.typing as npt
import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.errors import PySparkException
from pyspark.sql.types import StructType

from ..errors import OutputTypeError
from ..format.nulls import forbidden_nulls
from ..format.rows import group_ranges
from ..format.schema import arrow_schema
from ..format.structs import Check, FieldsError, structs_check
from ..format.values import describe
from ..pyspark_versions import from_pandas, to_pandas
from .style import FrameLimits

SliceRows = Callable[[int, int], pd.DataFrame]

_HAS_PARTS = hasattr(pd.DataFrame, "_from_mgr") and hasattr(
    getattr(pd.DataFrame(), "_mgr", None), "get_slice"
)
_RANGES: Final = [pd.RangeIndex(length) for length in range(256)]


# --- in -----------------------------------------------------------------------------------------------------


@attrs.frozen(eq=False)
class _Variant:
    """A column that has another type in the DataFrames in which it has a null."""

    position: int
    values: npt.NDArray[Any]
    nulls: npt.NDArray[np.bool_]


class FrameReader:
    """Converts tables with the same columns to DataFrames."""

    def __init__(self, schema: StructType, timezone: str, limits: FrameLimits) -> None:
        self._schema = schema
        self._timezone = timezone
        self._limits = limits

    def groups(self, table: pa.Table, bounds: Sequence[int]) -> Iterator[Iterator[pd.DataFrame]]:
        """Yield an iterator over the DataFrames of each group, where group i has rows bounds[i] to bounds[i+1].

        A group comes as one DataFrame, or as several if the limits say so. A processor may change its DataFrame without
        an effect on any other. Groups must be taken in order; the caller may stop before the end of one.
        """
        for first, last in group_ranges(bounds):
            some, inner = _between(table, bounds, first, last)
            if self._limits.hold(some, inner):
                # Nearly always. To cut each group would take a fifth more time.
                yield from map(iter, zip(self._converted(some, inner)))
            else:
                yield from self._cut_groups(some, inner)

    def _cut_groups(self, table: pa.Table, bounds: Sequence[int]) -> Iterator[Iterator[pd.DataFrame]]:
        cuts = self._limits.cuts(table, bounds)
        frames = self._frames(table, [*chain.from_iterable(cuts), bounds[-1]])
        for starts in cuts:
            group = islice(frames, len(starts))
            yield group
            # What the caller has left is not that of the next group.
            deque(group, maxlen=0)

    def _frames(self, table: pa.Table, bounds: Sequence[int]) -> Iterator[pd.DataFrame]:
        """Yield one DataFrame for the rows from each bound to the next; many small ones are converted together."""
        for first, last in group_ranges(bounds):
            yield from self._converted(*_between(table, bounds, first, last))

    def _converted(self, table: pa.Table, bounds: Sequence[int]) -> Iterator[pd.DataFrame]:
        columns, variants = self._columns(table.combine_chunks(), bounds)
        slice_rows = slicer(pd.DataFrame(dict(zip(self._schema.names, columns, strict=True))))
        for group in range(len(bounds) - 1):
            start, stop = bounds[group], bounds[group + 1]
            frame = slice_rows(start, stop)
            for variant in variants:
                if variant.nulls[group]:
                    frame.isetitem(variant.position, variant.values[start:stop])
            yield frame

    def _columns(self, table: pa.Table, bounds: Sequence[int]) -> tuple[list[Any], list[_Variant]]:
        series = to_pandas(table, self._schema, self._timezone)
        columns: list[Any] = []
        variants: list[_Variant] = []
        for position, (values, column) in enumerate(zip(series, table.columns, strict=True)):
            kind = column.type
            if pa.types.is_integer(kind) or pa.types.is_boolean(kind):
                plain = np.int64 if pa.types.is_integer(kind) else np.bool_
                if column.null_count:
                    nulls = np.add.reduceat(column.is_null().to_numpy(), bounds[:-1]) > 0
                    variants.append(_Variant(position, values.to_numpy(), nulls))
                    column = pc.fill_null(column, False if plain is np.bool_ else 0)
                columns.append(column.to_numpy().astype(plain))
            elif pa.types.is_floating(kind):
                columns.append(values.to_numpy().astype(np.float64))
            else:
                columns.append(values)
        return columns, variants


def _between(table: pa.Table, bounds: Sequence[int], first: int, last: int) -> tuple[pa.Table, list[int]]:
    """Return the rows of groups ``first`` to ``last``, and the bounds of these groups within them."""
    start, stop = bounds[first], bounds[last]
    return table.slice(start, stop - start), [at - start for at in bounds[first : last + 1]]


def slicer(frame: pd.DataFrame) -> SliceRows:
    """Return a function that returns rows ``start`` to ``stop`` of a DataFrame, with an index from 0.

    The slices share memory with ``frame``, but not with each other. pandas' own slicing takes three times as long as
    using its internals. It is the fallback for versions of pandas without these internals.
    """
    if not _HAS_PARTS:
        return lambda start, stop: frame.iloc[start:stop].reset_index(drop=True)
    manager: Any = frame._mgr
    make: Any = pd.DataFrame._from_mgr

    def slice_rows(start: int, stop: int) -> pd.DataFrame:
        piece = manager.get_slice(slice(start, stop), axis=1)
        length = stop - start
        piece.axes[1] = _RANGES[length] if length < len(_RANGES) else pd.RangeIndex(length)
        made: pd.DataFrame = make(piece, piece.axes)
        return made

    return slice_rows


# --- out ----------------------------------------------------------------------------------------------------


class FrameWriter:
    """Collects DataFrames by column, without concatenating them, and converts them to record batches."""

    def __init__(
        self,
        schema: StructType,
        operator: str,
        *,
        timezone: str = "UTC",
        by_name: bool = True,
        safe: bool = False,
        int_to_decimal: bool = False,
    ) -> None:
        """Create a writer for an output schema that ``check_columns`` has accepted.

        Args:
            schema: of the output.
            operator: its uid, for errors.
            timezone: the time zone of naive timestamps.
            by_name: whether columns are found by name, if a DataFrame has names, or by position.
            safe: whether a conversion that loses something is refused.
            int_to_decimal: whether integers are accepted in a decimal column.
        """
        self.waiting = 0
        """The number of rows that were added and not yet returned."""
        self._schema = schema
        self._operator = operator
        self._arrow: pa.Schema = arrow_schema(schema)
        self._checks = [structs_check(field.dataType) for field in schema.fields]
        self._names = list(schema.names)
        self._in_order = range(len(self._names))
        self._by_name = by_name
        self._settings: dict[str, Any] = {
            "timezone": timezone,
            "safe": safe,
            "int_to_decimal": int_to_decimal,
        }
        self._columns: list[list[Any]] = [[] for _ in schema.fields]

    def add(self, frame: pd.DataFrame) -> None:
        """Add the rows of a DataFrame.

        Columns that the output does not have are ignored, as in PySpark.

        Raises:
            OutputTypeError: a column of the output is missing.
        """
        length = len(frame)
        if not length:
            return
        columns = self._columns
        for position, column in zip(self._positions(frame.columns), columns, strict=True):
            # A copy, because the processor may change its DataFrame afterwards.
            column.append(frame._get_column_array(position).copy())
        self.waiting += length

    def batch(self) -> pa.RecordBatch:
        """Return all rows that are waiting as one record batch.

        Raises:
            OutputTypeError: a value does not fit its column.
        """
        columns, self._columns, self.waiting = self._columns, [[] for _ in self._schema.fields], 0
        arrays = [self._array(position, pieces) for position, pieces in enumerate(columns)]
        return pa.RecordBatch.from_arrays(arrays, schema=self._arrow)

    def _positions(self, found: pd.Index) -> Sequence[int]:
        # This comparison takes a tenth of the time of pandas' own, and is nearly always true.
        if found.to_numpy().tolist() == self._names:
            return self._in_order
        if not self._by_name or not any(isinstance(label, str) for label in found):
            if len(found) < len(self._names):
                raise self._mismatch("", f"{len(self._names)} columns", f"a DataFrame with {len(found)}")
            return self._in_order
        for name in self._names:
            if name not in found:
                labels = ", ".join(map(str, found))
                raise self._mismatch(name, "a column of this name", f"a DataFrame with columns {labels}")
        if not found.is_unique:
            raise self._mismatch("", "no column name twice", ", ".join(map(str, found)))
        return [found.get_loc(name) for name in self._names]

    def _array(self, position: int, pieces: Sequence[Any]) -> pa.Array:
        """Return one column, given its pieces as arrays of pandas or NumPy."""
        field = self._arrow.field(position)
        parts = [self._converted(position, joined).cast(field.type) for joined in _runs(pieces)]
        array = parts[0] if len(parts) == 1 else pa.concat_arrays([*parts, pa.nulls(0, field.type)])
        declared = self._schema.fields[position]
        if found := forbidden_nulls(array, declared.dataType, declared.nullable, field.name):
            raise self._mismatch(found.path, found.expected, found.found)
        return array

    def _converted(self, position: int, values: Any) -> pa.Array:
        field, check = self._schema.fields[position], self._checks[position]
        if check is not None:
            for value in values:
                self._check(field.name, check, value)
        try:
            return from_pandas(pd.Series(values, name=field.name, copy=False), field, **self._settings)
        except (
            PySparkException,
            pa.ArrowException,
            ValueError,
            TypeError,
            OverflowError,
            AttributeError,
        ) as error:
            found = f"values of type {values.dtype} ({' '.join(str(error).split())})"
            raise self._mismatch(field.name, self._type_name(position), found) from error

    def _check(self, name: str, check: Check, value: Any) -> None:
        try:
            check(value)
        except FieldsError as error:
            found = f"a struct {error.wrong} in {describe(value)}"
            raise self._mismatch(name, error.expected, found) from error

    def _type_name(self, position: int) -> str:
        name: str = self._schema.fields[position].dataType.simpleString()
        return name

    def _mismatch(self, column: str, expected: str, found: str) -> OutputTypeError:
        part = f"output column {column!r}" if column else "a DataFrame"
        return OutputTypeError(self._operator, part, expected, found)


def _runs(pieces: Sequence[Any]) -> Iterator[Any]:
    """Yield the pieces, with adjacent ones of the same type joined: joining int64 with float64 would lose digits."""
    first = 0
    for at in range(1, len(pieces) + 1):
        if at == len(pieces) or pieces[at].dtype != pieces[first].dtype:
            run = pieces[first:at]
            if isinstance(run[0], np.ndarray):
                yield np.concatenate(run)
            else:
                yield run[0]._concat_same_type(run)
            first = at
