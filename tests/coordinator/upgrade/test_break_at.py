"""A key in a batch is taken into a debugger: its task keeps aside what it has of it, and the processor runs on that."""
# The methods have PySpark's names.
# ruff: noqa: N802, N803

from __future__ import annotations

import sys
from bdb import BdbQuit
from collections.abc import Iterator
from datetime import date
from pathlib import Path
from typing import Any

import attrs
import numpy as np
import pyarrow as pa
import pytest
from pyspark.sql import Row
from pyspark.sql.streaming import StatefulProcessor
from pyspark.sql.types import StructType

from chandy.coordinator.errors import ArgumentError, GivenBatchError
from chandy.coordinator.upgrade.break_at import BreakAt, Debugged
from chandy.coordinator.upgrade.following import Stage
from chandy.coordinator.upgrade.replay import Replay
from chandy.state import ArrowProcessor, ArrowResult
from chandy.state.aggregation.windowing import aggregation_in
from chandy.state.errors import ProcessorError
from chandy.state.format.keys import KeyCodec
from chandy.state.format.schema import to_json
from chandy.state.operators.arrow_processor import arrow_spec
from chandy.state.operators.dataframe import SHARD
from chandy.state.operators.engine import OperatorSpec, RuntimeContext
from chandy.state.operators.time_mode import TimeMode
from chandy.state.processors.processor import processor_spec
from chandy.state.rpc.messages import BatchTimes
from chandy.state.testing.memory import MemoryShards
from chandy.state.testing.single_key import run_batch
from chandy.storage.backends.open import open_store
from chandy.storage.checkpoints.manifest import OperatorRecord
from chandy.storage.ids import BatchId, CheckpointId

KEY = StructType().add("k", "string")
INPUT = StructType().add("k", "string").add("n", "long")
OUTPUT = StructType().add("k", "string").add("total", "long")
NUMBER = StructType().add("n", "long")

LIKE_A = "\0\0\1\0\0\0a"
"""The bytes of this key end with all those of the key "a"."""


class Totals(StatefulProcessor):
    """Adds up numbers, remembers each, and says the total again when a timer is due."""

    def init(self, handle: Any) -> None:
        self.handle = handle
        self.total = handle.getValueState("total", NUMBER)
        self.seen = handle.getListState("seen", NUMBER)

    def handleInputRows(self, key: Any, rows: Iterator[Row], timerValues: Any) -> Iterator[Row]:
        (total,) = self.total.get() or (0,)
        for row in rows:
            if row.n < 0:
                raise ValueError("negative")
            total += row.n
            self.seen.appendValue((row.n,))
        self.total.update((total,))
        if total == 5:
            self.handle.registerTimer(3_000)
        yield Row(k=key[0], total=total)

    def handleExpiredTimer(self, key: Any, timerValues: Any, expiredTimerInfo: Any) -> Iterator[Row]:
        yield Row(k=key[0], total=sum(n for (n,) in self.seen.get()))


class Sums(ArrowProcessor):
    states = {"total": NUMBER}

    def process(self, given: Any) -> ArrowResult:
        before = [held["n"] if held else 0 for held in given.states["total"].to_pylist()]
        sums = np.add.reduceat(given.rows.column("n").to_numpy(), given.bounds[:-1]) + before
        output = given.keys.append_column("total", pa.array(sums))
        return ArrowResult(output, {"total": pa.StructArray.from_arrays([pa.array(sums)], ["n"])})


def of_rows() -> OperatorSpec:
    mode = TimeMode.PROCESSING
    return processor_spec(INPUT, uid="totals", key=["k"], processor=Totals(), output=OUTPUT, mode=mode)


def of_columns() -> OperatorSpec:
    return arrow_spec(INPUT, uid="totals", processor=Sums(), output=OUTPUT)


def record(uid: str = "totals", key: StructType = KEY) -> OperatorRecord:
    return OperatorRecord(uid, "", to_json(key), {}, ())


def debugged(key: Any = "a", operator: str | None = None) -> Debugged:
    return Debugged(BreakAt("q:1", key, operator), "q", BatchId(1))


@attrs.define
class Task:
    """The one task of an operator, as it runs in a replay."""

    debugged: Debugged
    folder: Path
    shards: MemoryShards = attrs.field(factory=MemoryShards)
    batch: int = 0

    @property
    def store(self) -> str:
        return str(self.folder / "rows")

    def run(self, spec: OperatorSpec, *rows: tuple[str, int]) -> list[Row]:
        """Run the next batch, which is a second later than the one before; return what goes out of it."""
        keys, numbers = zip(*rows, strict=True) if rows else ((), ())
        arrays = [pa.array(keys, pa.string()), pa.array(numbers, pa.int64())]
        placed = [*arrays, pa.array([ord(key[0]) % 2 for key in keys], pa.int32())]
        given = pa.RecordBatch.from_arrays(placed, ["k", "n", SHARD])
        times = BatchTimes(1_000 * (self.batch + 1), -1, -1)
        context = RuntimeContext("totals", "", "", self.batch, 0, range(2), times)
        self.batch += 1
        access = self.shards.begin(times, range(2))
        return run_batch(spec, context, [given], KeyCodec(KEY), access, "fail")

    def take(self) -> Debugged:
        self.debugged.choose(["totals"])
        self.debugged.take(open_store(self.store))
        return self.debugged


class Hook:
    """What PYTHONBREAKPOINT names: it looks at what is ahead of it."""

    def __init__(self) -> None:
        self.frames: list[dict[str, Any]] = []

    def __call__(self) -> None:
        self.frames.append(dict(sys._getframe(1).f_locals))


