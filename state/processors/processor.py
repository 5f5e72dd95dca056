"""Runs a PySpark StatefulProcessor, of rows or of DataFrames: its definition on the driver, its turns in a task."""

from __future__ import annotations

import contextlib
import traceback
import uuid
from collections.abc import Callable, Collection, Iterator, Sequence
from typing import Any

import attrs
import numpy as np
import numpy.typing as npt
import pyarrow as pa
from pyspark import cloudpickle
from pyspark.sql.streaming.stateful_processor import ExpiredTimerInfo, StatefulProcessor, TimerValues
from pyspark.sql.types import IntegerType, StructField, StructType

from ...storage.manifest import StateKind, StateRecord
from ..errors import DeclarationError, DefinitionError, OutputTypeError, ProcessorError
from ..format import keyspace
from ..format.arrow import BYTES
from ..format.keys import KeyCodec
from ..format.rows import check_columns
from ..format.schema import Schemas, arrow_schema, from_json, to_json
from ..operators import pickling
from ..operators.dataframe import SHARD
from ..operators.engine import CHUNK, Chunk, Run, TaskState, collect, side_by_side, with_prefix
from ..operators.grouping import group
from ..operators.time_mode import EventTime, TimeMode
from ..rpc.access import Entries, ShardColumn
from . import expiry
from .handle import QueryInfo, StateHandle, declarations
from .initial_state import InitialState
from .row_style import RowStyle
from .style import PandasSettings, Style, StyleName
from .variable import CurrentKey, Variable


@attrs.frozen
class ProcessorSpec:
    """An operator that runs a ``StatefulProcessor``."""

    uid: str
    key: tuple[str, ...]
    input: str
    """Schema of the rows as Spark's JSON, without the shard column."""
    output: str
    states: dict[str, StateRecord]
    dropped: tuple[str, ...]
    """States of an earlier version of the processor that are to be deleted."""
    ddl: dict[str, str]
    """What the processor's DDL texts mean, as Spark's JSON by text: a task has no parser."""
    processor: bytes
    """The StatefulProcessor, by cloudpickle; every task unpickles its own."""
    style: StyleName
    mode: TimeMode
    event_time: EventTime | None
    """In event time, the column that says which rows are late; None if there is none."""
    settings: PandasSettings
    initial: InitialState | None = None

    @contextlib.contextmanager
    def open(self, run: Run) -> Iterator[ProcessorOperator]:
        """Make the processor for one task and ``init`` it; on leaving it is closed, whatever has happened.

        Raises:
            ProcessorError: ``init`` raised.
            DeclarationError: it declared other states than on the driver.
        """
        info = QueryInfo(_uuid(run.query_id), _uuid(run.run_id), run.batch)
        handle = StateHandle(
            self.uid, Schemas(parse=None, known=dict(self.ddl)), self.mode, self.states, info
        )
        operator = ProcessorOperator(self, run, cloudpickle.loads(self.processor), handle, self._style())
        try:
            operator.init()
            yield operator
        finally:
            operator.end()

    def _style(self) -> Style:
        output = from_json(self.output)
        if self.style is StyleName.PANDAS:
            # Whoever has no such processor does not wait for pandas.
            from .pandas_style import PandasStyle

            return PandasStyle(output, self.uid, self.settings)
        return RowStyle(output, self.uid)


def processor_spec(
    schema: StructType,
    *,
    uid: str,
    key: Sequence[str],
    processor: StatefulProcessor,
    output: StructType | str,
    style: StyleName = StyleName.ROWS,
    mode: TimeMode = TimeMode.NONE,
    settings: PandasSettings | None = None,
    restored: Collection[str] = (),
) -> ProcessorSpec:
    """Describe an operator that runs ``processor`` over rows of a schema. On the driver.

    Args:
        schema: of the rows.
        uid: the operator's uid.
        key: names of the key columns.
        processor: has its ``init`` and ``close`` called, in a copy.
        output: schema of what it gives.
        style: whether it is one of rows or of DataFrames.
        mode: its time mode.
        settings: of the session, for DataFrames.
        restored: names of the states that the restored checkpoint has of the operator.

    Raises:
        DefinitionError: ``processor`` is none, or cannot be pickled.
        SchemaError: the schema of the output or of a state cannot be used.
        DeclarationError, UnsupportedStateError: it declares states that cannot be had.
    """
    resolved = Schemas().resolve(output, f"the output of operator {uid!r}")
    check_columns(resolved, f"the output of operator {uid!r}")
    pickled, schemas = _pickled(processor), Schemas()
    declared = declarations(cloudpickle.loads(pickled), uid, schemas, mode)
    return ProcessorSpec(
        uid=uid,
        key=tuple(key),
        input=to_json(schema),
        output=to_json(resolved),
        states=declared.states,
        dropped=tuple(name for name in declared.dropped if name in restored),
        ddl=dict(schemas.known),
        processor=pickled,
        style=style,
        mode=mode,
        event_time=EventTime.of(schema) if mode is TimeMode.EVENT else None,
        settings=settings or PandasSettings(),
    )


