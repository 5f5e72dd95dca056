"""Reads one state out of the restored database of one shard, as Arrow batches, to read checkpoints.

| state | columns behind those of the key |
|---|---|
| value | its fields |
| list | ``position`` (int, from 0), the fields of the element; one row for each element, in order |
| map | the fields of the map's key, the fields of the value; one row for each entry |
| ``TIMERS`` | ``mode`` ("processing" or "event"), ``timer`` (timestamp); one row for each timer |
| ``LETTERS`` | ``time`` (of the batch), ``batch``, ``number``; the columns of ``dead_letters.VERSIONS`` |

State variables have a last column ``expires_at``, a timestamp, null for what never expires. Expired items are returned
until their shard has removed them, because the time at which a query goes on from the checkpoint, which decides what
has expired, is not known. If an earlier column has the same name, a column gets the prefix ``map_key_``, ``value_`` or
``state_``. The ``rows`` of dead letters are as ``dead_letters.rows_of`` reads them.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final, Self, TypeVar

import attrs
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql.types import (
    DataType,
    IntegerType,
    LongType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)
from rocksdict import AccessType, Options, Rdict, ReadOptions

from ...storage.checkpoints.manifest import OperatorRecord, StateKind, StateRecord
from ..format import keyspace, parts
from ..format.arrow import BYTES
from ..format.keys import KeyCodec
from ..format.packing import Packing, expiries
from ..format.schema import arrow_schema, from_json, plain_strings, to_json
from ..format.values import StateName
from ..operators import dead_letters

Item = TypeVar("Item", bound=tuple[Any, ...])

TIMERS: Final = f"{keyspace.HIDDEN}timers"
"""The name for an operator's timers; no state can have it."""

ROWS: Final = 10_000
"""The most rows of a batch."""
_BYTES: Final = 8 << 20
"""The number of bytes of keys and values after which a batch ends."""
_LETTERS: Final = StateRecord(tuple(map(to_json, dead_letters.VERSIONS)))
"""What a manifest would say of dead letters."""
Column = tuple[str, str, DataType]
"""A prefix to use if the name is taken, the name, and the type."""
MODES: Final = {keyspace.PROCESSING_TIMERS: "processing", keyspace.EVENT_TIMERS: "event"}
"""The names of the timers' time modes, by the prefix of their keys."""
_LATEST: Final = (1 << 63) // 1000 - 1
"""The last millisecond that a timestamp can be."""


