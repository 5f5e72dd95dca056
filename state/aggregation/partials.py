"""Partial results of aggregates: lifted from single rows, combined as often as one likes, in any grouping."""
# ruff: noqa: D102 (the base class says what the methods do)

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any

import attrs
import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql.types import (
    BinaryType,
    BooleanType,
    DataType,
    DecimalType,
    DoubleType,
    LongType,
    StructField,
    StructType,
)

from ..errors import AggregateOverflowError
from ..format.arrow import from_numpy, scalar, to_numpy
from ..format.schema import arrow_schema
from . import sketch
from .reduce import Bounds, any_valid, edge_rows, extremes, sum_decimals, sum_integers, with_nulls

Arrays = list[pa.Array]


def arrow_type(dtype: DataType) -> pa.DataType:
    """Return the Arrow type of a column; timestamps are in UTC."""
    return arrow_schema(StructType().add("c", dtype)).field(0).type


@attrs.frozen
class Partial(ABC):
    """A result so far, of one column of rows: lifted from single rows, combined as often as one likes."""

    name: str
    """What it is, for errors and as the beginning of its fields' names: function and column."""
    column: DataType
    """Type of the input."""

    @property
    @abstractmethod
    def fields(self) -> tuple[StructField, ...]:
        """What it consists of; all may be null, as they are for a key that has not been seen."""

    @abstractmethod
    def lift(self, column: pa.Array) -> Arrays:
        """Return for each row the partial result of it alone, an array a field.

        It is what combining the row alone makes of it: whether that is done depends on the rows around it.
        """

    @abstractmethod
    def combine(self, parts: Sequence[pa.Array], bounds: Bounds) -> Arrays:
        """Return one partial result for each group of adjoining ones; earlier ones come first.

        Raises:
            Overflow: a result does not fit into its type.
        """

    def _field(self, dtype: DataType, part: str = "") -> StructField:
        return StructField(f"{self.name}.{part}" if part else self.name, dtype)


@attrs.define(eq=False)
class Overflow(Exception):
    """A partial or a final result does not fit into its type."""

    name: str
    dtype: DataType

    def of(self, operator: str) -> AggregateOverflowError:
        """Return the error for a user."""
        return AggregateOverflowError(operator, self.name, self.dtype.simpleString())


@attrs.frozen
class Count(Partial):
    """Rows that are not null; or all rows: their column is then one without nulls."""

    @property
    def fields(self) -> tuple[StructField, ...]:
        return (self._field(LongType()),)

    def lift(self, column: pa.Array) -> Arrays:
        return [column.is_valid().cast(pa.int64())]

    def combine(self, parts: Sequence[pa.Array], bounds: Bounds) -> Arrays:
        return [from_numpy(np.add.reduceat(to_numpy(parts[0]), bounds[:-1]))]


@attrs.frozen
class IntegerSum(Partial):
    """The sum of integers."""

    @property
    def fields(self) -> tuple[StructField, ...]:
        return (self._field(LongType()),)

    def lift(self, column: pa.Array) -> Arrays:
        return [column.cast(pa.int64())]

    def combine(self, parts: Sequence[pa.Array], bounds: Bounds) -> Arrays:
        sums, beyond = sum_integers(to_numpy(parts[0]), bounds)
        if beyond is not None:
            raise Overflow(self.name, LongType())
        return [with_nulls(sums, any_valid(parts[0], bounds))]


@attrs.frozen
class DoubleSum(Partial):
    """The sum of floating point numbers."""

    @property
    def fields(self) -> tuple[StructField, ...]:
        return (self._field(DoubleType()),)

    def lift(self, column: pa.Array) -> Arrays:
        return [_as_doubles(column)]

    def combine(self, parts: Sequence[pa.Array], bounds: Bounds) -> Arrays:
        return [with_nulls(_sum_doubles(to_numpy(parts[0], 0.0), bounds), any_valid(parts[0], bounds))]


@attrs.frozen
class DecimalSum(Partial):
    """The exact sum of decimals, with ten digits more than they have."""

    @property
    def _sum(self) -> DecimalType:
        assert isinstance(self.column, DecimalType)
        return DecimalType(min(38, self.column.precision + 10), self.column.scale)

    @property
    def fields(self) -> tuple[StructField, ...]:
        return (self._field(self._sum),)

    def lift(self, column: pa.Array) -> Arrays:
        return [column.cast(arrow_type(self._sum))]

    def combine(self, parts: Sequence[pa.Array], bounds: Bounds) -> Arrays:
        sums, beyond = sum_decimals(parts[0], bounds, arrow_type(self._sum))
        if beyond.any():
            raise Overflow(self.name, self._sum)
        return [sums]


