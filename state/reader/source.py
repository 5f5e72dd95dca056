"""The Spark data source "chandy": the state of an operator, out of a checkpoint or a savepoint.

Options: ``path`` (the argument of ``load``), ``checkpoint``, ``operator``, ``state``; see ``reading.read_state``.
"""

from __future__ import annotations

from collections.abc import Iterator, MutableMapping
from pathlib import Path
from tempfile import TemporaryDirectory

import attrs
import pyarrow as pa
from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition
from pyspark.sql.types import StructType

from ...storage.locate import LATEST, locate
from ...storage.manifest import CheckpointKind, Handle, OperatorRecord
from ...storage.open import open_store
from ...storage.snapshots import restore_files
from ..errors import DefinitionError, NoSuchStateError
from .stored import TIMERS, StoredState

FORMAT = "chandy"

_OPTIONS = {"path", "checkpoint", "operator", "state"}


@attrs.frozen
class Selection:
    """One state of one operator of one checkpoint."""

    root: str
    """URI of the store that holds the files."""
    checkpoint: int
    is_savepoint: bool
    shards: tuple[Handle | None, ...]
    state: StoredState


def select(uri: str, checkpoint: str | int, operator: str | None, state: str | None) -> Selection:
    """Find what is to be read.

    Args:
        uri, checkpoint, operator, state: as for ``reading.read_state``.

    Raises:
        NothingHereError: there is no such checkpoint.
        NoSuchStateError: it has no such operator or state, or several and none is named.
        DamagedError, SchemaTooNewError: its manifest cannot be read.
        InvalidPlaceError: the URI names no store.
    """
    found = locate(uri, checkpoint)
    record = _operator(found.manifest.id, found.manifest.operators, operator)
    name = _state(found.manifest.id, record, state)
    return Selection(
        root=found.store.uri,
        checkpoint=found.manifest.id,
        is_savepoint=found.manifest.kind is CheckpointKind.SAVEPOINT,
        shards=record.shards,
        state=StoredState(record.uid, name, record.key_schema, record.states.get(name)),
    )


def _operator(checkpoint: int, operators: tuple[OperatorRecord, ...], wanted: str | None) -> OperatorRecord:
    by_uid = {record.uid: record for record in operators}
    if wanted is None and len(by_uid) == 1:
        return operators[0]
    if wanted is None or wanted not in by_uid:
        what = "one operator, or its uid as operator=..." if wanted is None else f"the operator {wanted!r}"
        raise NoSuchStateError(checkpoint, what, tuple(by_uid))
    return by_uid[wanted]


def _state(checkpoint: int, operator: OperatorRecord, wanted: str | None) -> str:
    names = tuple(operator.states)
    if wanted is None and len(names) == 1:
        return names[0]
    if wanted is None or wanted not in (*names, TIMERS):
        what = "one state, or its name as state=..." if wanted is None else f"the state {wanted!r}"
        raise NoSuchStateError(checkpoint, f"{what} of operator {operator.uid!r}", (*names, TIMERS))
    return wanted


class ShardPartition(InputPartition):
    """One shard's part of what is read."""

    def __init__(self, handle: Handle | None) -> None:
        super().__init__(None)
        self.handle = handle


class StateSource(DataSource):
    """Registered as "chandy"."""

    def __init__(self, options: MutableMapping[str, str]) -> None:
        # Spark asks for the schema in one process and for the reader in another, and sends this object from the
        # first to the second: so both are of one checkpoint, also of the latest.
        unknown = sorted({name.lower() for name in options} - _OPTIONS)
        if unknown or "path" not in options:
            found = ", ".join(unknown) or "no path"
            raise DefinitionError("options", "path, checkpoint, operator, state, the first always", found)
        self._selection = select(
            options["path"],
            options.get("checkpoint", LATEST),
            options.get("operator"),
            options.get("state"),
        )

    @classmethod
    def name(cls) -> str:
        """Return the format's name."""
        return FORMAT

    def schema(self) -> StructType:
        """Return the columns of the selected state."""
        return self._selection.state.schema

    def reader(self, schema: StructType) -> DataSourceReader:
        """Return a reader of the selected state.

        Raises:
            DefinitionError: another schema was asked for.
        """
        if schema.names != self.schema().names:
            raise DefinitionError("schema", "left out", schema.simpleString())
        return StateReader(self._selection)


class StateReader(DataSourceReader):
    """Reads a state, one shard a partition."""

    def __init__(self, selection: Selection) -> None:
        self._selection = selection

    def partitions(self) -> list[InputPartition]:
        """Return the shards that hold something."""
        found: list[InputPartition] = [ShardPartition(handle) for handle in self._selection.shards if handle]
        # Spark takes a source without partitions for one that does not know them.
        return found or [ShardPartition(None)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yield what a shard holds; its files are in a temporary directory meanwhile.

        Raises:
            DamagedError: a file is not as it was written.
            ObjectMissingError: a file is gone: the checkpoint is, too, dropped by the pipeline's retention.
        """
        assert isinstance(partition, ShardPartition)
        if partition.handle is None:
            return
        with TemporaryDirectory(prefix="chandy-read-") as folder:
            directory = Path(folder)
            restore_files(open_store(self._selection.root), partition.handle, directory)
            yield from self._selection.state.batches(directory)