@pytest.fixture
def hook(monkeypatch: pytest.MonkeyPatch) -> Hook:
    monkeypatch.setattr(sys, "breakpointhook", hook := Hook())
    return hook


@pytest.mark.parametrize("define", [of_rows, of_columns])
def test_the_processor_runs_here_for_the_key_alone_as_in_its_task_which_nothing_changes(
    define: Any, tmp_path: Path, hook: Hook
) -> None:
    task = Task(debugged(), tmp_path)
    spec = task.debugged.watched(task.store, record(), define())
    assert task.run(spec, ("a", 1), ("b", 2), ("aa", 7))[:2] == [Row(k="b", total=2), Row(k="a", total=1)]
    in_task = task.run(spec, ("a", 3), ("b", 2), ("a", 1))
    stored = dict(task.shards.held)
    # The batch after the one that is debugged does not count.
    task.run(spec, ("a", 100))
    found = task.take()
    assert found.run() == [Row(k="a", total=5)] == found.run()
    assert Row(k="a", total=5) in in_task and len(hook.frames) == 2
    plain = Task(debugged(), tmp_path)
    plain.run(define(), ("a", 1), ("b", 2), ("aa", 7))
    assert (plain.run(define(), ("a", 3), ("b", 2), ("a", 1)), plain.shards.held) == (in_task, stored)


def test_timers_stop_as_rows_do_on_lists_and_all_that_is_stored_of_the_key(
    tmp_path: Path, hook: Hook
) -> None:
    task = Task(attrs.evolve(debugged(), batch=BatchId(2)), tmp_path)
    spec = task.debugged.watched(task.store, record(), of_rows())
    for rows in ([("a", 2), ("c", 9)], [("a", 3), (LIKE_A, 5)]):
        task.run(spec, *rows)
    *_, like, last = task.run(spec, ("c", 9))
    assert (like, last) == (Row(k=LIKE_A, total=5), Row(k="a", total=5))
    assert task.take().run() == [Row(k="a", total=5)]
    assert [frame["key"] for frame in hook.frames] == [("a",)]


def test_a_task_that_fails_has_kept_the_key_and_who_leaves_the_debugger_ends_all_of_it(
    tmp_path: Path, hook: Hook, monkeypatch: pytest.MonkeyPatch
) -> None:
    task = Task(debugged(), tmp_path)
    spec = task.debugged.watched(task.store, record(), of_rows())
    task.run(spec, ("a", 1))
    with pytest.raises(ProcessorError):
        task.run(spec, ("a", -1))
    with pytest.raises(ProcessorError, match="negative"):
        task.take().run()
    assert len(hook.frames) == 1

    def leave() -> None:
        raise BdbQuit

    monkeypatch.setattr(sys, "breakpointhook", leave)
    with pytest.raises(KeyboardInterrupt):
        task.debugged.run()


def test_a_key_for_which_the_processor_is_not_called_and_a_batch_that_did_not_run_are_told(
    tmp_path: Path, hook: Hook
) -> None:
    task = Task(debugged("b"), tmp_path)
    with pytest.raises(GivenBatchError, match="found none, because the replay has ended before"):
        task.debugged.run()
    spec = task.debugged.watched(task.store, record(), of_rows())
    task.run(spec, ("a", 1), ("b", 1))
    task.run(spec, ("a", 1))
    with pytest.raises(GivenBatchError, match=r"batch 1 of query 'q'.*rows of key 'b'"):
        task.take().run()
    assert not hook.frames


@pytest.mark.parametrize(
    ("at", "uids", "says"),
    [
        (debugged(operator="other"), ["totals", "dates"], "one of its operators: 'totals', 'dates'.*'other'"),
        (debugged(), ["totals", "dates"], "the name of one of its operators.*found no name"),
        (debugged(), [], "none, for the query has none of Chandy's"),
        (debugged(operator="counts"), ["totals", "counts"], "'counts', whose aggregates Chandy computes"),
        (debugged(key=5, operator="totals"), ["totals"], "a key of operator 'totals', which has k string"),
        (debugged(key=("a", "b"), operator="totals"), ["totals"], "which has k string"),
    ],
)
def test_an_operator_or_a_key_that_there_is_not_is_refused_before_any_batch_runs(
    at: Debugged, uids: list[str], says: str
) -> None:
    at.watched("", record(), of_rows())
    columns = {"total": ("n", "sum")}
    aggregates = aggregation_in(
        None, INPUT, ["k"], columns, uid="counts", output_mode="update", combine=False, ttl=None
    )
    at.watched("", record("counts"), aggregates.spec)
    with pytest.raises(GivenBatchError, match=says):
        at.choose(uids)


def test_a_key_in_json_may_have_a_date_as_text() -> None:
    at = debugged("2013-01-31", "dates")
    days = record("dates", schema := StructType().add("day", "date"))
    watched = at.watched("", days, of_rows())
    assert getattr(watched, "key", None) == KeyCodec(schema).encode([date(2013, 1, 31)])


def test_a_replay_that_goes_into_a_debugger_begins_and_ends_at_its_batch(tmp_path: Path) -> None:
    stages = [Stage(CheckpointId(1), {"q": BatchId(3)}, {}), Stage(CheckpointId(2), {"r": BatchId(3)}, {})]
    with pytest.raises(GivenBatchError, match="one of the queries 'q', 'r'"):
        Debugged.of(BreakAt(2, "a"), stages)
    assert Debugged.of(BreakAt("r:2", "a"), stages).is_in("r", BatchId(2))
    with pytest.raises(ArgumentError, match="ends with its batch"):
        Replay.of(str(tmp_path), end=CheckpointId(2), break_at=BreakAt(2, "a"))
