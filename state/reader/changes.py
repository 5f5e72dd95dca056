"""What of one state has changed between two checkpoints, as rows.

| column | type | content |
|---|---|---|
| the columns of the state, see ``stored`` | their own | what the newer checkpoint has |
| ``_change`` | string | "insert", "update" or "delete"; "read" if there is no older checkpoint |
| ``_checkpoint`` | bigint | the id of the newer checkpoint |
| ``_completed_at`` | timestamp | when that was completed |
| ``_shard`` | int | the key's shard; null if the checkpoints have different numbers of shards |
| ``_before`` | struct | the fields of the value in the older checkpoint, null if it had none; only if it is asked for |

Of a deletion, the state's columns are null but for the key, the map's key and the position.

Any two checkpoints can be compared, also those between which the pipeline went back. A value that was written again as
it was has not changed. An item that has expired counts as deleted once its shard has removed it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

import attrs
import pyarrow as pa
from pyspark.sql.types import (
    IntegerType,
    LongType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)
from rocksdict import Rdict

from ...storage.backends.open import open_store
from ...storage.checkpoints.files import FileCache
from ...storage.checkpoints.locate import Located
from ...storage.checkpoints.manifest import Handle, OperatorRecord
from ...storage.disk.directories import CACHE, private_directory, runtime_directory
from ..errors import DefinitionError, NoSuchStateError, StateSchemaError
from ..format.arrow import BYTES
from ..format.schema import arrow_schema, from_json, plain_strings
from .comparing import StateComparison, opened_pair, same_files, same_schema, shard_pairs
from .stored import StoredState, pieces, timestamps

CHANGE: Final = "_change"
CHECKPOINT: Final = "_checkpoint"
COMPLETED_AT: Final = "_completed_at"
SHARD: Final = "_shard"
BEFORE: Final = "_before"

READ: Final = "read"
INSERT: Final = "insert"
UPDATE: Final = "update"
DELETE: Final = "delete"

_Change = tuple[bytes, int | bytes, bytes | None, bytes | None]
"""A key, the place of an item as ``StoredState.items_of`` says, and its packed value before and after."""


@attrs.frozen
class Side:
    """Some shards of one checkpoint."""

    root: str
    """URI of the store that has its files."""
    operator: OperatorRecord
    """Without its shards."""
    shards: tuple[Handle | None, ...]


@attrs.frozen
class ChangePart:
    """The changes of some shards, which one task reads."""

    old: Side | None
    """None: there is no older checkpoint, and everything is new."""
    new: Side
    checkpoint: int
    """The id of the newer checkpoint."""
    completed_at: float
    """When that was completed, in seconds since 1970."""
    shard: int | None
    """The number of the only shard; None if there are several."""


@attrs.frozen
class StateChanges:
    """The changes of one state, to read."""

    state: StoredState
    """The state whose columns the rows have. Columns that a later checkpoint adds are left out."""
    before: bool = False
    """Whether rows have the value in the older checkpoint."""
    cache: str | None = None
    """The directory where a machine keeps snapshot files; empty: the default one. None: nothing is kept."""

    def __attrs_post_init__(self) -> None:
        if self.state.record is None:
            raise DefinitionError(
                f"changes of {self.state.name!r} of operator {self.state.operator!r} cannot be read",
                "a state variable, or the dead letters",
                "timers",
                "read_state returns them as they are in one checkpoint",
            )
        if taken := sorted(set(self.state.schema.names) & {CHANGE, CHECKPOINT, COMPLETED_AT, SHARD, BEFORE}):
            raise DefinitionError(
                f"changes of state {self.state.name!r} of operator {self.state.operator!r} cannot be read",
                "a state without columns that rows of changes have of their own",
                ", ".join(taken),
                "rename the columns in the operator",
            )

    @property
    def schema(self) -> StructType:
        """Schema of the rows."""
        own = [(CHANGE, StringType()), (CHECKPOINT, LongType()), (COMPLETED_AT, TimestampType())]
        fields = [*self.state.schema.fields, *(StructField(name, dtype) for name, dtype in own)]
        fields.append(StructField(SHARD, IntegerType()))
        if self.before:
            fields.append(StructField(BEFORE, self._value_schema))
        return StructType(fields)

    def parts(
        self, old: Located | None, new: Located, shards: tuple[int, int | None] = (0, None)
    ) -> list[ChangePart]:
        """Return what tasks are to read, without shards whose files are the same.

        Args:
            old: the older checkpoint; None: everything in ``new`` is new.
            new: the newer checkpoint.
            shards: the first shard to read and that after the last one, if there is no older checkpoint.

        Raises:
            NoSuchStateError: ``new`` no longer has the state.
            StateSchemaError: the key, the kind of the state or the keys of a map are others than in ``state``.
        """
        name, after = self.state.name, self._operator(new)
        if old is None:
            return [
                self._part(None, (), after, new, (handle,), number)
                for number, handle in enumerate(after.shards)
                if handle and shards[0] <= number and (shards[1] is None or number < shards[1])
            ]
        before = self._operator(old)
        if name in before.states and name not in after.states and after.shards:
            raise NoSuchStateError(
                f"changes of state {name!r} of operator {after.uid!r} end before checkpoint {new.manifest.id} in "
                f"{new.store.uri}",
                "a checkpoint that has the state",
                f"the states {', '.join(after.states) or 'none'}",
                "start over, with another state",
            )
        same = self._means_the_same(before, after)
        one_by_one = len(before.shards) == len(after.shards) or not (before.shards and after.shards)
        return [
            self._part((old, before), was, after, new, now, number if one_by_one else None)
            for number, (was, now) in enumerate(shard_pairs(before.shards, after.shards))
            if not (same and same_files(was, now))
        ]

    def batches(self, part: ChangePart) -> Iterator[pa.RecordBatch]:
        """Yield the changes of a part, sorted by key, whose files are downloaded into a temporary directory.

        Raises:
            DamagedError: a file is not as it was written.
            ObjectMissingError: a file is gone, because retention has dropped the checkpoint.
            StateTypeError: the stored bytes do not fit the state's record.
        """
        stores = (open_store((part.old or part.new).root), open_store(part.new.root))
        widest = self._widest(part)
        shards = (part.old.shards if part.old else (), part.new.shards)
        with opened_pair(stores, shards, self._files()) as (before, after):
            items = self._new(after, widest) if part.old is None else self._differing(before, after, part)
            for piece in pieces(items):
                yield self._rows(piece, widest, part)

    def _files(self) -> FileCache | None:
        if self.cache is None:
            return None
        return FileCache(Path(self.cache or private_directory(runtime_directory()) / CACHE))

    def _new(self, databases: Sequence[Rdict], widest: StoredState) -> Iterator[_Change]:
        """Yield everything that shards have, without the detour of a comparison with nothing."""
        return ((key, place, None, new) for db in databases for key, place, new in widest.items(db))

    def _differing(self, old: Sequence[Rdict], new: Sequence[Rdict], part: ChangePart) -> Iterator[_Change]:
        before = part.old.operator if part.old else None
        comparison = StateComparison.of(self.state.operator, self.state.name, before, part.new.operator)
        return ((item.key, item.place, item.old, item.new) for item in comparison.differing(old, new))

    # --- parts ----------------------------------------------------------------------------------------------

    def _operator(self, found: Located) -> OperatorRecord:
        """Return the operator in a checkpoint. Before its first batch it is in none: then it is empty."""
        uid, name, own = self.state.operator, self.state.name, self.state.record
        assert own is not None, "checked when this was made"
        empty = OperatorRecord(uid, "", self.state.key_schema, {}, ())
        record = next((one for one in found.manifest.operators if one.uid == uid), empty)
        state = record.states.get(name, own)
        is_same_kind = (state.kind, state.map_key) == (own.kind, own.map_key)
        if not (is_same_kind and same_schema(record.key_schema, self.state.key_schema)):
            raise StateSchemaError(
                f"changes of state {name!r} of operator {uid!r} end before checkpoint {found.manifest.id} in "
                f"{found.store.uri}",
                "the columns of the key, the kind of the state and the keys of a map as they were",
                "others",
                "start over: with another name for the reader, and an empty target",
            )
        return record

    def _means_the_same(self, old: OperatorRecord, new: OperatorRecord) -> bool:
        return StateComparison.of(self.state.operator, self.state.name, old, new).same_bytes

    @staticmethod
    def _part(
        old: tuple[Located, OperatorRecord] | None,
        was: Sequence[Handle | None],
        after: OperatorRecord,
        new: Located,
        now: Sequence[Handle | None],
        number: int | None,
    ) -> ChangePart:
        before = None
        if old is not None:
            before = Side(old[0].store.uri, attrs.evolve(old[1], shards=()), tuple(was))
        return ChangePart(
            before,
            Side(new.store.uri, attrs.evolve(after, shards=()), tuple(now)),
            new.manifest.id,
            new.manifest.completed_at,
            number,
        )

    # --- rows -----------------------------------------------------------------------------------------------

    @property
    def _value_schema(self) -> StructType:
        assert self.state.record is not None, "checked when this was made"
        fields = from_json(self.state.record.versions[-1]).fields
        return StructType([StructField(field.name, plain_strings(field.dataType)) for field in fields])

    def _widest(self, part: ChangePart) -> StoredState:
        """Return the state with all schemas that its values may have on either side."""
        sides = [side.operator.states.get(self.state.name) for side in (part.old, part.new) if side]
        records = [record for record in (self.state.record, *sides) if record is not None]
        return attrs.evolve(self.state, record=max(records, key=lambda record: len(record.versions)))

    def _rows(self, changes: Sequence[_Change], widest: StoredState, part: ChangePart) -> pa.RecordBatch:
        keys, places, before, after = zip(*changes, strict=True)
        rows = widest.rows(keys, places, after)
        schema = arrow_schema(self.schema)
        count = len(changes)
        said = [READ] * count if part.old is None else list(map(_said, before, after))
        own = {
            CHANGE: pa.array(said, pa.string()),
            CHECKPOINT: pa.array([part.checkpoint] * count, pa.int64()),
            COMPLETED_AT: timestamps(pa.array([round(part.completed_at * 1000)] * count, pa.int64())),
            SHARD: pa.array([part.shard] * count, pa.int32()),
        }
        if self.before:
            own[BEFORE] = self._before(before, widest)
        columns = [own[field.name] if field.name in own else rows.column(field.name) for field in schema]
        return pa.RecordBatch.from_arrays(
            [column.cast(field.type) for column, field in zip(columns, schema, strict=True)], schema=schema
        )

    def _before(self, packed: Sequence[bytes | None], widest: StoredState) -> pa.StructArray:
        values = pa.array(packed, BYTES)
        found = widest.unpack(values)
        wanted = arrow_schema(self._value_schema)
        columns = dict(zip((field.name for field in found.type), found.flatten(), strict=True))
        cast = [columns[field.name].cast(field.type) for field in wanted]
        return pa.StructArray.from_arrays(cast, fields=list(wanted), mask=values.is_null())


def _said(before: bytes | None, after: bytes | None) -> str:
    if before is None:
        return INSERT
    return DELETE if after is None else UPDATE
