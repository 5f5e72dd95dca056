"""One key of an operator in one batch: its task keeps aside what it has of it, and it runs again elsewhere."""

from __future__ import annotations

import pickle
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager

import attrs
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import Row

from ...storage.backends.open import open_store
from ...storage.checkpoints.manifest import OperatorRecord, StateRecord
from ...storage.store import Store
from ...storage.verified import read_verified
from ..format.keys import KeyCodec
from ..format.keyspace import IN_PART, owner_of
from ..format.schema import from_json
from ..operators import engine
from ..operators.attempts import Attempts, OnError
from ..operators.dataframe import SHARD
from ..operators.engine import Chunk, Operator, OperatorSpec, RuntimeContext
from ..operators.task_state import TaskState
from ..processors.processor import ProcessorSpec
from ..rpc.access import Entries, StateAccess
from .memory import MemoryShards

_ALL = (IN_PART, b"\xff")
"""The range of all keys but the shard's own."""


@attrs.frozen(eq=False)
class KeyInBatch:
    """What a task had of a key in a batch."""

    context: RuntimeContext
    key_schema: str
    rows: tuple[pa.RecordBatch, ...]
    """Its rows, with the column ``SHARD``."""
    held: dict[tuple[int, bytes], bytes]
    """All that was stored of it when its first row came, by shard and key in the shard."""

    def run(self, spec: OperatorSpec) -> list[Row]:
        """Run the batch of this key alone, and return what goes out of it. What it stores goes nowhere.

        Raises:
            ChandyError: what production raises, such as ``ProcessorError`` with the exception of the processor.
        """
        if isinstance(spec, ProcessorSpec):
            # All that the batch begins with is in ``held``.
            spec = attrs.evolve(spec, initial=None, deleting={})
        shards = MemoryShards(dict(self.held), known=set(self.context.shards))
        access = shards.begin(self.context.times, self.context.shards)
        codec = KeyCodec(from_json(self.key_schema))
        return run_batch(spec, self.context, self.rows, codec, access, "fail")


def run_batch(
    spec: OperatorSpec,
    context: RuntimeContext,
    batches: Iterable[pa.RecordBatch],
    codec: KeyCodec,
    access: StateAccess,
    on_error: OnError,
) -> list[Row]:
    """Run a batch of an operator in this process, and return what goes out of it. Structs in it are dicts.

    Args:
        spec: the operator.
        context, codec, access, on_error: as for ``engine.run``.
        batches: the rows, with the column ``SHARD``.
    """
    with spec.open(context) as operator:
        parts = list(engine.run(operator, context, iter(batches), codec, SHARD, access, on_error))
    row = Row(*from_json(spec.output).names)
    return [row(*values.values()) for part in parts for values in part.to_pylist()]


# --- in a task ----------------------------------------------------------------------------------------------


@attrs.frozen
class WatchedSpec:
    """An operator whose tasks keep aside what they have of one key in one batch, and are otherwise as they were."""

    given: OperatorSpec
    key_schema: str
    key: bytes
    """Canonical."""
    batch: int
    store: str
    """URI of a store that tasks can write to."""
    folder: str
    """Where in it the ``KeyInBatch`` goes, pickled; it ends with a slash."""

    @property
    def output(self) -> str:
        """Schema of the output as Spark's JSON."""
        return self.given.output

    @property
    def states(self) -> Mapping[str, StateRecord]:
        """The operator's states, by name."""
        return self.given.states

    def taking_up(self, record: OperatorRecord) -> WatchedSpec:
        """Return the operator for the states of a record, which has all their versions."""
        return attrs.evolve(self, given=self.given.taking_up(record))

    @contextmanager
    def open(self, context: RuntimeContext) -> Iterator[Operator]:
        """Create the operator for one task."""
        with self.given.open(context) as operator:
            yield _Watched(operator, self, context) if context.batch == self.batch else operator

    def kept(self, store: Store) -> KeyInBatch | None:
        """Return what was kept; None if no task had anything of the key."""
        # The key is in one shard, and that in one task; an attempt of it leaves what the one before has left.
        found: list[KeyInBatch] = [read_verified(store, key, pickle.loads) for key in store.list(self.folder)]
        return found[0] if found else None


@attrs.define(eq=False)
class _Watched:
    given: Operator
    spec: WatchedSpec
    context: RuntimeContext
    held: dict[tuple[int, bytes], bytes] = attrs.field(factory=dict, init=False)

    @property
    def prefixes(self) -> Sequence[bytes]:
        return self.given.prefixes

    @property
    def late_rows(self) -> int:
        return self.given.late_rows

    def begin(self, state: TaskState, attempts: Attempts) -> None:
        self.given.begin(state, attempts)
        for entries in (*state.scan(*_ALL), *state.changes()):
            self._take(entries)

    def prepare(self, batches: Iterator[pa.RecordBatch]) -> pa.Table:
        rows = list(batches)
        own = tuple(found for some in rows if len(found := self._own(some)))
        if self.held or own:
            kept = KeyInBatch(self.context, self.spec.key_schema, own, self.held)
            name = f"{self.spec.folder}{self.context.partition}"
            open_store(self.spec.store).write(name, pickle.dumps(kept))
        return self.given.prepare(iter(rows))

    def process(self, chunk: Chunk, state: TaskState) -> Iterator[pa.RecordBatch]:
        return self.given.process(chunk, state)

    def finish(self, state: TaskState, attempts: Attempts) -> Iterator[pa.RecordBatch]:
        return self.given.finish(state, attempts)

    def _take(self, entries: Entries) -> None:
        found = pa.table([pa.array(entries.shards), entries.keys, entries.values], ["shard", "key", "value"])
        likely = found.filter(pc.ends_with(entries.keys, self.spec.key))
        for shard, key, value in zip(*likely.to_pydict().values(), strict=True):
            if owner_of(key)[1] != self.spec.key:
                continue
            if value is None:
                self.held.pop((shard, key), None)
            else:
                self.held[shard, key] = value

    def _own(self, rows: pa.RecordBatch) -> pa.RecordBatch:
        codec = KeyCodec(from_json(self.spec.key_schema))
        keys = codec.encode_columns([rows.column(name) for name in codec.schema.names])
        return rows.filter(pc.equal(keys, pa.scalar(self.spec.key, keys.type)))
