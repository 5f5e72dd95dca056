"""Takes a key in a batch of a replay into a debugger: its processor runs in this process, with what the task had."""

from __future__ import annotations

from bdb import BdbQuit
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any

import attrs
import pyarrow as pa
from pyspark.sql import Row
from pyspark.sql.streaming.stateful_processor import StatefulProcessor
from typing_extensions import override

from ...state.errors import StateTypeError
from ...state.format.keys import KeyCodec
from ...state.format.schema import arrow_schema, from_json
from ...state.operators.arrow_processor import ArrowInput, ArrowProcessor, ArrowResult, ArrowSpec
from ...state.operators.engine import OperatorSpec
from ...state.operators.pickling import Pickled
from ...state.processors.processor import ProcessorSpec
from ...state.reader.given_key import key_values
from ...state.testing.single_key import KeyInBatch, WatchedSpec
from ...storage.checkpoints.manifest import OperatorRecord
from ...storage.ids import BatchId
from ...storage.store import Store
from ..errors import GivenBatchError
from .following import Stage
from .stretch import BatchPlace, query_of

_FOLDER = "keys/"


@attrs.frozen
class BreakAt:
    """Where a replay goes into a debugger: at one key of an operator in one batch."""

    batch: int | str
    """The batch; with several queries as in ``"totals:53"``."""
    key: Any
    """The value of the key column; of several columns a tuple in their order, or a dict by column."""
    operator: str | None = None
    """The uid of the operator; None: the query has only one."""

    @property
    def place(self) -> str:
        """The batch as a replay takes a place."""
        return f"batch={self.batch}"


@attrs.define
class Debugged:
    """The key of a replay that is taken into a debugger."""

    at: BreakAt
    query: str
    batch: BatchId
    _made: dict[str, tuple[OperatorRecord, OperatorSpec]] = attrs.field(factory=dict, init=False)
    """The operators of the program, by uid."""
    _watched: dict[str, WatchedSpec] = attrs.field(factory=dict, init=False)
    """Those whose tasks keep the key aside."""
    _chosen: WatchedSpec | None = attrs.field(default=None, init=False)
    _kept: KeyInBatch | None = attrs.field(default=None, init=False)

    @classmethod
    def of(cls, at: BreakAt, stages: Sequence[Stage]) -> Debugged:
        """Return what is to be taken into a debugger.

        Raises:
            GivenBatchError: it names no batch, or one of no query of these checkpoints.
        """
        place = BatchPlace.of(at.place)
        assert place is not None, "it says that it is a batch"
        return cls(at, query_of(stages, place), place.batch)

    def is_in(self, query: str, batch: BatchId) -> bool:
        """Return whether it is in a batch."""
        return (query, batch) == (self.query, self.batch)

    # --- before the batch -----------------------------------------------------------------------------------

    def watched(self, store: str, record: OperatorRecord, spec: OperatorSpec) -> OperatorSpec:
        """Return what the tasks of an operator run, which the program has just made.

        Args:
            store: URI of the store for what they keep aside.
            record, spec: the operator.
        """
        self._made[record.uid] = record, spec
        key = _encoded(record, self.at.key)
        if key is None or not isinstance(spec, ProcessorSpec | ArrowSpec):
            return spec
        folder = f"{_FOLDER}{record.uid}/"
        found = WatchedSpec(spec, record.key_schema, key, self.batch, store, folder)
        self._watched[record.uid] = found
        return found

    def choose(self, uids: Sequence[str]) -> None:
        """Choose the operator, now that the query has been started.

        Args:
            uids: those of the query's operators.

        Raises:
            GivenBatchError: there is none of this name, or no name was given and there are several; it has no
                processor; or its key has other columns or types.
        """
        wanted = self.at.operator
        known = ", ".join(map(repr, uids)) or "none, for the query has none of Chandy's"
        if wanted is None and len(uids) != 1:
            raise self._not_debugged(f"the name of one of its operators: {known}", "no name", "name one")
        uid = wanted or uids[0]
        if uid not in uids:
            raise self._not_debugged(f"one of its operators: {known}", repr(uid))
        record, spec = self._made[uid]
        if not isinstance(spec, ProcessorSpec | ArrowSpec):
            raise self._not_debugged(
                "an operator with a processor of yours", f"{uid!r}, whose aggregates Chandy computes"
            )
        if uid not in self._watched:
            columns = ", ".join(
                f"{one.name} {one.dataType.simpleString()}" for one in from_json(record.key_schema)
            )
            raise self._not_debugged(f"a key of operator {uid!r}, which has {columns}", repr(self.at.key))
        self._chosen = self._watched[uid]

    def take(self, store: Store) -> None:
        """Take what the tasks of the batch have kept aside in a store."""
        assert self._chosen is not None, "it was chosen before any batch"
        self._kept = self._chosen.kept(store)

    # --- in the debugger ------------------------------------------------------------------------------------

    def run(self) -> list[Row]:
        """Run the batch of the key, with a ``breakpoint()`` ahead of each call for it; return what it gives.

        Raises:
            GivenBatchError: the batch was not run, or the processor was not called for the key.
            ChandyError: the processor has failed, or its output does not fit.
            KeyboardInterrupt: the user has left the debugger.
        """
        if self._chosen is None:
            raise self._not_debugged("a batch that is run", "none, because the replay has ended before")
        calls, spec = _Calls(), self._chosen.given
        if isinstance(spec, ProcessorSpec):
            stopping = _StoppingProcessor(spec.processor.load(), calls)
            spec = attrs.evolve(spec, processor=_Loaded(b"", spec.uid, stopping))
        elif isinstance(spec, ArrowSpec):
            spec = attrs.evolve(spec, processor=_StoppingArrow(spec.processor, calls))
        rows = self._kept.run(spec) if self._kept is not None else []
        if not calls.count:
            raise self._not_debugged(
                f"rows of key {self.at.key!r} that are not late, or a timer of it that is due", "none"
            )
        return rows

    def _not_debugged(self, expected: str, found: str, advice: str = "") -> GivenBatchError:
        what = f"there is nothing to debug in batch {self.batch} of query {self.query!r}"
        return GivenBatchError(what, expected, found, advice)


