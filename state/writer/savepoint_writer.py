"""Writes a savepoint whose state comes from DataFrames: for a new pipeline, or with changes to an existing one."""

from __future__ import annotations

import platform
import time
import uuid
from collections.abc import Iterable, Mapping
from importlib import metadata
from typing import Final, Literal, TypeVar

import attrs
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 (its usual name)
from pyspark.sql.types import DataType, LongType, StructField, StructType, TimestampType

from ...storage.backends.open import open_store
from ...storage.checkpoints.layout import is_file
from ...storage.checkpoints.locate import LATEST, Located, locate
from ...storage.checkpoints.manifest import (
    CheckpointKind,
    Handle,
    Manifest,
    OperatorRecord,
    StateKind,
    StateRecord,
)
from ...storage.checkpoints.proof import Unshared
from ...storage.checkpoints.savepoint import claim_savepoint, commit_savepoint, discard_savepoint
from ...storage.checkpoints.snapshots import StoredSnapshot
from ...storage.codec import from_json as from_canonical_json
from ...storage.ids import NO_BATCH, BatchId, CheckpointId
from ...storage.keys import validate_name
from ...storage.store import Store
from ..aggregation.windowing import has_ends
from ..aggregation.windows import closing
from ..errors import DefinitionError, NoSuchStateError, invalid_argument
from ..format import keyspace
from ..format.evolution import widens
from ..format.keys import KeyCodec
from ..format.packing import Packing
from ..format.rows import check_columns
from ..format.schema import Schemas, bare, from_json, plain_strings, to_json
from ..format.values import StateName
from ..operators import shard_ranges
from ..operators.dataframe import quoted
from ..operators.partitioning import default_tasks
from ..reader.stored import TIMERS, StoredState
from . import entries
from .copied_state import Carried, carry
from .encoding import Encoder
from .shard_files import RESULT, ShardFiles, WrittenState

Mode = Literal["overwrite", "merge"]
Kind = Literal["value", "list", "map"]
T = TypeVar("T")

EXPIRES_AT: Final = "expires_at"
_FIRST: Final = CheckpointId(1)
"""Id of a savepoint that comes from no checkpoint, and its generation."""


@attrs.frozen
class _Written:
    """The rows of one state, as they were given."""

    name: str
    record: StateRecord | None
    """None: timers."""
    rows: DataFrame
    mode: Mode
    null_keys: bool


@attrs.define
class _Operator:
    """An operator as the savepoint is to have it."""

    record: OperatorRecord
    written: dict[str, _Written] = attrs.field(factory=dict)
    removed: set[str] = attrs.field(factory=set)

    @property
    def changes(self) -> bool:
        return bool(self.written or self.removed)