@attrs.frozen
class StoredState:
    """One state of an operator, or its timers, to read."""

    operator: str
    name: str
    key_schema: str
    """Schema of the key columns as Spark's JSON."""
    record: StateRecord | None
    """None: the operator's timers. Dead letters have one, though no manifest has it."""

    @classmethod
    def of(cls, operator: OperatorRecord, name: str) -> Self:
        """Return a state of an operator, its ``TIMERS`` or its ``LETTERS``."""
        record = _LETTERS if name == keyspace.LETTERS else operator.states.get(name)
        return cls(operator.uid, name, operator.key_schema, record)

    @property
    def schema(self) -> StructType:
        """Schema of the rows; every column is nullable."""
        expiry = [] if self._is_timed else [("state_", "expires_at", TimestampType())]
        return distinct([*self._identity, *self._value, *expiry])

    @property
    def key_columns(self) -> tuple[str, ...]:
        """The columns that say which item a row is about: of the key, the map's key or the position in a list."""
        return tuple(self.schema.names[: len(self._identity)])

    @property
    def value_columns(self) -> dict[str, str]:
        """The columns of the value, by the names of its fields."""
        fields = [name for _, name, _ in self._value]
        return dict(zip(fields, self.schema.names[len(self._identity) :], strict=False))

    @property
    def _identity(self) -> list[Column]:
        columns = _columns("", self.key_schema)
        if self.name == TIMERS:
            return [*columns, ("state_", "mode", StringType()), ("state_", "timer", TimestampType())]
        if self.name == keyspace.LETTERS:
            own = [("time", TimestampType()), ("batch", LongType()), ("number", IntegerType())]
            return [*columns, *(("state_", *column) for column in own)]
        if self._record.kind is StateKind.LIST:
            columns.append(("state_", "position", IntegerType()))
        return (
            columns if self._record.map_key is None else columns + _columns("map_key_", self._record.map_key)
        )

    @property
    def _value(self) -> list[Column]:
        if self.record is None:
            return []
        return _columns("state_" if self._is_timed else "value_", self.record.versions[-1])

    @property
    def _is_timed(self) -> bool:
        return self.name in (TIMERS, keyspace.LETTERS)

    def batches(self, directory: Path, key: bytes | None = None) -> Iterator[pa.RecordBatch]:
        """Yield the state in a shard.

        Args:
            directory: of its restored files, which stays unchanged.
            key: the key whose state is wanted; None: all keys.

        Raises:
            StateTypeError: the stored bytes do not fit the state's record.
        """
        with opened(directory) as db:
            yield from self._timers(db, key) if self.record is None else self._rows(db, key)

    def items_of(self, db: Rdict, key: bytes, data: bytes) -> Iterator[tuple[int | bytes, bytes]]:
        """Yield the packed items of a key, given what the shard has under the state's prefix and the key.

        With each item comes its place: 0 in a value state, its position in a list, its packed key in a map.
        Each dead letter has an entry of its own, see ``items``.

        Raises:
            StateTypeError: a part of a list is missing.
        """
        kind = self._record.kind
        if kind is StateKind.VALUE:
            yield 0, data
        elif kind is StateKind.LIST:
            yield from enumerate(self._elements(db, key, data))
        else:
            yield from self._entries(db, key, data)

    def _timers(self, db: Rdict, only: bytes | None) -> Iterator[pa.RecordBatch]:
        codec = KeyCodec(from_json(self.key_schema))
        for prefix, mode in MODES.items():
            # They are stored by time.
            found = (keyspace.split_timed(key) for key, _ in scan(db, prefix))
            for piece in pieces(one for one in found if only is None or one[1] == only):
                times, keys = zip(*piece, strict=True)
                columns = codec.decode_columns(pa.array(keys, BYTES)).columns
                yield self._batch([*columns, pa.array([mode] * len(times)), timestamps(pa.array(times))])

    def _rows(self, db: Rdict, only: bytes | None) -> Iterator[pa.RecordBatch]:
        for piece in pieces(self.items(db, only)):
            yield self.rows(*zip(*piece, strict=True))

    def rows(
        self,
        keys: Sequence[bytes],
        places: Sequence[int | bytes],
        values: Sequence[bytes | None],
    ) -> pa.RecordBatch:
        """Return items as rows.

        Args:
            keys: their keys.
            places: their places, as ``items_of`` says.
            values: their packed values; the columns of the value are null where there is none.

        Raises:
            StateTypeError: the stored bytes do not fit the state's record.
        """
        columns = list(KeyCodec(from_json(self.key_schema)).decode_columns(pa.array(keys, BYTES)).columns)
        columns += self._places(places)
        packed = pa.array(values, BYTES)
        expiry = [] if self._is_timed else [timestamps(expiries(packed))]
        return self._batch([*columns, *self.unpack(packed).flatten(), *expiry])

    def _places(self, places: Sequence[int | bytes]) -> list[pa.Array]:
        record = self._record
        if self.name == keyspace.LETTERS:
            found = [keyspace.split_letter(place) for place in places if isinstance(place, bytes)]
            times, batches, numbers, _ = zip(*found, strict=True)
            return [timestamps(pa.array(times)), pa.array(batches), pa.array(numbers, pa.int32())]
        if record.map_key is not None:
            map_keys = Packing([from_json(record.map_key)], self._name)
            unpacked: list[pa.Array] = map_keys.unpack(pa.array(places, BYTES)).flatten()
            return unpacked
        return [pa.array(places, pa.int32())] if record.kind is StateKind.LIST else []

    def unpack(self, packed: pa.Array) -> pa.StructArray:
        """Return packed values, which may be null, as the newest schema has them."""
        return Packing([from_json(version) for version in self._record.versions], self._name).unpack(packed)

    @property
    def _name(self) -> StateName:
        return StateName(self.operator, self.name)

    @property
    def _record(self) -> StateRecord:
        assert self.record is not None, "timers have no items"
        return self.record

    def items(self, db: Rdict, only: bytes | None = None) -> Iterator[tuple[bytes, int | bytes, bytes]]:
        """Yield for each item its key, its place as ``items_of`` says, and its packed value.

        The place of a dead letter is what its entry's key has before the key: its time, its batch and its number.

        Args:
            db: the shard.
            only: the key whose items are wanted; None: all keys.
        """
        if self.name == keyspace.LETTERS:
            for where, data in scan(db, keyspace.DEAD_LETTERS):
                _, key = keyspace.owner_of(where)
                if only in (None, key):
                    yield key, where[: len(where) - len(key)], data
            return
        prefix = keyspace.value_prefix(self.name)
        for where, data in scan(db, prefix) if only is None else entry(db, prefix + only):
            key = where[len(prefix) :]
            for place, item in self.items_of(db, key, data):
                yield key, place, item

    def _elements(self, db: Rdict, key: bytes, data: bytes) -> Iterator[bytes]:
        header = parts.ListHeader.decode(data)
        for number in range(header.first, header.stop):
            part = self._part(db, number, key)
            if part is None:
                whose = KeyCodec(from_json(self.key_schema)).decode(key)
                expected = f"part {number} of the list of key {whose}, which its header names"
                raise StateName(self.operator, self.name).error("", expected, "none")
            yield from parts.split(part)
        yield from parts.split(header.tail)

    def _entries(self, db: Rdict, key: bytes, data: bytes) -> Iterator[tuple[bytes, bytes]]:
        header = parts.MapHeader.decode(data)
        pieces = (
            # A map's part without entries is not stored; a list's part always has elements.
            (self._part(db, number, key) or b"" for number in range(1 << header.level))
            if header.level
            else [header.inline]
        )
        for piece in pieces:
            items = parts.split(piece)
            yield from zip(items[::2], items[1::2], strict=True)

    def _part(self, db: Rdict, number: int, key: bytes) -> bytes | None:
        where = keyspace.part_key(keyspace.part_prefix(self.name), number, key)
        return next((data for _, data in entry(db, where)), None)

    def _batch(self, columns: list[pa.Array | pa.ChunkedArray]) -> pa.RecordBatch:
        schema = arrow_schema(self.schema)
        arrays = [
            column.combine_chunks() if isinstance(column, pa.ChunkedArray) else column for column in columns
        ]
        return pa.RecordBatch.from_arrays(arrays, schema=schema)