@attrs.frozen
class WithCount(Partial):
    """A sum and the number of values in it: what a mean is made of."""

    sum: Partial

    @property
    def fields(self) -> tuple[StructField, ...]:
        return (self._field(self.sum.fields[0].dataType, "sum"), self._field(LongType(), "count"))

    def lift(self, column: pa.Array) -> Arrays:
        return [*self.sum.lift(column), column.is_valid().cast(pa.int64())]

    def combine(self, parts: Sequence[pa.Array], bounds: Bounds) -> Arrays:
        count = np.add.reduceat(to_numpy(parts[1]), bounds[:-1])
        return [*self.sum.combine(parts[:1], bounds), from_numpy(count)]


@attrs.frozen
class Extreme(Partial):
    """The least or the greatest value."""

    greatest: bool

    @property
    def fields(self) -> tuple[StructField, ...]:
        return (self._field(self.column),)

    def lift(self, column: pa.Array) -> Arrays:
        return [column.cast(arrow_type(self.column))]

    def combine(self, parts: Sequence[pa.Array], bounds: Bounds) -> Arrays:
        return [extremes(parts[0], bounds, self.greatest)]


@attrs.frozen
class Edge(Partial):
    """The first or the last value, which may be null."""

    last: bool

    @property
    def fields(self) -> tuple[StructField, ...]:
        return (self._field(self.column, "value"), self._field(BooleanType(), "seen"))

    def lift(self, column: pa.Array) -> Arrays:
        return [column.cast(arrow_type(self.column)), from_numpy(np.ones(len(column), np.bool_))]

    def combine(self, parts: Sequence[pa.Array], bounds: Bounds) -> Arrays:
        rows = edge_rows(to_numpy(parts[1], False), bounds, self.last)
        return [parts[0].take(rows), rows.is_valid()]


@attrs.frozen
class Moments(Partial):
    """Count, mean and sum of squared differences from it: what variances are made of.

    Combined as by Chan, Golub and LeVeque, "Updating formulae and a pairwise algorithm for computing sample
    variances" (1979), for any number of parts at once: nothing large is subtracted from something large.
    """

    @property
    def fields(self) -> tuple[StructField, ...]:
        return (
            self._field(LongType(), "count"),
            self._field(DoubleType(), "mean"),
            self._field(DoubleType(), "m2"),
        )

    def lift(self, column: pa.Array) -> Arrays:
        values = _as_doubles(column)
        means = values.fill_null(scalar(0.0, values.type))
        # As one row combined, and as in Spark: NaN for what is not finite, else zero.
        squares = pc.subtract(means, means)
        return [column.is_valid().cast(pa.int64()), means, squares]

    def combine(self, parts: Sequence[pa.Array], bounds: Bounds) -> Arrays:
        counts, means, squares = to_numpy(parts[0]), to_numpy(parts[1], 0.0), to_numpy(parts[2], 0.0)
        starts, sizes = bounds[:-1], np.diff(bounds)
        total = np.add.reduceat(counts, starts)
        divisor = np.maximum(total, 1)
        with np.errstate(invalid="ignore", over="ignore"):
            mean = _sum_doubles(counts * means, bounds) / divisor
            # Once more from there: what rounding did to the first mean does not enter the squares.
            rest = _sum_doubles(counts * (means - np.repeat(mean, sizes)), bounds) / divisor
            mean = np.where(np.isfinite(rest), mean + rest, mean)
            apart = means - np.repeat(mean, sizes)
            m2 = _sum_doubles(squares + counts * apart * apart, bounds)
        return [from_numpy(total), from_numpy(mean), from_numpy(m2)]


@attrs.frozen
class Distinct(Partial):
    """A sketch of the different values; its column has their hashes."""

    @property
    def fields(self) -> tuple[StructField, ...]:
        return (self._field(BinaryType(), f"hll{sketch.PRECISION}"),)

    def lift(self, column: pa.Array) -> Arrays:
        return [sketch.of_hashes(column).cast(arrow_type(BinaryType()))]

    def combine(self, parts: Sequence[pa.Array], bounds: Bounds) -> Arrays:
        return [sketch.union(parts[0], bounds).cast(arrow_type(BinaryType()))]


def _sum_doubles(values: npt.NDArray[Any], bounds: Bounds) -> npt.NDArray[np.float64]:
    with np.errstate(invalid="ignore", over="ignore"):
        sums: npt.NDArray[np.float64] = np.add.reduceat(values, bounds[:-1])
    return sums


def _as_doubles(column: pa.Array) -> pa.Array:
    return column.cast(pa.float64(), safe=False)