class SavepointWriter:
    """Writes a savepoint from DataFrames, without a running pipeline.

    ``new`` begins a savepoint for a pipeline that has never run, ``from_existing`` one that has all of another
    checkpoint but what is changed. Nothing is computed or written before ``write``, and the checkpoint that it begins
    from is only read. A pipeline starts from the savepoint by ``restore=`` its URI.

    The columns of a state's DataFrame are those that ``read_state`` returns, in any order. ``expires_at`` may be
    missing: then nothing expires.
    """

    def __init__(self, spark: SparkSession, pipeline: str, base: Located | None) -> None:
        """Use ``new`` or ``from_existing``."""
        self._spark = spark
        self._pipeline = pipeline
        self._base = base
        self._schemas = Schemas()
        operators = base.manifest.operators if base else ()
        self._operators = {record.uid: _Operator(record) for record in operators}

    @classmethod
    def new(cls, spark: SparkSession, pipeline: str) -> SavepointWriter:
        """Begin a savepoint for a pipeline that has never run; its sources are read from their own start.

        Raises:
            InvalidNameError: no pipeline can have this name.
        """
        return cls(spark, validate_name("pipeline", pipeline), None)

    @classmethod
    def from_existing(cls, spark: SparkSession, uri: str, checkpoint: str | int = LATEST) -> SavepointWriter:
        """Begin a savepoint with all that a checkpoint has: offsets, state, output that is still to be published.

        Args:
            spark: the session.
            uri, checkpoint: as for ``read_state``.

        Raises:
            NothingHereError: there is no such checkpoint.
            DamagedError, SchemaTooNewError: its manifest cannot be read.
            InvalidPlaceError: the URI names no store.
        """
        base = locate(uri, checkpoint)
        return cls(spark, base.manifest.pipeline, base)

    # --- what it is to have ---------------------------------------------------------------------------------

    def with_operator(
        self, uid: str, *, query: str, key: str | StructType, shards: int = 16
    ) -> SavepointWriter:
        """Add an operator without state.

        Args:
            uid: the uid that the program gives the operator.
            query: name of the query that it is part of.
            key: schema of its key columns, in their order.
            shards: as in the program.

        Raises:
            DefinitionError: the operator is there already, rows cannot be grouped by the key, or an argument is wrong.
            InvalidNameError: no operator or query can have this name.
        """
        validate_name("operator uid", uid)
        validate_name("query name", query)
        if uid in self._operators:
            advice = "remove it first by remove_operator, or give the new one another uid"
            raise invalid_argument("uid", "the uid of no operator that is there", repr(uid), advice)
        shard_ranges.check(shards, parallelism=1)
        schema = closing(self._schemas.resolve(key, f"the key of operator {uid!r}"))
        KeyCodec(schema)
        record = OperatorRecord(uid, query, to_json(schema), {}, (None,) * shards)
        self._operators[uid] = _Operator(record)
        return self

    def with_state(
        self,
        uid: str,
        state: str,
        rows: DataFrame,
        *,
        kind: Kind | None = None,
        schema: str | StructType | None = None,
        map_key: str | StructType | None = None,
        mode: Mode = "overwrite",
        null_keys: bool = False,
    ) -> SavepointWriter:
        """Write a state of an operator, or its timers.

        Args:
            uid: the operator's.
            state: name of the state; "$timers": the operator's timers.
            rows: a row for each value, element of a list, entry of a map, or timer.
            kind: of a new state; "value" if it is not given.
            schema: schema of a new state's values; if it is not given, all columns that have no other meaning.
            map_key: schema of the keys of a new map state.
            mode: "overwrite": the state has these keys and no others. "merge": keys without rows stay as they are.
                In both cases a key has what its rows say, and nothing from before.
            null_keys: whether a column of a key may be null. For the operator null is a key like any other, but in a
                table it is often a mistake.

        Raises:
            NoSuchStateError: there is no such operator.
            DefinitionError: a column is missing, too much, or of a type that does not fit; or an argument is wrong.
        """
        operator = self._operator(uid)
        if state in operator.written:
            raise invalid_argument("state", "each state once", f"{state!r} of operator {uid!r} a second time")
        if mode not in ("overwrite", "merge"):
            raise invalid_argument("mode", "'overwrite' or 'merge'", repr(mode))
        if not isinstance(rows, DataFrame) or rows.isStreaming:
            found = "a streaming one" if isinstance(rows, DataFrame) else repr(type(rows).__name__)
            raise invalid_argument("rows", "a DataFrame that is not streaming", found)
        check_columns(rows.schema, f"the rows of state {state!r}")
        new = {"kind": kind, "schema": schema, "map_key": map_key}
        record = None if state == TIMERS else operator.record.states.get(state)
        if state == TIMERS or record is not None:
            _check_not_given(f"state {state!r} of operator {uid!r}", new)
        else:
            record = self._new_state(operator.record, state, rows, kind or "value", schema, map_key)
        _check_rows(StoredState(uid, state, operator.record.key_schema, record), rows)
        if state in operator.removed or state in operator.record.deleting:
            # What was there before is of another schema, perhaps, or was to be deleted.
            operator.removed.discard(state)
            mode = "overwrite"
        operator.written[state] = _Written(state, record, rows, mode, null_keys)
        if record is not None:
            operator.record = attrs.evolve(
                operator.record,
                states=operator.record.states | {state: record},
                deleting=_without(operator.record.deleting, state),
            )
        return self

    def remove_state(self, uid: str, state: str) -> SavepointWriter:
        """Remove a state of an operator, or its timers ("$timers").

        Raises:
            NoSuchStateError: there is no such operator or state.
        """
        operator = self._operator(uid)
        states = operator.record.states
        if state not in (*states, TIMERS):
            raise _no_such(f"state of operator {uid!r}", state, (*states, TIMERS))
        operator.written.pop(state, None)
        operator.removed.add(state)
        operator.record = attrs.evolve(
            operator.record,
            states=_without(states, state),
            deleting=_without(operator.record.deleting, state),
        )
        return self

    def remove_operator(self, uid: str) -> SavepointWriter:
        """Remove an operator with all its state. The program's operator of this uid then begins empty.

        Raises:
            NoSuchStateError: there is no such operator.
        """
        self._operator(uid)
        del self._operators[uid]
        return self

    # --- writing --------------------------------------------------------------------------------------------

    def write(self, path: str) -> str:
        """Write the savepoint and return its URI, for ``restore=``. It is there as a whole or not at all.

        Args:
            path: a new or empty folder, as a URI or an absolute path, which Spark's executors can write to.

        Raises:
            InvalidPlaceError: the folder is not empty, or the path names no store.
            StateTypeError: a row cannot be written: a null in a key, two rows of one key, a value that does not fit.
            DamagedError, ObjectMissingError: a file of the checkpoint that it begins from cannot be read.
        """
        begun = time.time()
        store = open_store(path)
        owner = f"a savepoint writer of pipeline {self._pipeline}, {uuid.uuid4().hex}"
        claim_savepoint(store, owner)
        try:
            commit_savepoint(store, self._write(store, begun))
        except BaseException:
            discard_savepoint(store, owner, Unshared())
            raise
        return store.uri

    def _write(self, store: Store, begun: float) -> Manifest:
        """Write all files and return the manifest."""
        written = {uid: self._write_shards(one, store) for uid, one in self._operators.items() if one.changes}
        stay = {
            (uid, number): handle
            for uid, one in self._operators.items()
            for number, handle in enumerate(one.record.shards)
            if handle is not None and number not in written.get(uid, {})
        }
        base = self._base.manifest if self._base else None
        carried = carry(self._base, store, stay) if self._base else Carried((), {}, 0)
        new_bytes = sum(one.new_bytes for shards in written.values() for one in shards.values())
        manifest = Manifest(
            id=base.id if base else _FIRST,
            kind=CheckpointKind.SAVEPOINT,
            pipeline=self._pipeline,
            generation=base.generation if base else _FIRST,
            triggered_at=begun,
            completed_at=time.time(),
            queries=carried.queries,
            operators=tuple(
                _with_shards(one.record, written.get(uid, {}), carried.shards)
                for uid, one in self._operators.items()
            ),
            new_bytes=new_bytes + carried.new_bytes,
            versions=_versions(),
            unverified=base.unverified if base else False,
        )
        # Attempts at tasks that Spark has given up have left files.
        needed = manifest.keys()
        store.delete_all([key for key in store.list() if is_file(key) and key not in needed])
        return manifest

    def _write_shards(self, operator: _Operator, store: Store) -> dict[int, StoredSnapshot]:
        """Write the shards of an operator that change."""
        record = operator.record
        states = [
            WrittenState(
                one.name,
                kind=one.record.kind if one.record else None,
                ttl_ms=one.record.ttl_ms if one.record else None,
                has_ends=one.record is not None and has_ends(record.key_schema, one.name, one.record),
                keeps_other_keys=one.mode == "merge",
            )
            for one in operator.written.values()
        ]
        # Without a kind, a name is that of timers.
        states += [
            WrittenState(name, None if name == TIMERS else StateKind.VALUE)
            for name in sorted(operator.removed)
        ]
        shards = len(record.shards)
        files = ShardFiles(
            operator=record.uid,
            key_schema=record.key_schema,
            states=tuple(states),
            shards=record.shards,
            source=self._base.store.uri if self._base else "",
            target=store.uri,
            checkpoint=self._base.manifest.id if self._base else _FIRST,
            batch=self._batch(record.query),
        )
        items = self._spark.range(shards).select(
            F.col("id").cast("int").alias("shard"),
            F.lit(entries.MARK).alias("state"),
            *(F.lit(b"").alias(name) for name in ("key", "item", "value")),
        )
        for number, one in enumerate(operator.written.values()):
            items = items.unionAll(_items(number, record, one))
        tasks = default_tasks(self._spark, shards)
        partition = F.expr(shard_ranges.partition_expression("shard", shards, tasks))
        sorted_items = items.repartitionById(tasks, partition).sortWithinPartitions(*entries.SCHEMA.names[:4])
        found: dict[int, StoredSnapshot] = {}
        for row in sorted_items.mapInArrow(files, RESULT).collect():
            if row.problem is not None:
                raise entries.raised(row.problem)
            found[row.shard] = from_canonical_json(StoredSnapshot, row.stored.encode())
        return found

    def _batch(self, query: str) -> BatchId:
        queries = self._base.manifest.queries if self._base else ()
        return next((one.batch for one in queries if one.name == query), NO_BATCH)

    # --- checks ---------------------------------------------------------------------------------------------

    def _operator(self, uid: str) -> _Operator:
        if uid not in self._operators:
            raise _no_such("operator", uid, self._operators)
        return self._operators[uid]

    def _new_state(
        self,
        operator: OperatorRecord,
        state: str,
        rows: DataFrame,
        kind: str,
        schema: str | StructType | None,
        map_key: str | StructType | None,
    ) -> StateRecord:
        """Return the record of a state that the operator does not have yet."""
        what = f"state {state!r} of operator {operator.uid!r}"
        if not state or state.startswith(keyspace.HIDDEN):
            expected = f"a name that is not empty and does not begin with {keyspace.HIDDEN!r}, or {TIMERS!r}"
            raise invalid_argument("state", expected, repr(state))
        if kind not in tuple(StateKind):
            raise invalid_argument("kind", "'value', 'list' or 'map'", repr(kind))
        if (kind == StateKind.MAP) != (map_key is not None):
            raise invalid_argument(
                "map_key", "the keys' schema for a map, and none for others", repr(map_key)
            )
        keys = None if map_key is None else self._schemas.resolve(map_key, f"the map keys of {what}")
        if schema is None:
            taken = {*from_json(operator.key_schema).names, *(keys.names if keys else ()), EXPIRES_AT}
            taken |= {"position"} if kind == StateKind.LIST else set()
            own = [field for field in rows.schema.fields if field.name not in taken]
            schema = StructType([StructField(field.name, field.dataType) for field in own])
        resolved = self._schemas.resolve(schema, what)
        name = StateName(operator.uid, state)
        for one in filter(None, (resolved, keys)):
            Packing([one], name)
        return StateRecord(
            versions=(to_json(resolved),),
            kind=StateKind(kind),
            map_key=None if keys is None else to_json(keys),
        )


