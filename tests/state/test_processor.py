"""A processor runs once a key over all of its rows; its changes come out together, or not at all."""
# The methods have PySpark's names.
# ruff: noqa: N802, N803

import pyarrow as pa
import pytest
from pyspark.sql import Row
from pyspark.sql.streaming import StatefulProcessor
from pyspark.sql.types import LongType, StringType, StructType

from chandy.state import processor as module
from chandy.state.errors import DeclarationError, ProcessorError
from chandy.state.grouping import group
from chandy.state.handle import StateHandle, declared_states
from chandy.state.keys import KeyCodec
from chandy.state.processor import ProcessorRun
from chandy.state.rows import SLICE, RowReader
from chandy.state.schema import Schemas

COUNT = StructType().add("count", LongType())
KEY = StructType().add("k", StringType())


class Shards:
    """State by shard and key, as a state host keeps it."""

    def __init__(self):
        self.held = {}
        self.fetches = []

    def fetch(self, shards, keys):
        self.fetches.append(len(keys))
        assert shards == sorted(shards), "rows of one shard lie together"
        return [self.held.get(place) for place in zip(shards, keys, strict=True)]

    def take(self, changes):
        assert changes.shards == sorted(changes.shards), "rows of one shard lie together"
        for shard, key, value in zip(changes.shards, changes.keys, changes.values, strict=True):
            self.held[shard, key] = value


class Base(StatefulProcessor):
    closed = 0

    def init(self, handle):
        self.count = handle.getValueState("count", COUNT)
        self.total = handle.getValueState("total", COUNT)

    def close(self):
        self.closed += 1


class Totals(Base):
    """Counts rows in one state, adds them up in another."""

    def handleInputRows(self, key, rows, timerValues):
        (count,) = self.count.get() or (0,)
        (total,) = self.total.get() or (0,)
        values = [row.n for row in rows]
        self.count.update((count + len(values),))
        self.total.update((total + sum(values),))
        yield Row(k=key[0], count=self.count.get()[0], total=self.total.get()[0])


def table(pairs):
    return pa.table(
        {
            "k": pa.array([k for k, _ in pairs], pa.string()),
            "n": pa.array([n for _, n in pairs], pa.int64()),
            "shard": pa.array([len(k) for k, _ in pairs], pa.int32()),
        }
    )


def started(processor, batch=7):
    states = declared_states(Totals(), "delays", Schemas())
    return ProcessorRun(processor, StateHandle("delays", Schemas(parse=None)), "delays", batch, states)


def outputs(run, pairs, shards):
    return run.outputs(group(table(pairs), KeyCodec(KEY), "shard"), RowReader(["k", "n"]), shards)


def ran(processor, pairs, shards=None):
    run = started(processor)
    rows = [row for part in outputs(run, pairs, shards or Shards()) for row in part]
    return rows, run.changes


def test_two_states_of_each_key_go_on_from_batch_to_batch():
    shards = Shards()
    _, changes = ran(Totals(), [("a", 1), ("bb", 5), ("a", 2)], shards)
    shards.take(changes)
    rows, _ = ran(Totals(), [("bb", 1), ("ccc", 9)], shards)
    assert rows == [("bb", 2, 6), ("ccc", 1, 9)]


def test_each_key_is_handled_once_with_all_its_rows_in_order_of_arrival():
    seen = []

    class Sees(Base):
        def handleInputRows(self, key, rows, timerValues):
            seen.append((key, [row.n for row in rows]))
            return iter([])

    ran(Sees(), [("b", 1), ("a", 2), ("b", 3), ("a", 4), ("b", 5)])
    assert sorted(seen) == [(("a",), [2, 4]), (("b",), [1, 3, 5])]


def test_a_processor_is_opened_and_closed_once_also_without_rows():
    calls = []

    class Calls(Base):
        def init(self, handle):
            super().init(handle)
            calls.append("init")

        def handleInputRows(self, key, rows, timerValues):
            calls.append("rows")
            return iter([])

        def close(self):
            calls.append("close")

    ran(Calls(), [("a", 1), ("b", 1)])
    assert calls == ["init", "rows", "rows", "close"]
    calls.clear()
    assert ran(Calls(), []) == ([], module.Changes())
    assert calls == ["init", "close"]


def test_timer_values_are_those_of_time_mode_none():
    class Asks(Base):
        def handleInputRows(self, key, rows, timerValues):
            yield (timerValues.getCurrentProcessingTimeInMs(), timerValues.getCurrentWatermarkInMs())

    assert ran(Asks(), [("a", 1)])[0] == [(-1, -1)]


