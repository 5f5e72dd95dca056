"""``OperatorTester``: a processor under test, with its time and its state in the hands of the test."""

from __future__ import annotations

import copy
import uuid
import zlib
from collections.abc import Callable, Iterable, Sequence
from datetime import UTC, datetime
from typing import Any, Final, Self

import attrs
import pyarrow as pa
from pyspark.sql import Row
from pyspark.sql.streaming.stateful_processor import StatefulProcessor
from pyspark.sql.types import IntegerType, StructType, TimestampType

from ...storage.checkpoints.manifest import OperatorRecord
from ...storage.ids import BatchId
from ..aggregation.aggregates import HASH
from ..aggregation.windowing import aggregation_in, key_columns
from ..aggregation.windows import END, START
from ..errors import NoSuchStateError, invalid_argument
from ..format import keyspace
from ..format.arrow import BYTES, listed
from ..format.evolution import evolved
from ..format.keys import KeyCodec
from ..format.schema import Schemas, to_json
from ..format.values import StateName
from ..operators.arrow_expiry import Since, TimeToLive
from ..operators.arrow_processor import ArrowProcessor, arrow_spec
from ..operators.attempts import OnError
from ..operators.dataframe import SHARD
from ..operators.dead_letters import check_on_error, packing, rows_of
from ..operators.engine import OperatorSpec, RuntimeContext
from ..operators.hashing import can_hash
from ..operators.time_mode import TimeMode, with_watermark
from ..processors.processor import ProcessorSpec, processor_spec
from ..processors.style import StyleName
from ..reader.lookup import StateValue, lookup_state
from ..rpc.messages import BatchTimes
from .memory import MemoryShards
from .rows import Given, table_of, tuples_of
from .single_key import run_batch
from .windows import SessionWindow, TimeWindow

_UID: Final = "tested"
_BOUNDS: Final = StructType().add(START, TimestampType()).add(END, TimestampType())
Time = int | datetime
"""Milliseconds since 1970, or a time; one without a zone is in UTC."""
Processor = StatefulProcessor | ArrowProcessor
Define = Callable[[Processor | None], OperatorSpec]
"""Describes the operator with a processor; aggregates have none."""
Prepare = Callable[[pa.Table], pa.Table]
"""Returns what the operator's tasks are sent of rows."""
Spread = Callable[[tuple[Any, ...]], Iterable[tuple[Any, ...]]]
"""Returns the rows of the operator's input that come of a row."""


@attrs.frozen
class Point:
    """What an operator has stored between two batches."""

    shards: MemoryShards
    record: OperatorRecord | None
    """None: no batch had run."""
    batch: int
    watermark: int


@attrs.frozen
class DeadLetter:
    """What an operator has given up of a key in a batch."""

    key: tuple[Any, ...]
    time: int
    """Processing time of the batch, in milliseconds since 1970."""
    batch: int
    place: str
    """What was called: the key and the method."""
    error: str
    """The exception and where it was raised, in one line."""
    traceback: str
    rows: list[Row]
    """Rows of the key in the batch; none if it was not for rows that the processor was called."""