# --- rows ---------------------------------------------------------------------------------------------------


def _check_rows(state: StoredState, rows: DataFrame) -> None:
    """Refuse rows whose columns are not those of a state.

    Raises:
        DefinitionError: names the column.
    """
    what = f"the rows of state {state.name!r} of operator {state.operator!r}"
    expected = _columns(state)
    optional = expected.names[-1] if state.record is not None else None
    twice = sorted({name for name in rows.columns if rows.columns.count(name) > 1})
    unknown = [name for name in rows.columns if name not in expected.names]
    if unknown or twice:
        found = f"{unknown[0]!r}" if unknown else f"{twice[0]!r} twice"
        raise DefinitionError(
            f"{what} have a column that does not belong to it",
            f"the columns {', '.join(expected.names)}",
            found,
            "drop or rename it",
        )
    keys = set(from_json(state.key_schema).names)
    for field in expected.fields:
        if field.name not in rows.columns:
            if field.name == optional:
                continue
            raise DefinitionError(
                f"{what} lack a column",
                f"{field.name!r} of type {field.dataType.simpleString()}",
                f"the columns {', '.join(rows.columns)}",
            )
        found_type = rows.schema[field.name].dataType
        if not _fits(found_type, field.dataType, is_key=field.name in keys):
            raise DefinitionError(
                f"column {field.name!r} of {what} has a type that does not fit",
                field.dataType.simpleString(),
                found_type.simpleString(),
                "cast the column",
            )