def _encoded(record: OperatorRecord, key: Any) -> bytes | None:
    """Return the canonical bytes of a key; None if the operator has other keys."""
    schema = from_json(record.key_schema)
    values = key_values(schema, key)
    if values is None:
        return None
    with suppress(StateTypeError):
        return KeyCodec(schema).encode(list(map(_fitting, values, arrow_schema(schema).types)))
    return None


def _fitting(value: Any, dtype: pa.DataType) -> Any:
    """Return a value of a key column, which JSON may have as text: a date, or a decimal."""
    if isinstance(value, str):
        with suppress(pa.ArrowException):
            return pa.scalar(value).cast(dtype).as_py()
    return value


# --- processors that stop -----------------------------------------------------------------------------------


@attrs.define
class _Calls:
    count: int = 0

    @contextmanager
    def entering(self) -> Iterator[None]:
        """Count a call for the key; whoever leaves the debugger ends more than the processor."""
        self.count += 1
        try:
            yield
        except BdbQuit:
            # The engine takes all others for errors of the processor.
            raise KeyboardInterrupt from None


@attrs.frozen
class _Loaded(Pickled[StatefulProcessor]):
    """A processor that is not copied."""

    processor: StatefulProcessor

    @override
    def load(self) -> StatefulProcessor:
        return self.processor


class _StoppingProcessor(StatefulProcessor):
    """A processor with a debugger ahead of each call for a key. Its methods have PySpark's names."""

    def __init__(self, given: StatefulProcessor, calls: _Calls) -> None:
        self._given = given
        self._calls = calls

    @override
    def init(self, handle: Any) -> None:
        self._given.init(handle)

    @override
    def handleInputRows(self, key: Any, rows: Iterator[Any], timerValues: Any) -> Iterator[Any]:
        with self._calls.entering():
            breakpoint()
            # Step into it: this is the processor's own method.
            yield from self._given.handleInputRows(key, rows, timerValues)

    @override
    def handleExpiredTimer(self, key: Any, timerValues: Any, expiredTimerInfo: Any) -> Iterator[Any]:
        with self._calls.entering():
            breakpoint()
            # Step into it: this is the processor's own method.
            yield from self._given.handleExpiredTimer(key, timerValues, expiredTimerInfo)

    @override
    def close(self) -> None:
        self._given.close()


class _StoppingArrow(ArrowProcessor):
    def __init__(self, given: ArrowProcessor, calls: _Calls) -> None:
        self._given = given
        self._calls = calls

    @override
    def process(self, given: ArrowInput) -> ArrowResult:
        with self._calls.entering():
            breakpoint()
            # Step into it: this is the processor's own method.
            return self._given.process(given)
