"""The accumulators of aggregate functions: their fields, and how they are created from rows and merged.

The accumulators of many groups are Arrow arrays, one array for each field.
"""
# ruff: noqa: D102 (the base class documents the methods)

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any

import attrs
import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import types

from ..errors import AggregateOverflowError
from ..format.arrow import from_numpy, scalar, to_numpy
from ..format.schema import MADE_OF, arrow_schema
from . import sketch
from .reduce import Bounds, any_valid, first_last_rows, min_max, sum_decimals, sum_integers, with_nulls

Arrays = list[pa.Array]


def arrow_type(dtype: types.DataType) -> pa.DataType:
    """Return the Arrow type of a column; timestamps are in UTC."""
    return arrow_schema(types.StructType().add("c", dtype)).field(0).type


@attrs.frozen
class Accumulator(ABC):
    """The partial result of an aggregate function over one column; accumulators can be merged in any grouping."""

    name: str
    """The function and its column, for errors and as the prefix of the fields' names."""
    column: types.DataType
    """Type of the input column."""

    @property
    @abstractmethod
    def fields(self) -> tuple[types.StructField, ...]:
        """The fields of the accumulator; all are nullable, because they are null for a new key."""

    @abstractmethod
    def from_rows(self, column: pa.Array) -> Arrays:
        """Return the accumulator of each single row.

        ``merge`` of one accumulator must not change it: whether it is merged alone depends on the other rows.
        """

    @abstractmethod
    def merge(self, accumulators: Sequence[pa.Array], bounds: Bounds) -> Arrays:
        """Return one accumulator for each group of adjacent ones, which are in the order of their rows.

        Raises:
            Overflow: a value does not fit into its type.
        """

    def _field(self, dtype: types.DataType, part: str = "") -> types.StructField:
        return types.StructField(f"{self.name}.{part}" if part else self.name, dtype)


@attrs.define(eq=False)
class Overflow(Exception):
    """The value of an accumulator or of a result does not fit into its type."""

    name: str
    dtype: types.DataType

    def of(self, operator: str) -> AggregateOverflowError:
        """Return the error for the user."""
        return AggregateOverflowError(operator, self.name, self.dtype.simpleString())


@attrs.frozen
class Count(Accumulator):
    """The number of rows that are not null. To count all rows, the column has no nulls."""

    @property
    def fields(self) -> tuple[types.StructField, ...]:
        return (self._field(types.LongType()),)

    def from_rows(self, column: pa.Array) -> Arrays:
        return [column.is_valid().cast(pa.int64())]

    def merge(self, accumulators: Sequence[pa.Array], bounds: Bounds) -> Arrays:
        return [from_numpy(np.add.reduceat(to_numpy(accumulators[0]), bounds[:-1]))]


@attrs.frozen
class IntegerSum(Accumulator):
    """The sum of integers."""

    @property
    def fields(self) -> tuple[types.StructField, ...]:
        return (self._field(types.LongType()),)

    def from_rows(self, column: pa.Array) -> Arrays:
        return [column.cast(pa.int64())]

    def merge(self, accumulators: Sequence[pa.Array], bounds: Bounds) -> Arrays:
        sums, beyond = sum_integers(to_numpy(accumulators[0]), bounds)
        if beyond is not None:
            raise Overflow(self.name, types.LongType())
        return [with_nulls(sums, any_valid(accumulators[0], bounds))]


@attrs.frozen
class DoubleSum(Accumulator):
    """The sum of floating point numbers."""

    @property
    def fields(self) -> tuple[types.StructField, ...]:
        return (self._field(types.DoubleType()),)

    def from_rows(self, column: pa.Array) -> Arrays:
        return [_as_doubles(column)]

    def merge(self, accumulators: Sequence[pa.Array], bounds: Bounds) -> Arrays:
        return [
            with_nulls(
                _sum_doubles(to_numpy(accumulators[0], 0.0), bounds), any_valid(accumulators[0], bounds)
            )
        ]


@attrs.frozen
class DecimalSum(Accumulator):
    """The exact sum of decimals, with ten digits more than they have."""

    @property
    def _sum(self) -> types.DecimalType:
        assert isinstance(self.column, types.DecimalType)
        return types.DecimalType(min(38, self.column.precision + 10), self.column.scale)

    @property
    def fields(self) -> tuple[types.StructField, ...]:
        return (self._field(self._sum),)

    def from_rows(self, column: pa.Array) -> Arrays:
        return [column.cast(arrow_type(self._sum))]

    def merge(self, accumulators: Sequence[pa.Array], bounds: Bounds) -> Arrays:
        sums, beyond = sum_decimals(accumulators[0], bounds, arrow_type(self._sum))
        if beyond.any():
            raise Overflow(self.name, self._sum)
        return [sums]


@attrs.frozen
class WithCount(Accumulator):
    """A sum and the number of its values, for a mean."""

    sum: Accumulator

    @property
    def fields(self) -> tuple[types.StructField, ...]:
        return (self._field(self.sum.fields[0].dataType, "sum"), self._field(types.LongType(), "count"))

    def from_rows(self, column: pa.Array) -> Arrays:
        return [*self.sum.from_rows(column), column.is_valid().cast(pa.int64())]

    def merge(self, accumulators: Sequence[pa.Array], bounds: Bounds) -> Arrays:
        count = np.add.reduceat(to_numpy(accumulators[1]), bounds[:-1])
        return [*self.sum.merge(accumulators[:1], bounds), from_numpy(count)]


