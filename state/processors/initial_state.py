"""The rows that an operator's state begins with: written down once by the driver, read by each task for its shards."""

from __future__ import annotations

import uuid
from collections.abc import Iterator, Sequence
from pathlib import Path

import attrs
import numpy as np
import pyarrow as pa
import pyarrow.ipc
from pyspark import TaskContext
from pyspark.sql import DataFrame, GroupedData
from pyspark.sql.types import IntegerType, StringType, StructField, StructType

from ..errors import DefinitionError, InitialStateError
from ..format.schema import to_json
from ..operators.dataframe import SHARD, check_input, keyed

_WRITTEN = StructType([StructField("shard", IntegerType()), StructField("path", StringType())])


@attrs.frozen
class InitialState:
    """Where the rows of each shard are."""

    schema: str
    """Schema of the rows as Spark's JSON."""
    files: dict[int, tuple[str, ...]]
    """Arrow files by shard; a shard without rows has none. They hold the shard's column, too, as the last."""

    def read(self, shards: Sequence[int]) -> pa.Table | None:
        """Return the rows of some shards, with the shard's column; None if there are none.

        Raises:
            InitialStateError: a file cannot be read.
        """
        tables = []
        for shard in shards:
            for path in self.files.get(shard, ()):
                try:
                    # Not a memory map: the files may go while the rows are still used.
                    with pa.OSFile(path) as file, pa.ipc.open_file(file) as reader:
                        tables.append(reader.read_all())
                except (OSError, pa.ArrowException) as error:
                    raise InitialStateError(path, str(error)) from error
        return pa.concat_tables(tables) if tables else None


@attrs.frozen
class _ShardFiles:
    """A function for ``mapInArrow`` that writes the rows of each shard to a file of its own."""

    folder: str

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        held = [batch for batch in batches if batch.num_rows]
        if not held:
            return
        table = pa.Table.from_batches(held)
        shards = table.column(SHARD).combine_chunks().to_numpy()
        order = np.argsort(shards, kind="stable")
        found, starts = np.unique(shards[order], return_index=True)
        written = []
        for shard, rows in zip(found.tolist(), np.split(order, starts[1:]), strict=True):
            # An attempt that Spark gives up leaves its file behind, but is not heard of.
            path = Path(self.folder) / f"{shard}-{_partition()}-{uuid.uuid4().hex}.arrow"
            part = table.take(pa.array(rows))
            with pa.OSFile(str(path), "wb") as file, pa.ipc.new_file(file, part.schema) as writer:
                writer.write_table(part)
            written.append({"shard": shard, "path": str(path)})
        schema = pa.schema([("shard", pa.int32()), ("path", pa.string())])
        yield pa.RecordBatch.from_pylist(written, schema=schema)


def initial_rows(initial: DataFrame | GroupedData, key: Sequence[str], stream: DataFrame) -> DataFrame:
    """Return the rows of an initial state, if they have the stream's key.

    Args:
        initial: a DataFrame, or one that is grouped, as PySpark takes it; what counts is that it has the key columns.
        key: names of the key columns.
        stream: what the operator runs over.

    Raises:
        DefinitionError: it is no such thing, is a stream, or its key columns are missing or have other types.
        KeyTypeError, SchemaError: as ``check_input`` says.
    """
    rows = initial._df if isinstance(initial, GroupedData) else initial
    if not isinstance(rows, DataFrame):
        raise DefinitionError("initial_state", "a DataFrame, grouped or not", type(initial).__name__)
    if rows.isStreaming:
        raise DefinitionError("initial_state", "a DataFrame that is not streaming", "one that is")
    check_input(rows, key)
    check_input(stream, key)
    for name in key:
        expected, found = stream.schema[name].dataType, rows.schema[name].dataType
        if expected != found:
            told = f"{name} {found.simpleString()}"
            raise DefinitionError("initial_state", f"with key column {name} {expected.simpleString()}", told)
    return rows


def write_down(
    rows: DataFrame, key: Sequence[str], shards: int, parallelism: int, folder: Path
) -> InitialState:
    """Compute the rows of an initial state, once, and write them to files of each shard.

    Args:
        rows: as ``initial_rows`` returns them.
        key: names of the key columns.
        shards: how many the operator has.
        parallelism: tasks that compute the rows.
        folder: an existing directory which the driver and all tasks see under this path.
    """
    write = keyed(rows, key, shards, parallelism, _ShardFiles(str(folder)), _WRITTEN, "initial_state")
    files: dict[int, tuple[str, ...]] = {}
    for row in sorted(write.collect()):
        files[row.shard] = (*files.get(row.shard, ()), row.path)
    return InitialState(to_json(rows.schema), files)


def _partition() -> int:
    context = TaskContext.get()
    return context.partitionId() if context else 0