def _pickled(processor: object) -> bytes:
    if not isinstance(processor, StatefulProcessor):
        found = f"the class {processor.__name__}" if isinstance(processor, type) else type(processor).__name__
        raise DefinitionError("processor", "an instance of pyspark.sql.streaming.StatefulProcessor", found)
    return pickling.pickled(processor)


def _uuid(text: str) -> uuid.UUID:
    try:
        return uuid.UUID(text)
    except ValueError:
        return uuid.UUID(int=0)


# --- in a task ----------------------------------------------------------------------------------------------


@attrs.define(eq=False)
class _Changed:
    """What a chunk's keys changed of one variable, by position of the key."""

    variable: Variable
    held: list[bytes | None] = attrs.field(factory=list)
    at: list[int] = attrs.field(factory=list)
    values: list[bytes | None] = attrs.field(factory=list)


class Turns:
    """The states of an operator, turned from key to key over one chunk of keys after the other."""

    def __init__(self, handle: StateHandle) -> None:
        self._current: CurrentKey = handle.current
        self._timers = handle.timers
        self._columns = [_Changed(variable) for variable in handle.variables.values()]
        self._entering = [(column.variable, column) for column in self._columns]
        self._shards: ShardColumn = np.empty(0, np.int32)
        self._keys = pa.array([], BYTES)

    def chunk(self, shards: ShardColumn, keys: pa.Array, held: Sequence[pa.Array]) -> None:
        """Turn to other keys, with what the shards hold of each for every variable."""
        self._shards, self._keys = shards, keys
        self._current.chunk(shards, keys)
        self._timers.chunk()
        for column, values in zip(self._columns, held, strict=True):
            column.held, column.at, column.values = values.to_pylist(), [], []

    def enter(self, index: int) -> None:
        """Turn to a key of the chunk."""
        self._current.index = index
        for variable, column in self._entering:
            variable.enter(column.held[index])

    def leave(self) -> None:
        """Turn away from the key; take note of what has changed."""
        index = self._current.index
        self._timers.leave()
        for variable, column in self._entering:
            held, data = column.held[index], variable.leave()
            if data is not held and data != held:
                column.at.append(index)
                column.values.append(data)
                column.held[index] = data
                if variable.ttl_ms is not None:
                    self._note_expiry(variable, held, data)
        self._current.index = -1

    def flush(self, state: TaskState) -> None:
        """Hand on what the chunk's keys have changed."""
        for column in self._columns:
            if column.at:
                at: npt.NDArray[np.int64] = np.array(column.at, np.int64)
                keys = with_prefix(column.variable.prefix, self._keys.take(pa.array(at)))
                state.put(side_by_side(self._shards[at], keys, pa.array(column.values, BYTES)))

    def _note_expiry(self, variable: Variable, held: bytes | None, data: bytes | None) -> None:
        time = expiry.noted(variable, held, data, self._current.now)
        if time is not None:
            name = variable.prefix + self._current.key
            self._current.put(keyspace.timed_key(keyspace.EXPIRY, time, name), b"")


