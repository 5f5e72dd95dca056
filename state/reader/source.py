"""The Spark data source "chandy": the state of an operator in a checkpoint, or what has changed of it."""

from __future__ import annotations

from collections.abc import Iterator, MutableMapping, Sequence

import pyarrow as pa
from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    DataSourceStreamReader,
    DataSourceWriter,
    InputPartition,
)
from pyspark.sql.types import StructType

from ...storage.checkpoints.manifest import Handle
from ..errors import DefinitionError, invalid_argument
from ..pyspark_versions import stream_reader
from .changes import ChangePart
from .feed import Feed, FeedReader
from .names import FORMAT
from .options import ChangesBetween, chosen
from .selection import Selection


class StateSource(DataSource):
    """The data source, with the name "chandy"; ``options`` says what it takes."""

    def __init__(self, options: MutableMapping[str, str]) -> None:
        # Spark asks for the schema in one process and for the reader in another, and pickles this object in between.
        # So both are of the same checkpoint, even if "latest" is selected.
        self._chosen = chosen(options)

    @classmethod
    def name(cls) -> str:
        """Return the format's name."""
        return FORMAT

    def schema(self) -> StructType:
        """Return the columns of the selected state, or of its changes."""
        return (
            self._chosen.state.schema if isinstance(self._chosen, Selection) else self._chosen.changes.schema
        )

    def reader(self, schema: StructType) -> DataSourceReader:
        """Return a reader of the selected state or of its changes.

        Raises:
            DefinitionError: the user gave another schema, or the options are those of a stream.
        """
        self._check(schema)
        if isinstance(self._chosen, Feed):
            raise DefinitionError(
                "a stream of changes cannot be read at once",
                "spark.readStream, or changes_from and changes_to",
                "the option 'reader' for spark.read",
            )
        if isinstance(self._chosen, ChangesBetween):
            return ChangesReader(self._chosen)
        return StateReader(self._chosen)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802 (Spark's name)
        """Return a reader of the stream of changes.

        Raises:
            DefinitionError: the user gave another schema, or the options are not those of a stream.
        """
        self._check(schema)
        if not isinstance(self._chosen, Feed):
            raise DefinitionError(
                "only changes can be read as a stream",
                "the option 'reader', a name that is the same in each life of the query",
                "options for spark.read",
                "call stream_changes(spark, URI, reader=NAME)",
            )
        return stream_reader(FeedReader(self._chosen))

    def _check(self, schema: StructType) -> None:
        if schema.names != self.schema().names:
            raise invalid_argument("schema", "no schema, for the state has its own", schema.simpleString())

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        """Refuse to write: a writer is handed the rows where they are, and a savepoint has them by shard and key.

        Raises:
            DefinitionError: always.
        """
        raise DefinitionError(
            "state cannot be written by the format 'chandy'",
            "a SavepointWriter, which has Spark bring the rows to their shards",
            "df.write.format('chandy')",
            "call SavepointWriter.from_existing(spark, URI).with_state(UID, STATE, df).write(PATH)",
        )


class StateReader(DataSourceReader):
    """Reads a state, with one partition for each shard."""

    def __init__(self, selection: Selection) -> None:
        self._selection = selection

    def partitions(self) -> Sequence[InputPartition]:
        """Return the shards that are not empty."""
        return _partitions([handle for handle in self._selection.shards if handle])

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yield the state in a shard; raises as ``Selection.batches``."""
        handle: Handle | None = partition.value
        if handle is not None:
            yield from self._selection.batches(handle)


class ChangesReader(DataSourceReader):
    """Reads the changes between two checkpoints, with one partition for each shard that differs."""

    def __init__(self, between: ChangesBetween) -> None:
        self._between = between

    def partitions(self) -> Sequence[InputPartition]:
        """Return the shards that differ."""
        return _partitions(self._between.parts)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yield the changes of a shard; raises as ``StateChanges.batches``."""
        part: ChangePart | None = partition.value
        if part is not None:
            yield from self._between.changes.batches(part)


def _partitions(values: Sequence[object]) -> Sequence[InputPartition]:
    # PySpark replaces an empty list by a partition of its own, which ``read`` does not know.
    return [InputPartition(value) for value in values or [None]]