@attrs.frozen
class MinMax(Accumulator):
    """The least or the greatest value."""

    greatest: bool

    @property
    def fields(self) -> tuple[types.StructField, ...]:
        return (self._field(self.column),)

    def from_rows(self, column: pa.Array) -> Arrays:
        return [column.cast(arrow_type(self.column))]

    def merge(self, accumulators: Sequence[pa.Array], bounds: Bounds) -> Arrays:
        return [min_max(accumulators[0], bounds, self.greatest)]


@attrs.frozen
class FirstLast(Accumulator):
    """The first or the last value, which may be null."""

    last: bool

    @property
    def fields(self) -> tuple[types.StructField, ...]:
        return (self._field(self.column, "value"), self._field(types.BooleanType(), "seen"))

    def from_rows(self, column: pa.Array) -> Arrays:
        return [column.cast(arrow_type(self.column)), from_numpy(np.ones(len(column), np.bool_))]

    def merge(self, accumulators: Sequence[pa.Array], bounds: Bounds) -> Arrays:
        rows = first_last_rows(to_numpy(accumulators[1], False), bounds, self.last)
        return [accumulators[0].take(rows), rows.is_valid()]


@attrs.frozen
class Moments(Accumulator):
    """The count, the mean and the sum of squared differences from the mean, for a variance.

    Accumulators are merged as by Chan, Golub and LeVeque, "Updating formulae and a pairwise algorithm for computing
    sample variances" (1979), any number at once. So no large number is subtracted from another large number.
    """

    @property
    def fields(self) -> tuple[types.StructField, ...]:
        return (
            self._field(types.LongType(), "count"),
            self._field(types.DoubleType(), "mean"),
            self._field(types.DoubleType(), "m2"),
        )

    def from_rows(self, column: pa.Array) -> Arrays:
        values = _as_doubles(column)
        means = values.fill_null(scalar(0.0, values.type))
        # As ``merge`` of the single row, and as in Spark: NaN if the value is not finite, otherwise zero.
        squares = pc.subtract(means, means)
        return [column.is_valid().cast(pa.int64()), means, squares]

    def merge(self, accumulators: Sequence[pa.Array], bounds: Bounds) -> Arrays:
        counts, means, squares = (to_numpy(array, 0) for array in accumulators)
        starts, sizes = bounds[:-1], np.diff(bounds)
        total = np.add.reduceat(counts, starts)
        divisor = np.maximum(total, 1)
        with np.errstate(invalid="ignore", over="ignore"):
            mean = _sum_doubles(counts * means, bounds) / divisor
            # Again, relative to the first mean: so its rounding error does not enter the squares.
            rest = _sum_doubles(counts * (means - np.repeat(mean, sizes)), bounds) / divisor
            mean = np.where(np.isfinite(rest), mean + rest, mean)
            apart = means - np.repeat(mean, sizes)
            m2 = _sum_doubles(squares + counts * apart * apart, bounds)
        return [from_numpy(total), from_numpy(mean), from_numpy(m2)]


@attrs.frozen
class Distinct(Accumulator):
    """A HyperLogLog sketch of the distinct values; its column has their hashes."""

    @property
    def fields(self) -> tuple[types.StructField, ...]:
        field = self._field(types.BinaryType(), f"hll{sketch.PRECISION}")
        return (
            types.StructField(
                field.name, field.dataType, metadata={MADE_OF: f"hashes of {hashed_as(self.column)}"}
            ),
        )

    def from_rows(self, column: pa.Array) -> Arrays:
        return [sketch.of_hashes(column).cast(arrow_type(types.BinaryType()))]

    def merge(self, accumulators: Sequence[pa.Array], bounds: Bounds) -> Arrays:
        return [sketch.union(accumulators[0], bounds).cast(arrow_type(types.BinaryType()))]


def hashed_as(dtype: types.DataType) -> str:
    """Return the name of a type; types have the same if Spark's xxhash64 gives the same hash for each common value."""
    if isinstance(dtype, types.ByteType | types.ShortType):
        return "int"
    if isinstance(dtype, types.StringType | types.CharType | types.VarcharType):
        return "string"
    if isinstance(dtype, types.DecimalType):
        # Up to 18 digits, Spark hashes the unscaled value as a long.
        return f"decimal({18 if dtype.precision <= 18 else 38},{dtype.scale})"
    if isinstance(dtype, types.ArrayType):
        return f"array<{hashed_as(dtype.elementType)}>"
    if isinstance(dtype, types.StructType):
        return f"struct<{','.join(hashed_as(field.dataType) for field in dtype.fields)}>"
    return dtype.simpleString()


def _sum_doubles(values: npt.NDArray[Any], bounds: Bounds) -> npt.NDArray[np.float64]:
    with np.errstate(invalid="ignore", over="ignore"):
        sums: npt.NDArray[np.float64] = np.add.reduceat(values, bounds[:-1])
    return sums


def _as_doubles(column: pa.Array) -> pa.Array:
    return column.cast(pa.float64(), safe=False)
