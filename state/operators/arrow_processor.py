"""Keyed processors over Arrow columns: each call gets many keys, with all their rows and their states."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, ClassVar, Self

import attrs
import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql.types import StructType

from ...storage.checkpoints.manifest import OperatorRecord, StateRecord
from ...storage.errors import ChandyError
from ..errors import DefinitionError, OutputTypeError, ProcessorError, invalid_argument
from ..format.arrow import from_numpy, to_numpy
from ..format.keyspace import HIDDEN, value_prefix
from ..format.packing import Packing
from ..format.rows import SLICE, check_columns
from ..format.schema import Schemas, arrow_schema, from_json, to_json
from ..format.values import StateName, describe
from ..rpc.access import Entries
from ..rpc.messages import BatchTimes
from ..user_code import raised
from .arrow_expiry import ColumnExpiry, Since, TimeToLive
from .arrow_fit import fit_states, fit_table
from .attempts import Attempts
from .dataframe import SHARD
from .engine import Chunk, RuntimeContext, collect, with_prefix
from .task_state import TaskState


@attrs.frozen(eq=False)
class ArrowInput:
    """Some of a batch's keys, with their rows and their states before the batch. Key ``i`` is at position ``i``."""

    keys: pa.Table
    """The key columns, one row for each key."""
    rows: pa.Table
    """The rows of these keys, with all columns; those of one key are adjacent, in the order in which they came."""
    bounds: npt.NDArray[np.int64]
    """Key ``i`` has rows ``bounds[i]`` to ``bounds[i + 1]``, at least one."""
    states: Mapping[str, pa.StructArray]
    """For each state by name, the value of each key, null where the key has none; timestamps are in UTC."""
    batch: int
    times: BatchTimes
    """The processing time and the event time of the batch."""

    def __len__(self) -> int:
        return len(self.bounds) - 1

    @property
    def numbers(self) -> npt.NDArray[np.int64]:
        """The number of each row's key."""
        return np.repeat(np.arange(len(self), dtype=np.int64), np.diff(self.bounds))


@attrs.frozen(eq=False)
class ArrowResult:
    """The output and the new states that a processor returns for some keys."""

    output: pa.Table | pa.RecordBatch | None = None
    """Any number of rows, with the columns of the output in any order; None: no row."""
    states: Mapping[str, pa.StructArray] = attrs.field(factory=dict)
    """For each state by name, the new value of each key, null to remove it. States that are not named stay."""


class ArrowProcessor(ABC):
    """A keyed processor that works on whole columns. It is pickled, and every task has its own copy.

    Example::

        class Counts(ArrowProcessor):
            states = {"count": "n long"}

            def process(self, given):
                before = pc.fill_null(pc.struct_field(given.states["count"], "n"), 0)
                n = pc.add(before, pa.array(np.diff(given.bounds)))
                output = given.keys.append_column("n", n)
                return ArrowResult(output, {"count": pa.StructArray.from_arrays([n], ["n"])})
    """

    states: ClassVar[Mapping[str, StructType | str]] = {}
    """The states of each key: the schema of each state by name, as StructType or DDL."""
    ttl_ms: ClassVar[Mapping[str, int]] = {}
    """By state, how many milliseconds after it was returned last a value expires. Those of other states never do.

    Time is the processing time of the batches. A value that has expired is null for the processor, and is removed.
    """

    @abstractmethod
    def process(self, given: ArrowInput) -> ArrowResult:
        """Process some keys. A task's keys come in one or several calls; each key of a batch comes in exactly one."""


@attrs.frozen
class ArrowSpec:
    """An operator that runs an ``ArrowProcessor``."""

    uid: str
    input: str
    """Schema of the rows as Spark's JSON, without the shard column."""
    output: str
    states: dict[str, StateRecord]
    processor: ArrowProcessor
    since: Since = "last"
    """What the times to live of its states begin with."""

    def taking_up(self, record: OperatorRecord) -> Self:
        """Return the operator for states of earlier versions."""
        return attrs.evolve(self, states=record.states_of(self.states))

    @contextmanager
    def open(self, context: RuntimeContext) -> Iterator[ArrowOperator]:
        """Create the operator for one task."""
        yield ArrowOperator(self, context)


def arrow_spec(
    schema: StructType, *, uid: str, processor: ArrowProcessor, output: StructType | str
) -> ArrowSpec:
    """Describe an operator that runs ``processor`` over rows of a schema.

    Raises:
        DefinitionError: ``processor`` is no ArrowProcessor, its states are not declared as they must be, or the schema
            of the output or of a state cannot be used.
    """
    _check_processor(processor)
    resolved = Schemas().resolve(output, f"the output of operator {uid!r}")
    check_columns(resolved, f"the output of operator {uid!r}")
    return ArrowSpec(uid, to_json(schema), to_json(resolved), _records(processor, uid), processor)


def _check_processor(processor: object) -> None:
    if not isinstance(processor, ArrowProcessor):
        found = f"the class {processor.__name__}" if isinstance(processor, type) else type(processor).__name__
        raise invalid_argument("processor", "an instance of chandy.state.ArrowProcessor", found)


