"""Puts a keyed operator into a DataFrame: sends rows to shards, shards to partitions, and partitions to a function."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from functools import partial

import attrs
import pyarrow as pa
from pyspark.sql import Column, DataFrame, GroupedData
from pyspark.sql import functions as F  # noqa: N812 (its usual name)
from pyspark.sql.pandas.functions import pandas_udf
from pyspark.sql.types import StructType
from pyspark.util import PythonEvalType

from ..errors import invalid_argument
from ..format.arrow import from_numpy
from ..format.keys import KeyCodec
from ..format.rows import check_columns
from ..format.values import describe
from . import shard_ranges, shuffle_packing
from .garbage_collection import spare_loaded_modules
from .hashing import can_hash, shards_of
from .partitioning import Partitioning, by_id
from .quick_ack import with_quick_ack

SHARD = "__chandy_shard"
"""The column with each row's shard, behind all other columns."""

ArrowFunction = Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]


@attrs.frozen
class Combiner:
    """Combines rows of one key before they are sent to their partitions."""

    function: ArrowFunction
    """Takes rows as they come and yields combined ones, both with the column ``SHARD`` last."""


def check_streaming(df: object) -> None:
    """Refuse an input that is no streaming DataFrame.

    Raises:
        DefinitionError: it is none.
    """
    if isinstance(df, GroupedData):
        advice = "give the DataFrame itself, and the columns to group by as an argument of their own"
        raise invalid_argument("df", "a streaming DataFrame", "a grouped one", advice)
    if not isinstance(df, DataFrame):
        raise invalid_argument("df", "a streaming DataFrame", describe(df))
    if not df.isStreaming:
        advice = "read the input by spark.readStream; for a batch, use Spark's own df.groupBy(...)"
        raise invalid_argument(
            "df", "a streaming DataFrame", "a batch DataFrame, which has no checkpoints", advice
        )


def check_input(df: DataFrame, key: Sequence[str], argument: str = "key") -> StructType:
    """Return the schema of the key columns, if an operator keyed by them can run over ``df``.

    Args:
        df: the input.
        key: names of the key columns.
        argument: what the user knows ``key`` as, for errors.

    Raises:
        DefinitionError: a key column is missing or given twice, rows cannot be grouped by it, two columns of ``df``
            have one name, or a column has a type without Python values.
    """
    if isinstance(key, str) or not isinstance(key, Sequence) or not key:
        raise invalid_argument(argument, "a list of at least one column name", repr(key))
    names = df.columns
    for name in key:
        _check_column(name, names, argument)
    fold = folding(df)
    _check_distinct(argument, key, fold)
    _check_distinct("df", names, fold)
    if SHARD in map(fold, names):
        raise invalid_argument("df", f"column names other than the reserved {SHARD!r}", ", ".join(names))
    check_columns(df.schema, "the input")
    schema = StructType([df.schema[name] for name in key])
    KeyCodec(schema)
    return schema


def keyed(
    df: DataFrame,
    key: Sequence[str],
    shards: int,
    parallelism: int,
    function: ArrowFunction,
    output: StructType,
    name: str,
    combiner: Combiner | None = None,
) -> DataFrame:
    """Return the output of ``function`` over ``df``, with each row in the partition that serves the shard of its key.

    The arguments and errors are those of ``keyed_function``.
    """
    return keyed_function(df, key, shards, parallelism, function, output, name, combiner).over(df)