def test_only_what_differs_is_written_and_what_was_cleared_is_deleted():
    class Writes(Base):
        def handleInputRows(self, key, rows, timerValues):
            (row,) = rows
            if row.n == 0:
                self.count.update(self.count.get())
            if row.n == 1:
                self.count.update((100,))
            if row.n == 2:
                self.count.clear()
            if row.n == 3:
                self.count.clear()
                self.count.update((1,))
            return iter([])

    shards = Shards()
    shards.take(ran(Totals(), [(key, 0) for key in "abcde"], shards)[1])
    _, changes = ran(Writes(), [("a", 0), ("b", 1), ("c", 2), ("d", 3), ("e", 4)], shards)
    codec, prefix = KeyCodec(KEY), b"\xa5count"
    assert dict(zip(changes.keys, changes.values, strict=True)) == {
        prefix + codec.encode(("b",)): b"\x91\x64",
        prefix + codec.encode(("c",)): None,
    }


def test_states_are_fetched_for_many_keys_in_one_call(monkeypatch):
    monkeypatch.setattr(module, "PREFETCH", 6)
    shards = Shards()
    rows, changes = ran(Totals(), [(f"k{at}", at) for at in range(7)], shards)
    assert shards.fetches == [6, 6, 2]
    assert [row.total for row in rows] == list(range(7))
    assert len(changes.keys) == 14


def test_output_leaves_in_slices_while_the_processor_runs():
    class Many(Base):
        def handleInputRows(self, key, rows, timerValues):
            for n in range(2 * SLICE + 5):
                self.count.update((n,))
                yield (key[0], n)

    run = started(Many())
    parts = list(outputs(run, [("a", 1), ("b", 1)], Shards()))
    assert [len(part) for part in parts] == [SLICE] * 4 + [10]
    assert [row for part in parts for row in part] == [(key, n) for key in "ab" for n in range(2 * SLICE + 5)]
    assert set(run.changes.values) == {KeyCodec(COUNT).encode((2 * SLICE + 4,))}


class Fails(Base):
    def handleInputRows(self, key, rows, timerValues):
        yield ("fine", 1)
        raise KeyError("user's own")


def test_a_processor_that_raises_is_told_by_operator_key_batch_and_its_own_traceback_and_is_closed():
    processor = Fails()
    with pytest.raises(ProcessorError) as failed:
        ran(processor, [("a", 1)])
    error = failed.value
    assert (error.operator, error.batch, error.where) == ("delays", 7, "key ('a',)")
    assert error.__cause__ is None
    assert error.__suppress_context__
    assert 'raise KeyError("user\'s own")' in error.traceback
    assert error.traceback.count("Traceback") == str(error).count("Traceback") == 1
    assert module.__file__ not in error.traceback, "frames of the engine would hide the user's"
    assert processor.closed == 1


def test_a_value_of_a_wrong_type_is_told_with_the_line_that_gave_it():
    class Wrong(Base):
        def handleInputRows(self, key, rows, timerValues):
            self.count.update(("many",))
            return iter([])

    with pytest.raises(ProcessorError) as failed:
        ran(Wrong(), [("a", 1)])
    assert 'self.count.update(("many",))' in failed.value.traceback
    assert "field 'count' of state 'count' of operator 'delays': expected bigint, found 'many' (str)" in str(
        failed.value
    )


@pytest.mark.parametrize("method", ["init", "close"])
def test_init_and_close_that_raise_are_told_by_name(method):
    processor = Totals()

    def raises(*args):
        raise OSError("no disk")

    setattr(processor, method, raises)
    with pytest.raises(ProcessorError, match="no disk") as failed:
        ran(processor, [("a", 1)])
    assert failed.value.where == method


def test_what_close_raises_after_a_failure_does_not_hide_the_failure():
    class FailsTwice(Fails):
        def close(self):
            raise OSError("no disk")

    with pytest.raises(ProcessorError, match="user's own"):
        ran(FailsTwice(), [("a", 1)])


def test_a_processor_whose_output_is_no_longer_wanted_is_closed():
    processor = Totals()
    running = outputs(started(processor), [("a", 1)], Shards())
    next(running)
    assert processor.closed == 0
    running.close()
    assert processor.closed == 1


def test_a_processor_that_returns_none_is_told_what_to_return():
    class Forgets(Base):
        def handleInputRows(self, key, rows, timerValues):
            return None

    with pytest.raises(ProcessorError, match="has to return an iterator of rows"):
        ran(Forgets(), [("a", 1)])


def test_a_processor_that_declares_other_states_than_on_the_driver_is_refused():
    class Moody(Totals):
        def init(self, handle):
            self.count = handle.getValueState("count", COUNT)

    processor = Moody()
    with pytest.raises(DeclarationError, match="the same each time"):
        ran(processor, [("a", 1)])
    assert processor.closed == 1