class OperatorTester:
    """Runs a processor or aggregates batch by batch, without a JVM: what is stored is in the memory of the test.

    Grouping, states, timers, times to live and checks of the output are those of production. Schemas may be DDL, such
    as ``"k string, n long"``, while there is a Spark session. Without one they are ``StructType``, and so are those of
    states.

    Example::

        tester = OperatorTester.of_processor(
            Totals(), key=["k"], input=StructType().add("k", "string").add("n", "long"), output=OUTPUT
        )
        assert tester.batch([("a", 1), ("a", 2)]) == [Row(k="a", total=3)]
        assert tester.state("total", "a") == Row(n=3)
    """

    def __init__(
        self,
        processor: Processor | None,
        define: Define,
        *,
        key: Sequence[str],
        input: StructType,
        shards: int,
        prepare: Prepare = lambda rows: rows,
        spread: Spread = lambda row: (row,),
        given: StructType | None = None,
        on_error: OnError = "fail",
    ) -> None:
        """Make one. Use ``of_processor``, ``of_arrow`` or ``of_aggregate``."""
        self._define = define
        self._prepare = prepare
        self._spread = spread
        self._given = given or input
        check_on_error(on_error)
        self._on_error = on_error
        self._input = input
        self._key = StructType([input[name] for name in key])
        self._codec = KeyCodec(self._key)
        self._places = shards
        self._shards = MemoryShards()
        self._restored: OperatorRecord | None = None
        self._began = self._batch = 0
        self._watermark = 0
        self._query, self._run = str(uuid.uuid4()), str(uuid.uuid4())
        self._processor = processor
        self._spec = self._defined(processor)

    @classmethod
    def of_processor(
        cls,
        processor: StatefulProcessor,
        *,
        key: Sequence[str],
        input: StructType | str,
        output: StructType | str,
        time_mode: str = "None",
        watermark: str | None = None,
        pandas: bool = False,
        shards: int = 4,
        on_error: OnError = "fail",
    ) -> Self:
        """Test a processor of ``transform_with_state``.

        Args:
            processor: the processor.
            key: the names of the key columns.
            input: the schema of the rows.
            output: the schema of what it yields.
            time_mode: "None", "ProcessingTime" or "EventTime".
            watermark: in event time, the column of the rows that has it; None if rows are never late.
            pandas: whether it is written for ``transform_with_state_in_pandas``.
            shards: how many shards the state is in.
            on_error: "fail" or ``DeadLetters``, as for ``transform_with_state``.

        Raises:
            DefinitionError: as of ``transform_with_state``.
        """
        mode, style = TimeMode.read(time_mode), StyleName.PANDAS if pandas else StyleName.ROWS
        schema = _schema(input, key)
        if watermark is not None:
            schema = with_watermark(schema, watermark)

        def define(given: Any) -> OperatorSpec:
            return processor_spec(
                schema,
                uid=_UID,
                key=key,
                processor=given,
                output=output,
                style=style,
                mode=mode,
            )

        return cls(processor, define, key=key, input=schema, shards=shards, on_error=on_error)

    @classmethod
    def of_arrow(
        cls,
        processor: ArrowProcessor,
        *,
        key: Sequence[str],
        input: StructType | str,
        output: StructType | str,
        shards: int = 4,
        on_error: OnError = "fail",
    ) -> Self:
        """Test an ``ArrowProcessor``. Args and errors are those of ``of_processor``."""
        schema = _schema(input, key)

        def define(given: Any) -> OperatorSpec:
            return arrow_spec(schema, uid=_UID, processor=given, output=output)

        return cls(processor, define, key=key, input=schema, shards=shards, on_error=on_error)

    @classmethod
    def of_aggregate(
        cls,
        *,
        by: Sequence[str],
        input: StructType | str,
        ttl_ms: int | None = None,
        ttl_since: Since = "last",
        ttl_column: str | None = None,
        window: TimeWindow | SessionWindow | None = None,
        output_mode: str = "update",
        shards: int = 4,
        **columns: tuple[str, str],
    ) -> Self:
        """Test the aggregates of ``coordinator.aggregate`` and ``aggregate_batches``.

        Args:
            by: the names of the key columns.
            input: the schema of the rows.
            ttl_ms: how many milliseconds a key lives; None: for ever.
            ttl_since: since its "last" row or its "first" one.
            ttl_column: the column with the event time by which it lives; None: it lives by processing time.
            window: the windows of event time; None: there are none. The key of state begins with the start and the end
                of a ``TimeWindow``.
            output_mode: "update", or "append" for windows that are output when they are closed. Sessions need "append".
            shards: how many shards the state is in.
            columns: the output columns, each a pair of an input column and a function.

        Raises:
            DefinitionError: as of ``coordinator.aggregate``; or an ``approx_distinct`` of values that Spark alone can
                hash.
        """
        given = schema = _schema(input, by)
        column = None
        if window is not None:
            if window.column not in given.names:
                expected = f"a column of the input: {', '.join(given.names)}"
                raise invalid_argument("window", expected, window.column)
            schema, column = StructType([*_BOUNDS.fields, *given.fields]), window.output
        made = aggregation_in(
            column,
            schema,
            by,
            columns,
            uid=_UID,
            output_mode=output_mode,
            combine=False,
            ttl=None if ttl_ms is None else TimeToLive(ttl_ms, ttl_since, ttl_column),
        )
        for one in made.inputs.values():
            if one.sent is HASH and not can_hash(StructType([schema[one.column]])):
                found = f"{one.column!r}, which is {schema[one.column].dataType.simpleString()}"
                expected = "approx_distinct of a column whose values can be hashed without Spark"
                raise invalid_argument("columns", expected, found, "test this one in a session")

        def define(given: Processor | None) -> OperatorSpec:
            return made.spec

        def spread(row: tuple[Any, ...]) -> Iterable[tuple[Any, ...]]:
            if window is None:
                return (row,)
            return ((*bounds, *row) for bounds in window.of(row[given.names.index(window.column)]))

        return cls(
            None,
            define,
            key=key_columns(by, column),
            input=schema,
            shards=shards,
            prepare=made.arrow_rows,
            spread=spread,
            given=given,
        )

    # --- batches --------------------------------------------------------------------------------------------

    def batch(
        self,
        rows: Given = (),
        *,
        time: Time = 0,
        watermark: Time | None = None,
    ) -> list[Row]:
        """Run a batch, and return what goes out of it. Structs in it are dicts.

        A batch that raises has stored nothing, as in production. The next one has its number.

        Args:
            rows: each a tuple in the order of the input's columns, or a dict by their names; what a dict lacks is null.
            time: the processing time of the batch.
            watermark: the watermark of the batch; None: that of the batch before. In event time, rows are late by the
                watermark of the batch before, and timers fire by this one.

        Raises:
            ChandyError: what production raises, such as ``ProcessorError`` with the exception of the processor.
        """
        reached = self._watermark if watermark is None else _ms(watermark)
        if reached < self._watermark:
            raise invalid_argument("watermark", f"{self._watermark} or later", str(reached))
        times = BatchTimes(_ms(time), reached, self._watermark)
        context = RuntimeContext(_UID, self._query, self._run, self._batch, 0, range(self._places), times)
        access = self._shards.begin(times, range(self._places))
        given = self._prepare(self._table(rows)).to_batches()
        output = run_batch(self._spec, context, given, self._codec, access, self._on_error)
        self._batch, self._watermark = self._batch + 1, reached
        return output

    def _table(self, rows: Given) -> pa.Table:
        placed = [
            (*row, self._shard_of(row))
            for given in tuples_of(rows, self._given)
            for row in self._spread(given)
        ]
        return table_of(placed, StructType([*self._input.fields]).add(SHARD, IntegerType()))

    def _shard_of(self, row: Sequence[Any]) -> int:
        # Equal keys have equal bytes.
        key = self._codec.encode([row[self._input.names.index(name)] for name in self._key.names])
        return zlib.crc32(key) % self._places

    # --- state ----------------------------------------------------------------------------------------------

    def state(self, name: str, *key: Any, time: Time = 0) -> StateValue | None:
        """Return what a state has for a key: a row, a list of rows, or a dict of rows; None if there is nothing.

        Args:
            name: the state.
            key: the values of the key columns.
            time: what has expired by then is not returned.

        Raises:
            NoSuchStateError: the processor has declared no such state.
        """
        states = self._record.states
        if name not in states:
            raise NoSuchStateError(
                "there is no such state", f"one of {', '.join(states) or 'none'}", repr(name)
            )
        if name in self._record.deleting_after(BatchId(self._batch - 1)):
            return None
        return lookup_state(
            states[name],
            StateName(_UID, name),
            self._codec.encode(key),
            {where: value for (_, where), value in self._shards.held.items()},
            _ms(time),
        )

    def timers(self, *key: Any) -> list[int]:
        """Return when the timers of a key are due, in milliseconds since 1970, ascending."""
        encoded = self._codec.encode(key)
        kinds = (keyspace.PROCESSING_TIMERS, keyspace.EVENT_TIMERS)
        stored = [keyspace.split_timed(where) for _, where in self._shards.held if where.startswith(kinds)]
        return sorted(due for due, of in stored if of == encoded)

    def dead_letters(self) -> list[DeadLetter]:
        """Return the dead letters that are stored, by the time of their batch."""
        stored = sorted(
            (where, value)
            for (_, where), value in self._shards.held.items()
            if where.startswith(keyspace.DEAD_LETTERS)
        )
        return [self._letter(where, value) for where, value in stored]

    def _letter(self, where: bytes, value: bytes) -> DeadLetter:
        time, batch, _, key = keyspace.split_letter(where)
        place, error, traceback, rows, _ = packing().unpack_row(value)
        row = Row(*self._input.names)
        given = [] if rows is None else zip(*map(listed, rows_of(rows).columns), strict=True)
        columns = self._codec.decode_columns(pa.array([key], BYTES)).columns
        decoded = tuple(listed(column)[0] for column in columns)
        return DeadLetter(decoded, time, batch, place, error, traceback, [row(*values) for values in given])

    def checkpoint(self) -> Point:
        """Return what is stored now."""
        held = self._record if self._batch > self._began else self._restored
        cut = BatchId(self._batch - 1)
        record = held and attrs.evolve(held, deleting=self._record.deleting_after(cut))
        return Point(copy.deepcopy(self._shards), record, self._batch, self._watermark)

    def restore(self, point: Point, processor: Processor | None = None) -> None:
        """Go on from what was stored once, as after a kill.

        Args:
            point: what ``checkpoint`` has returned, also that of another tester, such as one with fewer aggregates.
            processor: another version of the processor; None: the same.

        Raises:
            StateSchemaError: it cannot read what is stored.
        """
        self._shards = copy.deepcopy(point.shards)
        self._restored, self._batch, self._watermark = point.record, point.batch, point.watermark
        self._began = point.batch
        if processor is not None:
            self._processor = processor
        self._spec = self._defined(self._processor)

    def _defined(self, processor: Processor | None) -> OperatorSpec:
        spec = self._define(processor)
        dropped = spec.dropped if isinstance(spec, ProcessorSpec) else ()
        self._record = OperatorRecord(_UID, "", to_json(self._key), dict(spec.states), ())
        if self._restored is not None:
            self._record = evolved(self._restored, self._record, dropped, BatchId(self._batch - 1))
        return spec.taking_up(self._record)


def _schema(given: StructType | str, key: Sequence[str]) -> StructType:
    schema = Schemas().resolve(given, "the input")
    if unknown := [name for name in key if name not in schema.names]:
        raise invalid_argument("key", f"columns of the input: {', '.join(schema.names)}", ", ".join(unknown))
    return schema


def _ms(time: Time) -> int:
    if isinstance(time, datetime):
        at = time if time.tzinfo else time.replace(tzinfo=UTC)
        return round(at.timestamp() * 1000)
    return time