def _columns(state: StoredState) -> StructType:
    """Return the columns that the rows of a state have; positions in lists may be of any type of integers."""
    if state.record is None or state.record.kind is not StateKind.LIST:
        return state.schema
    at = len(from_json(state.key_schema).fields)
    fields = list(state.schema.fields)
    fields[at] = StructField(fields[at].name, LongType())
    return StructType(fields)


def _fits(found: DataType, expected: DataType, *, is_key: bool) -> bool:
    """Return whether values of a column's type can be cast to the expected one, each to the same value."""
    one, other = bare(plain_strings(found)), bare(plain_strings(expected))
    return one == other or (not is_key and widens(one, other))


def _items(number: int, operator: OperatorRecord, written: _Written) -> DataFrame:
    """Return the items of a state, with the columns of ``entries.SCHEMA``."""
    state = StoredState(operator.uid, written.name, operator.key_schema, written.record)
    rows = written.rows
    keys = [F.col(quoted(name)) for name in from_json(operator.key_schema).names]
    shard = F.pmod(F.xxhash64(*keys), F.lit(len(operator.shards))).cast("int")
    columns = [_column(rows, field) for field in _columns(state).fields]
    # By position: the names in a state may be those of key columns as well.
    named = [column.alias(f"c{at}") for at, column in enumerate((shard, *columns))]
    encoder = Encoder(
        number, operator.uid, written.name, operator.key_schema, written.record, written.null_keys
    )
    return rows.select(*named).mapInArrow(encoder, entries.SCHEMA)


