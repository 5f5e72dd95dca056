"""The operator that runs a PySpark StatefulProcessor: its definition on the driver, and its calls in a task."""

from __future__ import annotations

import contextlib
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any, Self

import attrs
import numpy as np
import numpy.typing as npt
import pyarrow as pa
from pyspark.sql.streaming.stateful_processor import ExpiredTimerInfo, StatefulProcessor, TimerValues
from pyspark.sql.types import IntegerType, StructField, StructType

from ...storage.checkpoints.manifest import OperatorRecord, StateKind, StateRecord
from ...storage.ids import BatchId
from ..errors import DefinitionError, OutputTypeError, ProcessorError, invalid_argument
from ..format import keyspace
from ..format.arrow import BYTES
from ..format.keys import KeyCodec
from ..format.rows import check_columns
from ..format.schema import Schemas, arrow_schema, from_json, to_json
from ..operators.attempts import Attempts
from ..operators.chunks import chunks, cuts
from ..operators.dataframe import SHARD
from ..operators.dead_letters import INITIAL_STATE, GivenUpKey
from ..operators.engine import Chunk, RuntimeContext, collect, with_prefix
from ..operators.grouping import Groups, group
from ..operators.pickling import Pickled
from ..operators.task_state import TaskState, sorted_by_shard
from ..operators.time_mode import EventTime, TimeMode, carry_watermark
from ..rpc.access import Entries, ShardColumn
from ..user_code import raised
from . import expiry
from .handle import QueryInfo, StateHandle, declarations
from .initial_state import InitialState
from .row_style import RowStyle
from .style import PandasSettings, Reader, Style, StyleName
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
    """Names of states of an earlier version of the processor, to be deleted if they are there."""
    ddl: dict[str, str]
    """The schemas of the processor's DDL texts, as Spark's JSON by text, because a task cannot parse DDL."""
    processor: Pickled[StatefulProcessor]
    """Every task loads its own."""
    style: StyleName
    mode: TimeMode
    event_time: EventTime | None
    """In event time, the column by which rows are late; None if there is none."""
    output_time: EventTime | None
    """The column of the output that has the event time for later operators; None if there is none."""
    settings: PandasSettings
    initial: InitialState | None = None
    deleting: Mapping[str, BatchId] = attrs.field(factory=dict)
    """The states whose values from before are deleted, as ``OperatorRecord.deleting`` has them."""

    def taking_up(self, record: OperatorRecord) -> Self:
        """Return the operator for states of earlier versions."""
        return attrs.evolve(self, states=record.states_of(self.states), deleting=record.deleting)

    @contextlib.contextmanager
    def open(self, context: RuntimeContext) -> Iterator[ProcessorOperator]:
        """Create the processor for one task and call ``init``; on leaving the context, ``close`` it in any case.

        Raises:
            ProcessorError: ``init`` raised an exception.
            DefinitionError: ``init`` declared other states than on the driver.
        """
        info = QueryInfo(_uuid(context.query_id), _uuid(context.run_id), context.batch)
        handle = StateHandle(
            self.uid, Schemas(parse=None, known=dict(self.ddl)), self.mode, self.states, info
        )
        operator = ProcessorOperator(self, context, self.processor.load(), handle, self._style())
        try:
            operator.init()
            yield operator
        finally:
            operator.end()

    def _style(self) -> Style:
        output = from_json(self.output)
        if self.style is StyleName.PANDAS:
            # Imported here, so that other processors do not wait for pandas.
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
    event_time_column: str | None = None,
    settings: PandasSettings | None = None,
) -> ProcessorSpec:
    """Describe an operator that runs ``processor`` over rows of a schema, on the driver.

    Args:
        schema: of the rows.
        uid: the operator's uid.
        key: names of the key columns.
        processor: a StatefulProcessor; ``init`` and ``close`` are called on a copy of it.
        output: schema of the output.
        style: whether the processor is written for rows or for DataFrames.
        mode: its time mode.
        event_time_column: the column of the output that has the event time for later operators.
        settings: of the session, for DataFrames.

    Raises:
        DefinitionError: ``processor`` is no StatefulProcessor, cannot be pickled, or declares states that cannot be
            used; or the schema of the output cannot be used, or not with ``event_time_column``.
    """
    resolved = Schemas().resolve(output, f"the output of operator {uid!r}")
    check_columns(resolved, f"the output of operator {uid!r}")
    if event_time_column is not None:
        resolved = carry_watermark(schema, resolved, event_time_column)
    pickled, schemas = _pickled(processor, uid), Schemas()
    declared = declarations(pickled.load(), uid, schemas, mode)
    return ProcessorSpec(
        uid=uid,
        key=tuple(key),
        input=to_json(schema),
        output=to_json(resolved),
        states=declared.states,
        dropped=declared.dropped,
        ddl=dict(schemas.known),
        processor=pickled,
        style=style,
        mode=mode,
        event_time=EventTime.of(schema) if mode is TimeMode.EVENT else None,
        output_time=None if event_time_column is None else EventTime(event_time_column, window=False),
        settings=settings or PandasSettings(),
    )