def _records(processor: ArrowProcessor, uid: str) -> dict[str, StateRecord]:
    what = f"operator {uid!r} declares its states wrongly"
    if not isinstance(processor.states, Mapping):
        raise DefinitionError(what, "a dict of schemas by name", describe(processor.states))
    times, schemas, records = _times_to_live(processor, what), Schemas(), {}
    for name, declared in processor.states.items():
        if not isinstance(name, str) or not name or name.startswith(HIDDEN):
            expected = f"names that are not empty and do not begin with {HIDDEN!r}"
            raise DefinitionError(what, expected, repr(name))
        schema = schemas.resolve(declared, f"state {name!r} of operator {uid!r}")
        Packing([schema], StateName(uid, name))
        records[name] = StateRecord((to_json(schema),), ttl_ms=times.get(name))
    return records


def _times_to_live(processor: ArrowProcessor, what: str) -> Mapping[str, int]:
    times = processor.ttl_ms
    if (
        not isinstance(times, Mapping)
        or set(times) - set(processor.states)
        or not all(type(ms) is int and ms > 0 for ms in times.values())
    ):
        expected = "ttl_ms to be a dict of positive milliseconds by the name of a state"
        raise DefinitionError(what, expected, describe(times))
    return times


class ArrowOperator:
    """An ``ArrowProcessor`` in one task."""

    late_rows = 0

    def __init__(self, spec: ArrowSpec, context: RuntimeContext) -> None:
        self._spec = spec
        self._context = context
        self._output = from_json(spec.output)
        self._packings = {
            name: Packing([from_json(text) for text in record.versions], StateName(spec.uid, name))
            for name, record in spec.states.items()
        }
        self._schemas = {name: from_json(record.versions[-1]) for name, record in spec.states.items()}
        self._prefixes = {name: value_prefix(name) for name in spec.states}
        self._expiry = ColumnExpiry(
            context.times.timestamp_ms,
            {
                self._prefixes[name]: None if record.ttl_ms is None else TimeToLive(record.ttl_ms, spec.since)
                for name, record in spec.states.items()
            },
        )

    @property
    def prefixes(self) -> Sequence[bytes]:
        """The prefix of each state."""
        return tuple(self._prefixes.values())

    def prepare(self, batches: Iterator[pa.RecordBatch]) -> pa.Table:
        """Return all rows."""
        return collect(batches, with_shard(from_json(self._spec.input)))

    def begin(self, state: TaskState, attempts: Attempts) -> None:
        """Do nothing."""

    def process(self, chunk: Chunk, state: TaskState) -> Iterator[pa.RecordBatch]:
        """Run the processor over some keys.

        Raises:
            ProcessorError: the processor raised an exception.
            OutputTypeError: its result does not fit.
        """
        groups = chunk.groups
        held = dict(zip(self._packings, map(self._expiry.live, chunk.held), strict=True))
        given = ArrowInput(
            keys=groups.key_columns,
            rows=groups.rows,
            bounds=groups.bounds,
            states={name: packing.unpack(held[name]) for name, packing in self._packings.items()},
            batch=self._context.batch,
            times=self._context.times,
        )
        output, states = self._call(given)
        changes = {
            name: found
            for name, values in states.items()
            if (found := self._changes(name, values, held[name], chunk)) is not None
        }
        for entries, _ in changes.values():
            state.put(entries)
        # Once none was refused: the keys of a failed attempt come again.
        for name, (entries, before) in changes.items():
            self._expiry.record(self._prefixes[name], entries, before, state)
        if output is not None:
            yield from output.to_batches(max_chunksize=SLICE)

    def finish(self, state: TaskState, attempts: Attempts) -> Iterator[pa.RecordBatch]:
        """Remove expired state."""
        self._expiry.clean(state)
        return iter(())

    def _call(self, given: ArrowInput) -> tuple[pa.Table | None, dict[str, pa.Array]]:
        uid = self._spec.uid
        try:
            result: Any = self._spec.processor.process(given)
        except ChandyError:
            raise
        except Exception as error:  # noqa: BLE001 (a processor may raise anything)
            told = raised(error)
            raise ProcessorError(uid, self._context.batch, "process", told.summary, told.traceback) from None
        if not isinstance(result, ArrowResult):
            raise OutputTypeError(uid, "the result", "an ArrowResult", describe(result))
        output = fit_table(result.output, uid, self._output)
        return output, fit_states(result.states, uid, self._schemas, len(given))

    def _changes(
        self, name: str, values: pa.Array, held: pa.Array, chunk: Chunk
    ) -> tuple[Entries, pa.Array] | None:
        """Return the values that differ from the stored ones, and those; None if none does."""
        prefix = self._prefixes[name]
        packed = self._packings[name].pack(values, self._expiry.of(prefix, held))
        changed = differing(packed, held)
        if not changed.any():
            return None
        groups = chunk.groups
        shards, keys = groups.shards, groups.keys
        if not changed.all():
            mask = from_numpy(changed)
            shards, keys = shards[changed], keys.filter(mask)
            packed, held = packed.filter(mask), held.filter(mask)
        return Entries(shards, with_prefix(prefix, keys), packed), held


def differing(new: pa.Array, old: pa.Array) -> npt.NDArray[np.bool_]:
    """Return for each row whether two columns of bytes differ; null equals only null."""
    same = pc.equal(new, old)
    if same.null_count:
        same = pc.if_else(same.is_valid(), same, pc.and_(new.is_null(), old.is_null()))
    return to_numpy(pc.invert(same))


def with_shard(schema: StructType) -> pa.Schema:
    """Return the Arrow schema of rows with the shard column."""
    return arrow_schema(schema).append(pa.field(SHARD, pa.int32()))