def _columns(prefix: str, schema: str) -> list[Column]:
    return [(prefix, field.name, field.dataType) for field in from_json(schema).fields]


def distinct(columns: list[Column]) -> StructType:
    """Return a schema without duplicate names."""
    fields: list[StructField] = []
    taken: set[str] = set()
    for prefix, name, dtype in columns:
        while prefix and name.lower() in taken:
            name = prefix + name
        taken.add(name.lower())
        fields.append(StructField(name, plain_strings(dtype)))
    return StructType(fields)


def timestamps(milliseconds: pa.Array) -> pa.Array:
    """Return times in milliseconds since 1970 as timestamps; those beyond all timestamps are capped."""
    least = pc.min_element_wise(milliseconds, _LATEST, skip_nulls=False)
    capped = pc.max_element_wise(least, -_LATEST, skip_nulls=False)
    return capped.cast(pa.timestamp("ms", "UTC")).cast(pa.timestamp("us", "UTC"))


def pieces(items: Iterable[Item]) -> Iterator[list[Item]]:
    """Yield the items in lists for one batch each."""
    piece: list[Item] = []
    size = 0
    for item in items:
        piece.append(item)
        size += sum(len(part) for part in item if isinstance(part, bytes))
        if len(piece) == ROWS or size >= _BYTES:
            yield piece
            piece, size = [], 0
    if piece:
        yield piece


def scan(db: Rdict, prefix: bytes) -> Iterator[tuple[bytes, bytes]]:
    """Yield the keys that begin with ``prefix`` and their values, in the order of the keys."""
    options = ReadOptions()
    options.set_iterate_upper_bound(keyspace.after(prefix))
    entries = db.iter(options)
    entries.seek(prefix)
    while entries.valid():
        # In raw mode both are bytes, whatever the stub says.
        yield entries.key(), entries.value()
        entries.next()
    # The iterator also ends at a key that it cannot read; this call raises an error then.
    entries.status()


def entry(db: Rdict, where: bytes) -> Iterator[tuple[bytes, bytes]]:
    """Yield a key and its value, if it is there."""
    data = db.get(where)
    # In raw mode it is bytes, whatever the stub says.
    if isinstance(data, bytes):
        yield where, data


@contextmanager
def opened(directory: Path) -> Iterator[Rdict]:
    """Open a database for reading only."""
    options = Options(raw_mode=True)
    db = Rdict(
        str(directory), options, column_families={"default": options}, access_type=AccessType.read_only()
    )
    try:
        yield db
    finally:
        db.close()