def _pickled(processor: object, uid: str) -> Pickled[StatefulProcessor]:
    if not isinstance(processor, StatefulProcessor):
        found = f"the class {processor.__name__}" if isinstance(processor, type) else type(processor).__name__
        raise invalid_argument("processor", "an instance of pyspark.sql.streaming.StatefulProcessor", found)
    return Pickled.of(processor, uid)


def _uuid(text: str) -> uuid.UUID:
    try:
        return uuid.UUID(text)
    except ValueError:
        return uuid.UUID(int=0)


# --- in a task ----------------------------------------------------------------------------------------------


@attrs.define(eq=False)
class _Changed:
    """The changes to one variable by the keys of a chunk, by position of the key."""

    variable: Variable
    held: list[bytes | None] = attrs.field(factory=list)
    """The newest value of each key."""
    at: dict[int, None] = attrs.field(factory=dict)
    """The keys whose value has changed, each once although it may be entered for each of its timers."""


class KeyedStates:
    """Moves all states of a processor from key to key of a chunk, and collects their changes."""

    def __init__(self, handle: StateHandle) -> None:
        self._current: CurrentKey = handle.current
        self._timers = handle.timers
        self._columns = [_Changed(variable) for variable in handle.variables.values()]
        self._entering = [(column.variable, column) for column in self._columns]
        self._shards: ShardColumn = np.empty(0, np.int32)
        self._keys = pa.array([], BYTES)

    def chunk(self, shards: ShardColumn, keys: pa.Array, held: Sequence[pa.Array]) -> None:
        """Begin another chunk of keys, with the stored value of each variable for each key."""
        self._shards, self._keys = shards, keys
        self._current.chunk(shards, keys)
        self._timers.chunk()
        for column, values in zip(self._columns, held, strict=True):
            column.held, column.at = values.to_pylist(), {}

    def enter(self, index: int) -> None:
        """Enter a key of the chunk."""
        self._current.index = index
        for variable, column in self._entering:
            variable.enter(column.held[index])

    def leave(self) -> None:
        """Leave the key and record the changes."""
        index = self._current.index
        for variable, column in self._entering:
            held, data = column.held[index], variable.leave()
            if data is not held and data != held:
                column.at[index] = None
                column.held[index] = data
                if variable.ttl_ms is not None:
                    self._index_expiry(variable, held, data)
        self._current.index = -1

    def flush(self, state: TaskState) -> None:
        """Put the changes of the chunk's keys."""
        for column in self._columns:
            if column.at:
                at: npt.NDArray[np.int64] = np.fromiter(column.at, np.int64, len(column.at))
                keys = with_prefix(column.variable.prefix, self._keys.take(pa.array(at)))
                values = pa.array([column.held[index] for index in column.at], BYTES)
                state.put(sorted_by_shard(self._shards[at], keys, values))
        self._timers.flush()

    def _index_expiry(self, variable: Variable, held: bytes | None, data: bytes | None) -> None:
        time = expiry.new_entry_time(variable, held, data, self._current.now)
        if time is not None:
            name = variable.prefix + self._current.key
            self._current.put(keyspace.timed_key(keyspace.EXPIRY, time, name), b"")


@attrs.frozen
class _DueTimers:
    """Timers of one shard that are due, in their order."""

    shard: int
    timers: Sequence[tuple[int, bytes]]
    """Each with its key."""


