"""The Spark data source "chandy", which reads the state of an operator in a checkpoint or a savepoint.

Options: ``path`` (the argument of ``load``), ``checkpoint``, ``operator``, ``state``, ``shards`` (numbers with commas
in between), ``key`` (its canonical bytes in hex); see ``reading.read_state``.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, MutableMapping
from typing import TypeVar

import attrs
import pyarrow as pa
from pyspark.sql.datasource import DataSource, DataSourceReader, DataSourceWriter, InputPartition
from pyspark.sql.types import StructType

from ...storage.backends.open import open_store
from ...storage.checkpoints.locate import LATEST, Located, locate
from ...storage.checkpoints.manifest import CheckpointKind, Handle, OperatorRecord
from ...storage.checkpoints.restore import restore_files
from ...storage.disk.scratch import scratch_directory
from ..errors import DefinitionError, NoSuchStateError, invalid_argument
from ..format.keyspace import LETTERS
from .stored import TIMERS, StoredState

T = TypeVar("T")

FORMAT = "chandy"

_OPTIONS = {"path", "checkpoint", "operator", "state", "shards", "key"}


@attrs.frozen
class Selection:
    """One state of one operator of one checkpoint."""

    root: str
    """URI of the store that holds the files."""
    checkpoint: int
    is_savepoint: bool
    shards: tuple[Handle | None, ...]
    """Those to read."""
    state: StoredState
    key: bytes | None = None
    """The canonical bytes of the only key to read; None: all keys."""

    def within(self, shards: Collection[int] | None, key: bytes | None = None) -> Selection:
        """Return what is selected in some shards, or of one key in them.

        Raises:
            DefinitionError: the operator has no such shard.
        """
        if shards is None:
            return attrs.evolve(self, key=key)
        if not shards or not set(shards) <= set(range(len(self.shards))):
            expected = f"some of the shards 0 to {len(self.shards) - 1} of operator {self.state.operator!r}"
            raise invalid_argument("shards", expected, ", ".join(map(str, shards)) or "none")
        return attrs.evolve(self, shards=tuple(self.shards[at] for at in sorted(set(shards))), key=key)

    def batches(self, shard: Handle) -> Iterator[pa.RecordBatch]:
        """Yield what is selected of a shard, whose files are downloaded into a temporary directory.

        Raises:
            DamagedError: a file is not as it was written.
            ObjectMissingError: a file is gone, because the pipeline's retention has dropped the checkpoint.
        """
        with scratch_directory("read") as directory:
            restore_files(open_store(self.root), shard, directory)
            yield from self.state.batches(directory, self.key)


def select(uri: str, checkpoint: str | int, operator: str | None, state: str | None) -> Selection:
    """Find the state to read.

    Args:
        uri, checkpoint, operator, state: as for ``reading.read_state``.

    Raises:
        NothingHereError: there is no such checkpoint.
        NoSuchStateError: it has no such operator or state, or several and none is named.
        DamagedError, SchemaTooNewError: its manifest cannot be read.
        InvalidPlaceError: the URI names no store.
    """
    return selected(locate(uri, checkpoint), operator, state)


def selected(found: Located, operator: str | None, state: str | None) -> Selection:
    """Find the state to read in a checkpoint; args and errors are those of ``select``."""
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
        raise _no_such(f"an operator of checkpoint {checkpoint}", "operator", wanted, by_uid)
    return by_uid[wanted]


def _state(checkpoint: int, operator: OperatorRecord, wanted: str | None) -> str:
    names = tuple(operator.states)
    if wanted is None and len(names) == 1:
        return names[0]
    known = (*names, TIMERS, LETTERS)
    if wanted is None or wanted not in known:
        what = f"a state of operator {operator.uid!r} of checkpoint {checkpoint}"
        raise _no_such(what, "state", wanted, known)
    return wanted


def _no_such(what: str, option: str, wanted: str | None, existing: Iterable[str]) -> NoSuchStateError:
    found = f"no {option}" if wanted is None else repr(wanted)
    names = ", ".join(map(repr, existing))
    expected = f"one of {names}" if names else f"a checkpoint with an {option}"
    return NoSuchStateError(f"cannot select {what}", expected, found, f"select one with {option}=...")


def _numbers(text: str) -> list[int]:
    return [int(one) for one in text.split(",")]


def _read(name: str, expected: str, parse: Callable[[str], T], options: MutableMapping[str, str]) -> T | None:
    """Return what an option says; None if it is not there."""
    given = options.get(name)
    if given is None:
        return None
    try:
        return parse(given)
    except ValueError:
        raise invalid_argument(name, expected, repr(given)) from None


class ShardPartition(InputPartition):
    """The part of one shard."""

    def __init__(self, handle: Handle | None) -> None:
        super().__init__(None)
        self.handle = handle


class StateSource(DataSource):
    """The data source, with the name "chandy"."""

    def __init__(self, options: MutableMapping[str, str]) -> None:
        # Spark asks for the schema in one process and for the reader in another, and pickles this object in between.
        # So both are of the same checkpoint, even if "latest" is selected.
        unknown = sorted({name.lower() for name in options} - _OPTIONS)
        if unknown or "path" not in options:
            found = ", ".join(unknown) or "no path"
            optional = ", ".join(sorted(_OPTIONS - {"path"}))
            raise invalid_argument("options", f"path, and optionally {optional}", found)
        selected = select(
            options["path"],
            options.get("checkpoint", LATEST),
            options.get("operator"),
            options.get("state"),
        )
        self._selection = selected.within(
            _read("shards", "numbers with commas in between", _numbers, options),
            _read("key", "the bytes of a key in hex", bytes.fromhex, options),
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
            DefinitionError: the user gave another schema.
        """
        if schema.names != self.schema().names:
            raise invalid_argument("schema", "no schema, for the state has its own", schema.simpleString())
        return StateReader(self._selection)

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

    def partitions(self) -> list[InputPartition]:
        """Return the shards that are not empty."""
        found: list[InputPartition] = [ShardPartition(handle) for handle in self._selection.shards if handle]
        # PySpark replaces an empty list by a partition of its own, which ``read`` does not know.
        return found or [ShardPartition(None)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yield the state in a shard; raises as ``Selection.batches``."""
        assert isinstance(partition, ShardPartition)
        if partition.handle is not None:
            yield from self._selection.batches(partition.handle)
