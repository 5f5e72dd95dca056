"""The initial state of an operator: the driver writes its rows to files, and each task reads those of its shards."""

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

from ..errors import UnreadableFileError, invalid_argument
from ..format.schema import to_json
from ..operators.dataframe import SHARD, check_input, keyed

_WRITTEN = StructType([StructField("shard", IntegerType()), StructField("path", StringType())])


@attrs.frozen
class InitialState:
    """The files with the rows of each shard."""

    schema: str
    """Schema of the rows as Spark's JSON."""
    files: dict[int, tuple[str, ...]]
    """Arrow files by shard; a shard without rows has none. Their last column is the shard column."""

    def read(self, shards: Sequence[int]) -> pa.Table | None:
        """Return the rows of some shards, with the shard column; None if there are none.

        Raises:
            UnreadableFileError: a file cannot be read.
        """
        tables = []
        for shard in shards:
            for path in self.files.get(shard, ()):
                try:
                    # Not a memory map, because the files may be deleted while the rows are still used.
                    with pa.OSFile(path) as file, pa.ipc.open_file(file) as reader:
                        tables.append(reader.read_all())
                except (OSError, pa.ArrowException) as error:
                    raise UnreadableFileError(
                        f"cannot read the initial state in {path}",
                        "the file that the driver wrote",
                        str(error),
                        "on a cluster, set work_dir to a directory that the driver and all executors share",
                    ) from error
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
            # An attempt that Spark gives up leaves its file behind, but the driver never learns of it.
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
        initial: a DataFrame with the key columns, grouped or not; PySpark takes a grouped one.
        key: names of the key columns.
        stream: the operator's input.

    Raises:
        DefinitionError: ``initial`` is no DataFrame or a streaming one, its key columns are missing or have other
            types, or an operator cannot run over it as ``check_input`` says.
    """
    rows = initial._df if isinstance(initial, GroupedData) else initial
    if not isinstance(rows, DataFrame):
        raise invalid_argument("initial_state", "a DataFrame, grouped or not", type(initial).__name__)
    if rows.isStreaming:
        raise invalid_argument("initial_state", "a DataFrame that is not streaming", "a streaming one")
    check_input(stream, key)
    for name in key:
        if name not in rows.columns:
            columns = f"columns {', '.join(rows.columns)}"
            raise invalid_argument("initial_state", f"a DataFrame with the key column {name!r}", columns)
    check_input(rows, key)
    for name in key:
        expected, found = stream.schema[name].dataType, rows.schema[name].dataType
        if expected != found:
            column = f"key column {name} of type"
            raise invalid_argument(
                "initial_state", f"{column} {expected.simpleString()}", f"{column} {found.simpleString()}"
            )
    return rows


def write_initial_state(
    rows: DataFrame, key: Sequence[str], shards: int, parallelism: int, folder: Path
) -> InitialState:
    """Compute the rows of an initial state once, and write those of each shard to files.

    Args:
        rows: as ``initial_rows`` returns them.
        key: names of the key columns.
        shards: the number of the operator's shards.
        parallelism: the number of tasks that compute the rows.
        folder: an existing directory that the driver and all tasks see under this path.
    """
    write = keyed(rows, key, shards, parallelism, _ShardFiles(str(folder)), _WRITTEN, "initial_state")
    files: dict[int, tuple[str, ...]] = {}
    for row in sorted(write.collect()):
        files[row.shard] = (*files.get(row.shard, ()), row.path)
    return InitialState(to_json(rows.schema), files)


def _partition() -> int:
    context = TaskContext.get()
    return context.partitionId() if context else 0
