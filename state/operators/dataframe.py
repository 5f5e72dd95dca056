"""Puts a keyed operator into a DataFrame: rows to shards, shards to partitions, partitions to a function."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from functools import partial

import attrs
import pyarrow as pa
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812 (its usual name)
from pyspark.sql.types import StructType

from ..errors import DefinitionError
from ..format.arrow import from_numpy
from ..format.keys import KeyCodec
from ..format.rows import check_columns
from . import shard_ranges, shuffle_packing
from .hashing import can_hash, shards_of
from .quick_ack import with_quick_ack

SHARD = "__chandy_shard"
"""The column that carries each row's shard to the function; it comes after all others."""

ArrowFunction = Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]


@attrs.frozen
class Combiner:
    """Makes rows fewer before they are sent to their partitions: several rows of one key into one."""

    function: ArrowFunction
    """Takes rows as they come, with the column ``SHARD`` last, and yields others with ``SHARD`` last."""


def check_input(df: DataFrame, key: Sequence[str]) -> StructType:
    """Return the schema of the key columns, if an operator keyed by them can run over ``df``.

    Raises:
        DefinitionError: a key column is missing or given twice, or two columns of ``df`` have one name.
        KeyTypeError: rows cannot be grouped by a key column.
        SchemaError: a column cannot be given to Python.
    """
    if isinstance(key, str) or not key:
        raise DefinitionError("key", "a list of at least one column name", repr(key))
    names = df.columns
    for name in key:
        if name not in names:
            raise DefinitionError("key", f"among the columns {', '.join(names)}", repr(name))
    fold = _folding(df)
    _check_distinct("key", key, fold)
    _check_distinct("columns", names, fold)
    if SHARD in map(fold, names):
        raise DefinitionError("columns", f"free of the reserved name {SHARD!r}", ", ".join(names))
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
    """Return ``df`` sent through ``function``, each row to the partition that serves the shard of its key.

    Args:
        df: any DataFrame, streaming or not.
        key: names of the key columns.
        shards: how many shards the key space has.
        parallelism: how many partitions serve them; partition ``p`` gets ``keygroups.ranges(...)[p]``.
        function: called in every partition, also in those without rows, with the columns of ``df`` and then
            ``SHARD``. Rows come in no particular order of shards: Spark sorts no streaming DataFrame.
        output: schema of the batches that the function yields.
        name: name that the function has in Spark's plan.
        combiner: what rows go through before they are sent; the function gets what it yields.

    Raises:
        DefinitionError, KeyTypeError, SchemaError: as ``check_input`` and ``keygroups.check`` say.
    """
    key_schema = check_input(df, key)
    shard_ranges.check(shards, parallelism)
    check_columns(output, "the output")
    shard = F.pmod(F.xxhash64(*map(_column, key)), F.lit(shards)).cast("int")
    partition = F.expr(shard_ranges.partition_expression(SHARD, shards, parallelism))

    if combiner is None:
        sent, receive = df.withColumn(SHARD, shard).repartitionById(parallelism, partition), function
    else:
        # A column more costs a row as much again on its way to Python: the shard is found out there if it can be.
        known = can_hash(key_schema)
        before = combiner.function
        combine = partial(_located, before, tuple(key), shards) if known else before
        pack = shuffle_packing.Packer(SHARD, shards, parallelism)
        rows = df if known else df.withColumn(SHARD, shard)
        packed = rows.mapInArrow(
            lambda batches: pack(combine(with_quick_ack(batches))), shuffle_packing.SCHEMA
        )
        sent = packed.repartitionById(parallelism, F.col(shuffle_packing.PARTITION))

        def receive(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
            return function(shuffle_packing.unpack(batches))

    def operator(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        return receive(with_quick_ack(batches))

    operator.__name__ = operator.__qualname__ = name
    return sent.mapInArrow(operator, output)


def _located(
    function: ArrowFunction, key: Sequence[str], shards: int, batches: Iterator[pa.RecordBatch]
) -> Iterator[pa.RecordBatch]:
    """Run a function over rows with their shards, which these batches do not have yet."""
    return function(
        batch.append_column(SHARD, from_numpy(shards_of([batch.column(name) for name in key], shards)))
        for batch in batches
    )


def quoted(name: str) -> str:
    """Return a column's name as Spark SQL has it, whatever characters are in it."""
    return "`" + name.replace("`", "``") + "`"


def _column(name: str) -> Column:
    return F.col(quoted(name))


def _check_distinct(argument: str, names: Sequence[str], fold: Callable[[str], str]) -> None:
    times = Counter(map(fold, names))
    twice = sorted({name for name in names if times[fold(name)] > 1})
    if twice:
        raise DefinitionError(argument, "without any name twice", ", ".join(map(repr, twice)))


def _folding(df: DataFrame) -> Callable[[str], str]:
    """Return what makes two names equal that are one to the session."""
    return str if df.sparkSession.conf.get("spark.sql.caseSensitive") == "true" else str.lower