def keyed_function(
    df: DataFrame,
    key: Sequence[str],
    shards: int,
    parallelism: int,
    function: ArrowFunction,
    output: StructType,
    name: str,
    combiner: Combiner | None = None,
    partitioning: Partitioning = by_id,
) -> KeyedFunction:
    """Return how ``function`` runs over ``df``, with each row in the partition that serves the shard of its key.

    Args:
        df: any DataFrame, streaming or not.
        key: names of the key columns.
        shards: the number of shards of the key space.
        parallelism: the number of partitions that serve them; partition ``p`` serves ``shard_ranges.ranges(...)[p]``.
        function: called in every partition, even without rows, with the columns of ``df`` and then ``SHARD``. Rows
            come in no particular order of shards, because Spark cannot sort a streaming DataFrame.
        output: schema of the batches that the function yields.
        name: name of the function in Spark's plan.
        combiner: combines rows before they are sent; the function then gets what the combiner yields.
        partitioning: brings rows to their partitions.

    Raises:
        DefinitionError: as ``check_input`` and ``shard_ranges.check`` say.
    """
    key_schema = check_input(df, key)
    shard_ranges.check(shards, parallelism)
    check_columns(output, "the output")
    shard = F.pmod(F.xxhash64(*map(_column, key)), F.lit(shards)).cast("int")
    rows = (*df.columns, SHARD)
    if combiner is None:
        partition = F.expr(shard_ranges.partition_expression(SHARD, shards, parallelism))
        operator = _operator(function, name, rows, output)
        return KeyedFunction(parallelism, partition, shard, None, operator, partitioning)

    # Another column nearly doubles the cost of a row's way to Python, so the shard is computed there if possible.
    computed = can_hash(key_schema)
    function_of_rows = combiner.function
    combine = partial(_with_shards, function_of_rows, tuple(key), shards) if computed else function_of_rows
    pack = shuffle_packing.Packer(SHARD, shards, parallelism)

    def packed(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        return pack(combine(_begun(batches)))

    def unpacked(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        return function(shuffle_packing.unpack(batches))

    return KeyedFunction(
        parallelism,
        F.col(shuffle_packing.PARTITION),
        None if computed else shard,
        Mapped(packed, rows[:-1] if computed else rows, shuffle_packing.SCHEMA),
        _operator(unpacked, name, shuffle_packing.SCHEMA.names, output),
        partitioning,
    )


@attrs.frozen(eq=False)
class KeyedFunction:
    """A function of keyed rows, ready to be put into any number of DataFrames with one schema."""

    parallelism: int
    partition: Column
    """The partition of what is sent."""
    shard: Column | None
    """A row's shard; None if it is not needed before Python."""
    combine: Mapped | None
    """Combines and packs rows before they are sent."""
    function: Mapped
    partitioning: Partitioning

    def over(self, df: DataFrame) -> DataFrame:
        """Return the function's output over a DataFrame."""
        rows = df if self.shard is None else df.withColumn(SHARD, self.shard)
        sent = rows if self.combine is None else self.combine.over(rows)
        return self.function.over(self.partitioning(sent, self.parallelism, self.partition))


class Mapped:
    """A function for ``mapInArrow`` that is pickled once, whatever the number of DataFrames it runs over."""

    def __init__(self, function: ArrowFunction, columns: Sequence[str], output: StructType) -> None:
        """Make it, on the driver.

        Args:
            columns: names of all columns of the DataFrames.
            output: schema of the batches that the function yields.
        """
        # As PySpark's mapInArrow, which would make them for each DataFrame again.
        udf = pandas_udf(function, output, functionType=PythonEvalType.SQL_MAP_ARROW_ITER_UDF)  # type: ignore[call-overload]
        self._call = udf(*map(_column, columns))

    def over(self, df: DataFrame) -> DataFrame:
        """Return the function's output over a DataFrame."""
        return DataFrame(df._jdf.mapInArrow(self._call._jc, False, None), df.sparkSession)


def _operator(function: ArrowFunction, name: str, columns: Sequence[str], output: StructType) -> Mapped:
    def operator(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        return function(_begun(batches))

    operator.__name__ = operator.__qualname__ = name
    return Mapped(operator, columns, output)


def _begun(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Return a task's batches, after preparing its process for tasks that are short."""
    spare_loaded_modules()
    return with_quick_ack(batches)


def _with_shards(
    function: ArrowFunction, key: Sequence[str], shards: int, batches: Iterator[pa.RecordBatch]
) -> Iterator[pa.RecordBatch]:
    """Run a function over rows after adding the column ``SHARD`` to them."""
    return function(
        batch.append_column(SHARD, from_numpy(shards_of([batch.column(name) for name in key], shards)))
        for batch in batches
    )


def quoted(name: str) -> str:
    """Return a column's name quoted for Spark SQL."""
    return "`" + name.replace("`", "``") + "`"


def _column(name: str) -> Column:
    return F.col(quoted(name))


def _check_column(name: object, columns: Sequence[str], argument: str) -> None:
    if not isinstance(name, str):
        advice = "give the name; add what is computed to the input before, by withColumn"
        raise invalid_argument(argument, "names of columns", describe(name), advice)
    if name not in columns:
        raise invalid_argument(argument, f"names among the columns {', '.join(columns)}", repr(name))


def _check_distinct(argument: str, names: Sequence[str], fold: Callable[[str], str]) -> None:
    if twice := sorted(set(repeated(names, fold))):
        raise invalid_argument(argument, "no column name twice", ", ".join(map(repr, twice)))


def repeated(names: Sequence[str], fold: Callable[[str], str]) -> list[str]:
    """Return the column names that are the same as another one, by ``folding``, in their order."""
    times = Counter(map(fold, names))
    return [name for name in names if times[fold(name)] > 1]


def folding(df: DataFrame) -> Callable[[str], str]:
    """Return a function that maps column names to equal texts if they are the same name in the session."""
    return str if df.sparkSession.conf.get("spark.sql.caseSensitive") == "true" else str.lower
