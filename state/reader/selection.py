"""What is to be read: one state of one operator of one checkpoint, found by what a user says."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator

import attrs
import pyarrow as pa

from ...storage.backends.open import open_store
from ...storage.checkpoints.locate import Located, locate
from ...storage.checkpoints.manifest import CheckpointKind, Handle, OperatorRecord
from ...storage.checkpoints.restore import restore_files
from ...storage.disk.scratch import scratch_directory
from ..errors import NoSuchStateError, invalid_argument
from ..format.keyspace import LETTERS
from .stored import TIMERS, StoredState


@attrs.frozen
class Selection:
    """One state of one operator of one checkpoint."""

    root: str
    """URI of the store that holds the files."""
    checkpoint: int
    is_savepoint: bool
    shards: tuple[Handle | None, ...]
    """The shards to read."""
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
        state=StoredState.of(record, name),
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