def _column(rows: DataFrame, field: StructField) -> Column:
    if field.name not in rows.columns:
        # Only the expiry may be missing.
        return F.lit(None).cast(TimestampType())
    column = F.col(quoted(field.name))
    same = bare(plain_strings(rows.schema[field.name].dataType)) == bare(field.dataType)
    return column if same else column.cast(field.dataType)


# --- the manifest -------------------------------------------------------------------------------------------


def _without(named: Mapping[str, T], name: str) -> dict[str, T]:
    return {one: item for one, item in named.items() if one != name}


def _with_shards(
    operator: OperatorRecord,
    written: Mapping[int, StoredSnapshot],
    carried: Mapping[tuple[str, int], StoredSnapshot],
) -> OperatorRecord:
    stored = [
        written.get(number) or carried.get((operator.uid, number)) for number in range(len(operator.shards))
    ]
    handles: list[Handle | None] = [one.handle if one else None for one in stored]
    return attrs.evolve(operator, shards=tuple(handles))


def _versions() -> dict[str, str]:
    found = {name: metadata.version(name) for name in ("chandy", "pyspark", "rocksdict")}
    return {"python": platform.python_version(), **found}


# --- errors -------------------------------------------------------------------------------------------------


def _no_such(what: str, wanted: str, there: Iterable[str]) -> NoSuchStateError:
    names = ", ".join(map(repr, there))
    return NoSuchStateError(
        f"there is no {what} of this name in the savepoint that is to be written",
        f"one of {names}" if names else "one that was added before",
        repr(wanted),
    )


def _check_not_given(what: str, arguments: Mapping[str, object]) -> None:
    given = [name for name, value in arguments.items() if value is not None]
    if given:
        expected = f"no such argument, because the savepoint has {what} already"
        raise invalid_argument(given[0], expected, repr(arguments[given[0]]))