class ProcessorOperator:
    """A ``StatefulProcessor`` in one task.

    The order of calls is that of Spark:

    1. ``init``;
    2. in an operator's first batch, ``handleInitialState`` for every row of the initial state (Spark calls it for a key
       just before the key's rows, here it is called for all keys first);
    3. ``handleInputRows`` once for each key with rows;
    4. ``handleExpiredTimer`` for each timer that is due;
    5. ``close``.
    """

    def __init__(
        self,
        spec: ProcessorSpec,
        context: RuntimeContext,
        processor: StatefulProcessor,
        handle: StateHandle,
        style: Style,
    ) -> None:
        self._spec = spec
        self._context = context
        self._processor = processor
        self._handle = handle
        self._style = style
        self._writer = style.writer()
        self._input = from_json(spec.input)
        self._codec = KeyCodec(StructType([self._input[name] for name in spec.key]))
        self._times = TimerValues(-1, -1)
        self._states: KeyedStates | None = None
        self._closed = False
        self.late_rows = 0

    # --- its life -------------------------------------------------------------------------------------------

    def init(self) -> None:
        """Call the processor's ``init``.

        Raises:
            ProcessorError, DefinitionError: as ``ProcessorSpec.open`` says.
        """
        self._guarded("init", lambda: self._processor.init(self._handle))
        self._handle.seal()
        on_driver, here = _comparable(self._spec.states), _comparable(self._handle.declared)
        if on_driver != here:
            raise DefinitionError(
                f"init of operator {self._spec.uid!r} declares other states in a task than on the driver",
                f"states {sorted(on_driver)}",
                f"states {sorted(here)}",
                "let init declare the same states with the same schemas each time",
            )
        self._states = KeyedStates(self._handle)

    def end(self) -> None:
        """Call the processor's ``close`` unless it was called; ignore its errors, which would hide the first one."""
        if not self._closed:
            with contextlib.suppress(Exception):
                self._processor.close()

    # --- the engine's calls ---------------------------------------------------------------------------------

    @property
    def prefixes(self) -> Sequence[bytes]:
        """The prefixes of the declared states' values."""
        return [variable.prefix for variable in self._handle.variables.values()]

    def prepare(self, batches: Iterator[pa.RecordBatch]) -> pa.Table:
        """Return the rows, without late ones in event time."""
        with_shard = StructType([*self._input.fields, StructField(SHARD, IntegerType())])
        table = collect(batches, arrow_schema(with_shard, timezone=self._spec.settings.timezone))
        if self._spec.event_time is None:
            return table
        timely = self._spec.event_time.without_late(table, self._context.times.late_ms)
        self.late_rows = len(table) - len(timely)
        return timely

    def begin(self, state: TaskState, attempts: Attempts) -> None:
        """Delete states of earlier versions; in an operator's first batch, load the initial state."""
        times = self._context.times
        self._handle.current.begin(state, times.timestamp_ms)
        self._handle.timers.begin(self._spec.mode.until(times))
        self._times = self._spec.mode.timer_values(times)
        for name, batch in self._spec.deleting.items():
            # Declared again, it has values of its own from that batch on.
            if name in self._spec.states and batch != self._context.batch:
                continue
            for prefix in (keyspace.value_prefix(name), keyspace.part_prefix(name)):
                for entries in state.scan(prefix, keyspace.after(prefix)):
                    state.put(Entries(entries.shards, entries.keys, pa.nulls(len(entries), BYTES)))
        self._load_initial_state(state, attempts)

    def process(self, chunk: Chunk, state: TaskState) -> Iterator[pa.RecordBatch]:
        """Call ``handleInputRows`` for each key of a chunk."""
        groups, states = chunk.groups, self._opened_states()
        # A failed attempt may have left rows in it.
        self._writer = self._style.writer()
        states.chunk(groups.shards, groups.keys, chunk.held)
        keys = self._style.keys(groups.key_columns)
        inputs = self._style.reader(self._input).groups(groups.rows, groups.bounds.tolist())
        handle, times = self._processor.handleInputRows, self._times
        for index, (key, rows) in enumerate(zip(keys, inputs, strict=True)):
            states.enter(index)
            yield from self._outputs("handleInputRows", key, handle, key, rows, times)
            states.leave()
        yield from self._rest()
        states.flush(state)

    def finish(self, state: TaskState, attempts: Attempts) -> Iterator[pa.RecordBatch]:
        """Call ``handleExpiredTimer`` for each timer that is due; then remove expired state."""
        for shard, timers in self._handle.timers.due(state):
            for first, last in cuts(np.array([len(key) for _, key in timers], np.int64)):
                due = _DueTimers(shard, timers[first:last])
                yield from attempts.over(
                    len(due.timers), partial(self._fire, due, state), partial(self._give_up_timer, due)
                )
        # Even if no state can have a time to live now: one may have had it in an earlier version of the operator.
        expiry.clean(state, self._handle.variables.values(), self._handle.current)
        self._closed = True
        self._guarded("close", self._processor.close)

    # --- inside ---------------------------------------------------------------------------------------------

    def _load_initial_state(self, state: TaskState, attempts: Attempts) -> None:
        initial = self._spec.initial
        fresh = [shard for shard in self._context.shards if shard in state.fresh]
        table = initial.read(fresh) if initial is not None and fresh else None
        if initial is None or table is None:
            return
        reader = self._style.reader(from_json(initial.schema))
        for groups in chunks(group(table, self._codec, SHARD)):
            lost = partial(groups.lost, method=INITIAL_STATE)
            # It has no output.
            list(attempts.over(len(groups), partial(self._load, groups, reader, state), lost))

    def _load(
        self, every: Groups, reader: Reader, state: TaskState, first: int, last: int
    ) -> Iterator[pa.RecordBatch]:
        """Call ``handleInitialState`` for the rows of some keys."""
        groups = every.slice(first, last)
        states, handle = self._opened_states(), self._processor.handleInitialState
        states.chunk(groups.shards, groups.keys, [pa.nulls(len(groups), BYTES) for _ in self.prefixes])
        inputs = reader.groups(groups.rows, groups.bounds.tolist())
        for index, (key, parts) in enumerate(zip(self._style.keys(groups.key_columns), inputs, strict=True)):
            states.enter(index)
            try:
                for part in parts:
                    handle(key, part, self._times)
            except Exception as error:  # noqa: BLE001 (a processor may raise anything)
                raise self._failure(f"{INITIAL_STATE} of key {key!r}", error) from None
            states.leave()
        states.flush(state)
        return iter(())

    def _fire(self, due: _DueTimers, state: TaskState, first: int, last: int) -> Iterator[pa.RecordBatch]:
        """Call ``handleExpiredTimer`` for some timers; a key may have several of them."""
        self._writer, timers = self._style.writer(), due.timers[first:last]
        places: dict[bytes, int] = {}
        for _, data in timers:
            places.setdefault(data, len(places))
        keys = pa.array(list(places), BYTES)
        shards = np.full(len(places), due.shard, np.int32)
        states, handle = self._opened_states(), self._processor.handleExpiredTimer
        states.chunk(
            shards, keys, [state.fetch(shards, with_prefix(prefix, keys)) for prefix in self.prefixes]
        )
        # Timestamps are in the session's time zone, as in the rows.
        local = arrow_schema(self._codec.schema, timezone=self._spec.settings.timezone)
        values = self._style.timer_keys(self._codec.decode_columns(keys).cast(local))
        for time, data in timers:
            index = places[data]
            states.enter(index)
            yield from self._outputs(
                "handleExpiredTimer",
                values[index],
                handle,
                key=values[index],
                timerValues=self._times,
                expiredTimerInfo=ExpiredTimerInfo(time),
            )
            self._handle.timers.delete(time)
            states.leave()
        yield from self._rest()
        states.flush(state)

    def _give_up_timer(self, due: _DueTimers, at: int) -> GivenUpKey:
        """Delete a timer whose handler fails: it would fire in every batch."""
        time, key = due.timers[at]
        current, timers = self._handle.current, self._handle.timers
        current.chunk(np.array([due.shard], np.int32), pa.array([key], BYTES))
        timers.chunk()
        current.index = 0
        timers.delete(time)
        timers.flush()
        return GivenUpKey(due.shard, key, method="handleExpiredTimer")

    def _outputs(
        self, method: str, key: tuple[Any, ...], call: Callable[..., Any], /, *args: Any, **named: Any
    ) -> Iterator[pa.RecordBatch]:
        """Call a method for a key and collect all its results; yield the batches that become full."""
        try:
            given = call(*args, **named)
            if given is None:
                raise TypeError(
                    f"{method} returned None, but must return an iterator of {self._spec.style} output"
                )
            results = iter(given)
            while self._writer.pull(results):
                yield self._batch()
        except OutputTypeError:
            raise
        except Exception as error:  # noqa: BLE001 (a processor may raise anything)
            where = f"key {tuple(key)!r}"
            raise self._failure(
                where if method == "handleInputRows" else f"{method} of {where}", error
            ) from None

    def _rest(self) -> Iterator[pa.RecordBatch]:
        if len(self._writer):
            yield self._batch()

    def _batch(self) -> pa.RecordBatch:
        """Return the results that have been collected.

        Raises:
            OutputTypeError: a result does not fit the output schema, or is late for the operators after this one.
        """
        batch, time = self._writer.batch(), self._spec.output_time
        return (
            batch if time is None else time.check_output(batch, self._context.times.late_ms, self._spec.uid)
        )

    def _opened_states(self) -> KeyedStates:
        assert self._states is not None, "the engine calls nothing before init"
        return self._states

    def _guarded(self, where: str, call: Callable[[], None]) -> None:
        try:
            call()
        except Exception as error:  # noqa: BLE001 (a processor may raise anything)
            raise self._failure(where, error) from None

    def _failure(self, where: str, error: Exception) -> ProcessorError:
        told = raised(error)
        return ProcessorError(self._spec.uid, self._context.batch, where, told.summary, told.traceback)


def _comparable(states: dict[str, StateRecord]) -> dict[str, tuple[str, StateKind, str | None, int | None]]:
    """Return the facts about the states that must be the same on the driver and in every task."""
    return {
        name: (record.versions[-1], record.kind, record.map_key, record.ttl_ms)
        for name, record in states.items()
    }