class ProcessorOperator:
    """A ``StatefulProcessor`` in one task.

    The order of calls, as in Spark: ``init``; in an operator's first batch ``handleInitialState`` for every row
    of the initial state (Spark does this key by key, before the key's rows; here it is done for all keys first);
    ``handleInputRows`` once for each key that has rows; ``handleExpiredTimer`` for each timer that is due; ``close``.
    """

    def __init__(
        self, spec: ProcessorSpec, run: Run, processor: StatefulProcessor, handle: StateHandle, style: Style
    ) -> None:
        self._spec = spec
        self._run = run
        self._processor = processor
        self._handle = handle
        self._style = style
        self._writer = style.writer()
        self._input = from_json(spec.input)
        self._codec = KeyCodec(StructType([self._input[name] for name in spec.key]))
        self._times = TimerValues(-1, -1)
        self._turns: Turns | None = None
        self._closed = False

    # --- its life -------------------------------------------------------------------------------------------

    def init(self) -> None:
        """Call the processor's ``init``.

        Raises:
            ProcessorError, DeclarationError: as ``ProcessorSpec.open`` says.
        """
        self._guarded("init", lambda: self._processor.init(self._handle))
        self._handle.seal()
        seen, now = _comparable(self._spec.states), _comparable(self._handle.declared)
        if seen != now:
            found = f"the driver saw states {sorted(seen)}, a task {sorted(now)}"
            raise DeclarationError("init", self._spec.uid, f"{found}; init has to declare the same each time")
        self._turns = Turns(self._handle)

    def end(self) -> None:
        """Call the processor's ``close``, if that has not been done. The first error is the one to tell, not this."""
        if not self._closed:
            with contextlib.suppress(Exception):
                self._processor.close()

    # --- the engine's calls ---------------------------------------------------------------------------------

    @property
    def prefixes(self) -> Sequence[bytes]:
        """Where the values of the declared states are."""
        return [variable.prefix for variable in self._handle.variables.values()]

    def prepare(self, batches: Iterator[pa.RecordBatch]) -> pa.Table:
        """Return the rows, in event time without the late ones."""
        with_shard = StructType([*self._input.fields, StructField(SHARD, IntegerType())])
        table = collect(batches, arrow_schema(with_shard, timezone=self._spec.settings.timezone))
        if self._spec.event_time is None:
            return table
        return self._spec.event_time.without_late(table, self._run.times.late_ms)

    def begin(self, state: TaskState) -> None:
        """Delete dropped states; in an operator's first batch, take up the initial state."""
        times = state.times
        self._handle.current.begin(state)
        self._handle.timers.begin(self._spec.mode.until(times))
        self._times = self._spec.mode.timer_values(times)
        for name in self._spec.dropped:
            for prefix in (keyspace.value_prefix(name), keyspace.part_prefix(name)):
                for entries in state.scan(prefix, keyspace.after(prefix)):
                    state.put(Entries(entries.shards, entries.keys, pa.nulls(len(entries), BYTES)))
        self._take_up(state)

    def process(self, chunk: Chunk, state: TaskState) -> Iterator[pa.RecordBatch]:
        """Call ``handleInputRows`` for each key of a chunk."""
        groups, turns = chunk.groups, self._open()
        turns.chunk(groups.shards, groups.keys, chunk.held)
        keys = self._style.keys(groups.key_columns)
        inputs = self._style.reader(self._input).groups(groups.rows, groups.bounds.tolist())
        handle, times = self._processor.handleInputRows, self._times
        for index, (key, rows) in enumerate(zip(keys, inputs, strict=True)):
            turns.enter(index)
            yield from self._outputs("handleInputRows", key, handle, key, rows, times)
            turns.leave()
        yield from self._rest()
        turns.flush(state)

    def finish(self, state: TaskState) -> Iterator[pa.RecordBatch]:
        """Call ``handleExpiredTimer`` for each timer that is due; then remove what has expired."""
        for shard, timers in self._handle.timers.due(state):
            for first in range(0, len(timers), CHUNK):
                yield from self._fire(shard, timers[first : first + CHUNK], state)
        yield from self._rest()
        # Also without any time to live now: there may have been one when the operator ran before.
        if self._spec.mode is TimeMode.PROCESSING:
            expiry.clean(state, self._handle.variables.values(), self._handle.current)
        self._closed = True
        self._guarded("close", self._processor.close)

    # --- inside ---------------------------------------------------------------------------------------------

    def _take_up(self, state: TaskState) -> None:
        initial = self._spec.initial
        fresh = [shard for shard in self._run.shards if shard in state.fresh]
        table = initial.read(fresh) if initial is not None and fresh else None
        if initial is None or table is None:
            return
        turns, handle = self._open(), self._processor.handleInitialState
        reader = self._style.reader(from_json(initial.schema))
        everything = group(table, self._codec, SHARD)
        for first in range(0, len(everything), CHUNK):
            groups = everything.slice(first, min(first + CHUNK, len(everything)))
            turns.chunk(groups.shards, groups.keys, [pa.nulls(len(groups), BYTES) for _ in self.prefixes])
            inputs = reader.groups(groups.rows, groups.bounds.tolist())
            for index, (key, parts) in enumerate(
                zip(self._style.keys(groups.key_columns), inputs, strict=True)
            ):
                turns.enter(index)
                try:
                    for part in parts:
                        handle(key, part, self._times)
                except Exception as error:  # noqa: BLE001 (a processor may raise anything)
                    raise self._failure(f"handleInitialState of key {key!r}", error) from None
                turns.leave()
            turns.flush(state)

    def _fire(
        self, shard: int, timers: Sequence[tuple[int, bytes]], state: TaskState
    ) -> Iterator[pa.RecordBatch]:
        """Call ``handleExpiredTimer`` for timers of one shard; a key may have several of them."""
        places: dict[bytes, int] = {}
        for _, data in timers:
            places.setdefault(data, len(places))
        keys = pa.array(list(places), BYTES)
        shards = np.full(len(places), shard, np.int32)
        turns, handle = self._open(), self._processor.handleExpiredTimer
        turns.chunk(
            shards, keys, [state.fetch(shards, with_prefix(prefix, keys)) for prefix in self.prefixes]
        )
        # As the rows had them: timestamps in the session's time zone.
        local = arrow_schema(self._codec.schema, timezone=self._spec.settings.timezone)
        values = self._style.timer_keys(self._codec.decode_columns(keys).cast(local))
        for time, data in timers:
            index = places[data]
            turns.enter(index)
            yield from self._outputs(
                "handleExpiredTimer",
                values[index],
                handle,
                key=values[index],
                timerValues=self._times,
                expiredTimerInfo=ExpiredTimerInfo(time),
            )
            self._handle.timers.delete(time)
            turns.leave()
        turns.flush(state)

    def _outputs(
        self, method: str, key: tuple[Any, ...], call: Callable[..., Any], /, *args: Any, **named: Any
    ) -> Iterator[pa.RecordBatch]:
        """Call a method for a key and take all that it gives; yield the batches that become full."""
        try:
            given = call(*args, **named)
            if given is None:
                raise TypeError(
                    f"{method} returned None; it has to return an iterator of {self._spec.style} output"
                )
            results = iter(given)
            while self._writer.pull(results):
                yield self._writer.batch()
        except OutputTypeError:
            raise
        except Exception as error:  # noqa: BLE001 (a processor may raise anything)
            where = f"key {tuple(key)!r}"
            raise self._failure(
                where if method == "handleInputRows" else f"{method} of {where}", error
            ) from None

    def _rest(self) -> Iterator[pa.RecordBatch]:
        if len(self._writer):
            yield self._writer.batch()

    def _open(self) -> Turns:
        assert self._turns is not None, "the engine calls nothing before init"
        return self._turns

    def _guarded(self, where: str, call: Callable[[], None]) -> None:
        try:
            call()
        except Exception as error:  # noqa: BLE001 (a processor may raise anything)
            raise self._failure(where, error) from None

    def _failure(self, where: str, error: Exception) -> ProcessorError:
        # The first frames are this module's; the user's begin below them.
        trace = error.__traceback__
        while (
            trace is not None and trace.tb_next is not None and trace.tb_frame.f_code.co_filename == __file__
        ):
            trace = trace.tb_next
        text = "".join(traceback.format_exception(type(error), error, trace))
        return ProcessorError(self._spec.uid, self._run.batch, where, text)


def _comparable(states: dict[str, StateRecord]) -> dict[str, tuple[str, StateKind, str | None, int | None]]:
    """What of the states must be the same on the driver and in every task."""
    return {
        name: (record.versions[-1], record.kind, record.map_key, record.ttl_ms)
        for name, record in states.items()
    }
