"""A processor runs once a key over all of its rows; its changes come out together, or not at all."""
# The methods have PySpark's names.
# ruff: noqa: N802, N803

import datetime
import uuid

import attrs
import pytest
from pyspark.sql import Row
from pyspark.sql.streaming import StatefulProcessor
from pyspark.sql.types import LongType, StringType, StructField, StructType, TimestampType

from chandy.state import ArrowProcessor, ArrowResult
from chandy.state.errors import DefinitionError, OutputTypeError, ProcessorError
from chandy.state.format import keyspace, parts
from chandy.state.format.keys import KeyCodec
from chandy.state.format.rows import SLICE
from chandy.state.operators import chunks, engine, expiry_index
from chandy.state.operators.arrow_processor import arrow_spec
from chandy.state.operators.pickling import Pickled
from chandy.state.operators.time_mode import TimeMode
from chandy.state.processors import processor as module
from chandy.state.rpc.messages import BatchTimes

from ..pipeline import KEY, QUERY, RUN, SHARDS, OneOperator

COUNT = StructType().add("count", LongType())
NOTE = StructType().add("note", StringType())
CALLS = []
"""What processors were called for. Tasks unpickle processors: what is defined in a test is pickled by value, with
a list of its own, so it reaches this one through ``Base``."""


@pytest.fixture(autouse=True)
def no_calls():
    CALLS.clear()


class Base(StatefulProcessor):
    calls = CALLS

    def init(self, handle):
        self.handle = handle
        self.count = handle.getValueState("count", COUNT)
        self.total = handle.getValueState("total", COUNT)

    def handleInputRows(self, key, rows, timerValues):
        return iter([])

    def close(self):
        self.calls.append("close")


class TwoTotals(Base):
    """Counts rows in one state, adds them up in another."""

    def handleInputRows(self, key, rows, timerValues):
        (count,) = self.count.get() or (0,)
        (total,) = self.total.get() or (0,)
        values = [row.n for row in rows]
        self.count.update((count + len(values),))
        self.total.update((total + sum(values),))
        yield Row(k=key[0], n=self.count.get()[0] * 1000 + self.total.get()[0])


def keys_written(pipeline):
    return {key for _, key in pipeline.shards.written}


@pytest.fixture
def pipeline() -> OneOperator:
    return OneOperator()


def test_two_states_of_each_key_go_on_from_batch_to_batch(pipeline: OneOperator):
    pipeline.batch(TwoTotals(), [("a", 1), ("bb", 5), ("a", 2)])
    assert pipeline.batch(TwoTotals(), [("bb", 1), ("ccc", 9)]) == [
        {"k": "bb", "n": 2006},
        {"k": "ccc", "n": 1009},
    ]


def test_each_key_is_handled_once_with_all_its_rows_in_order_of_arrival():
    class Sees(Base):
        def handleInputRows(self, key, rows, timerValues):
            self.calls.append((key, [row.n for row in rows]))
            return iter([])

    OneOperator().batch(Sees(), [("b", 1), ("a", 2), ("b", 3), ("a", 4), ("b", 5)])
    assert sorted(call for call in CALLS if call != "close") == [(("a",), [2, 4]), (("b",), [1, 3, 5])]


def test_a_processor_is_opened_and_closed_once_also_without_rows():
    class Calls(Base):
        def init(self, handle):
            super().init(handle)
            self.calls.append("init")

        def handleInputRows(self, key, rows, timerValues):
            self.calls.append("rows")
            return iter([])

    pipeline = OneOperator()
    spec = pipeline.spec(Calls())
    CALLS.clear()
    pipeline.batch(spec, [("a", 1), ("b", 1)])
    assert CALLS == ["init", "rows", "rows", "close"]
    CALLS.clear()
    assert pipeline.batch(spec) == []
    assert CALLS == ["init", "close"]
    assert pipeline.shards.written == []


@pytest.mark.parametrize(
    ("mode", "told"),
    [(TimeMode.NONE, (-1, -1)), (TimeMode.PROCESSING, (50, 40)), (TimeMode.EVENT, (50, 40))],
)
def test_a_processor_is_told_the_times_of_its_time_mode(mode, told):
    class Asks(Base):
        def handleInputRows(self, key, rows, timerValues):
            self.calls.append(
                (timerValues.getCurrentProcessingTimeInMs(), timerValues.getCurrentWatermarkInMs())
            )
            return iter([])

    OneOperator(mode).batch(Asks(), [("a", 1)], BatchTimes(50, 40, 30))
    assert CALLS[-2] == told


@pytest.mark.parametrize("rows", [1, SLICE + 1])
def test_a_row_that_is_late_for_later_operators_is_refused(rows):
    class Moves(Base):
        def handleInputRows(self, key, rows, timerValues):
            for row in rows:
                yield Row(k=key[0], t=row.t if row.n else row.t - datetime.timedelta(seconds=1))

    marked = StructField("t", TimestampType(), True, {"spark.watermarkDelayMs": 0})
    schema = StructType().add("k", "string").add("n", "long").add(marked)
    output = StructType().add("k", "string").add("t", "timestamp")
    pipeline = OneOperator(TimeMode.EVENT, schema=schema, output=output, event_time_column="t")
    # The watermark is at 4 s, and that of the batch before at 3 s: only what is before that is late.
    times, moment = BatchTimes(9000, 4000, 3000), datetime.datetime(1970, 1, 1, 0, 0, 4, tzinfo=datetime.UTC)
    assert len(pipeline.batch(Moves(), [("a", 1, moment)] * rows, times)) == rows
    with pytest.raises(
        OutputTypeError, match=r"output column 't': .* after the watermark, 1970-01-01 00:00:03"
    ):
        pipeline.batch(Moves(), [*[("a", 1, moment)] * (rows - 1), ("a", 0, moment)], times)


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

    pipeline = OneOperator()
    pipeline.batch(TwoTotals(), [(key, 0) for key in "abcde"])
    pipeline.batch(Writes(), [("a", 0), ("b", 1), ("c", 2), ("d", 3), ("e", 4)])
    prefix, codec = keyspace.value_prefix("count"), KeyCodec(KEY)
    assert keys_written(pipeline) == {prefix + codec.encode(("b",)), prefix + codec.encode(("c",))}
    left = {key for _, key in pipeline.shards.held if key.startswith(prefix)}
    assert left == {prefix + codec.encode((key,)) for key in "abde"}


def test_states_of_many_keys_are_fetched_in_one_call(monkeypatch):
    monkeypatch.setattr(chunks, "CHUNK", 3)
    fetches = []
    fetch = engine.TaskState.fetch
    pipeline = OneOperator()
    begin = pipeline.shards.begin

    def watched(*args):
        access = begin(*args)
        inner = access.fetch
        access.fetch = lambda shards, keys: fetches.append(len(keys)) or inner(shards, keys)
        return access

    monkeypatch.setattr(pipeline.shards, "begin", watched)
    assert fetch is engine.TaskState.fetch
    rows = pipeline.batch(TwoTotals(), [(f"k{at}", at) for at in range(7)])
    assert fetches == [3, 3, 3, 3, 1, 1], "two states of at most three keys at a time"
    assert sorted(row["n"] for row in rows) == [1000 + at for at in range(7)]


def test_output_leaves_in_slices_while_the_processor_runs():
    class Many(Base):
        def handleInputRows(self, key, rows, timerValues):
            for n in range(2 * SLICE + 5):
                self.count.update((n,))
                yield (key[0], n)

    pipeline = OneOperator()
    rows = pipeline.batch(Many(), [("a", 1), ("b", 1)])
    assert [(row["k"], row["n"]) for row in rows] == [(key, n) for key in "ab" for n in range(2 * SLICE + 5)]
    assert pipeline.sizes == [SLICE] * 4 + [10]


class FailsAtOnce(Base):
    def handleInputRows(self, key, rows, timerValues):
        yield ("fine", 1)
        raise KeyError("user's own")


def test_a_processor_that_raises_is_told_by_operator_key_batch_and_its_own_traceback_and_is_closed(
    pipeline: OneOperator,
):
    pipeline.number = 7
    spec = pipeline.spec(FailsAtOnce())
    CALLS.clear()
    with pytest.raises(ProcessorError) as failed:
        pipeline.batch(spec, [("a", 1)])
    error = failed.value
    assert (error.operator, error.batch, error.where) == ("delays", 7, "key ('a',)")
    assert error.__cause__ is None
    assert error.__suppress_context__
    assert 'raise KeyError("user\'s own")' in error.traceback
    assert error.traceback.count("Traceback") == str(error).count("Traceback") == 1
    line = FailsAtOnce.handleInputRows.__code__.co_firstlineno + 2
    assert error.summary == f'KeyError: "user\'s own", at {__file__}:{line} in handleInputRows'
    assert str(error).startswith(f"{error.summary}\nkey ('a',), batch 7, operator 'delays'")
    assert module.__file__ not in error.traceback, "frames of the engine would hide the user's"
    assert CALLS == ["close"]
    assert pipeline.shards.held == {}


def test_a_value_of_a_wrong_type_is_told_with_the_line_that_gave_it():
    class Wrong(Base):
        def handleInputRows(self, key, rows, timerValues):
            self.count.update(("many",))
            return iter([])

    with pytest.raises(ProcessorError) as failed:
        OneOperator().batch(Wrong(), [("a", 1)])
    assert 'self.count.update(("many",))' in failed.value.traceback
    line = Wrong.handleInputRows.__code__.co_firstlineno + 1
    assert failed.value.summary.endswith(f"at {__file__}:{line} in handleInputRows")
    assert "field 'count' of state 'count' of operator 'delays': expected bigint, found 'many' (str)" in str(
        failed.value
    )


class Fragile(TwoTotals):
    """Raises where it is told to, but not on the driver."""

    def __init__(self, *where):
        self.where = where
        self.turns = 0

    def init(self, handle):
        super().init(handle)
        if "init" in self.where and handle.getQueryInfo().getBatchId() >= 0:
            raise OSError("no init")

    def handleInputRows(self, key, rows, timerValues):
        self.turns += 1
        if "rows" in self.where:
            raise OSError("no rows")
        return super().handleInputRows(key, rows, timerValues)

    def close(self):
        super().close()
        if "close" in self.where and self.turns:
            raise OSError("no close")


@pytest.mark.parametrize("method", ["init", "close"])
def test_init_and_close_that_raise_are_told_by_name(method):
    with pytest.raises(ProcessorError, match=f"no {method}") as failed:
        OneOperator().batch(Fragile(method), [("a", 1)])
    assert failed.value.where == method


def test_what_close_raises_after_a_failure_does_not_hide_the_failure():
    with pytest.raises(ProcessorError, match="no rows"):
        OneOperator().batch(Fragile("rows", "close"), [("a", 1)])


def test_a_processor_that_returns_none_is_told_what_to_return():
    class Forgets(Base):
        def handleInputRows(self, key, rows, timerValues):
            return None

    with pytest.raises(ProcessorError, match="must return an iterator"):
        OneOperator().batch(Forgets(), [("a", 1)])


def test_a_processor_that_declares_other_states_than_on_the_driver_is_refused():
    class Moody(TwoTotals):
        def init(self, handle):
            self.count = handle.getValueState("count", COUNT)
            if handle.getQueryInfo().getBatchId() < 0:
                handle.getListState("total", COUNT)

    pipeline = OneOperator()
    spec = pipeline.spec(Moody())
    CALLS.clear()
    with pytest.raises(DefinitionError, match="declares other states in a task"):
        pipeline.batch(spec, [("a", 1)])
    assert CALLS == ["close"]


def test_what_is_no_processor_is_refused_on_the_driver():
    with pytest.raises(DefinitionError, match="found the class TwoTotals"):
        OneOperator().spec(TwoTotals)
    unpicklable = TwoTotals()
    unpicklable.lock = iter(lambda: 0, 1).__next__
    unpicklable.file = (at for at in ())
    with pytest.raises(DefinitionError, match=r"of operator 'delays' .* can be pickled"):
        OneOperator().spec(unpicklable)


class NotLoaded:
    """As a broadcast variable, which no process but a task's can load."""

    def __reduce__(self):
        return int, ("not a number",)


@pytest.mark.parametrize("kind", [StatefulProcessor, ArrowProcessor])
def test_a_processor_that_cannot_be_loaded_again_is_refused_on_the_driver(kind):
    broken = TwoTotals() if kind is StatefulProcessor else Empty()
    broken.table = NotLoaded()
    with pytest.raises(
        DefinitionError, match=r"of operator 'delays' .* loaded again .* found ValueError: invalid"
    ):
        if kind is StatefulProcessor:
            OneOperator().spec(broken)
        else:
            Pickled.of(arrow_spec(KEY, uid="delays", processor=broken, output=KEY), "delays")


class Empty(ArrowProcessor):
    def process(self, given):
        return ArrowResult()


def test_a_processor_knows_its_query_its_run_and_its_batch():
    class Asks(Base):
        def handleInputRows(self, key, rows, timerValues):
            info = self.handle.getQueryInfo()
            self.calls.append((info.getQueryId(), info.getRunId(), info.getBatchId()))
            return iter([])

    pipeline = OneOperator()
    pipeline.number = 4
    pipeline.batch(Asks(), [("a", 1)])
    assert CALLS[-2] == (uuid.UUID(QUERY), uuid.UUID(RUN), 4)


# --- states that were dropped -------------------------------------------------------------------------------


class Notes(Base):
    def init(self, handle):
        self.notes = handle.getListState("notes", NOTE)
        self.kept = handle.getValueState("notes2", NOTE)

    def handleInputRows(self, key, rows, timerValues):
        self.notes.appendList([("x" * 30,)] * 500)
        self.kept.update(("kept",))
        return iter([])


class NoNotes(Base):
    def init(self, handle):
        self.kept = handle.getValueState("notes2", NOTE)
        handle.deleteIfExists("notes")

    def handleInputRows(self, key, rows, timerValues):
        yield Row(k=self.kept.get()[0], n=1)


def test_a_dropped_state_is_deleted_with_all_its_parts_and_nothing_else(pipeline: OneOperator):
    pipeline.batch(Notes(), [("a", 1), ("bb", 1)])
    assert len(pipeline.shards.held) > 8
    spec = attrs.evolve(pipeline.spec(NoNotes()), deleting={"notes": pipeline.number})
    pipeline.batch(spec)
    prefix = keyspace.value_prefix("notes2")
    assert [key[: len(prefix)] for _, key in pipeline.shards.held] == [prefix] * 2
    assert pipeline.batch(NoNotes(), [("a", 1)]) == [{"k": "kept", "n": 1}]


# --- what large collections cost ----------------------------------------------------------------------------


class Grows(Base):
    """A list and a map of which each batch touches one element."""

    def init(self, handle):
        self.list = handle.getListState("list", NOTE)
        self.map = handle.getMapState("map", COUNT, NOTE)

    def handleInputRows(self, key, rows, timerValues):
        for row in rows:
            if row.n < 0:
                assert self.map.getValue((-row.n,)) == ("y" * 40,)
                self.map.updateValue((-row.n,), ("z" * 40,))
                self.list.appendValue(("z" * 40,))
            else:
                self.map.updateValue((row.n,), ("y" * 40,))
                self.list.appendValue(("y" * 40,))
        return iter([])


def test_one_element_of_a_large_list_or_map_is_read_and_written_with_its_part_alone(
    pipeline: OneOperator, monkeypatch
):
    pipeline.batch(Grows(), [("a", n) for n in range(2000)])
    large = len(pipeline.shards.held)
    assert large > 50
    assert max(map(len, pipeline.shards.held.values())) < 4 * parts.SEGMENT
    fetched = []
    fetch = engine.TaskState.fetch
    monkeypatch.setattr(
        engine.TaskState, "fetch", lambda self, s, k: fetched.extend(k.to_pylist()) or fetch(self, s, k)
    )
    pipeline.batch(Grows(), [("a", -77)])
    assert len(fetched) == 1, "the headers came with the chunk; of the list nothing more is needed"
    assert fetched[0].startswith(keyspace.part_prefix("map"))
    # The list's tail is in its header; the map's header says what it said before.
    assert len(pipeline.shards.written) == 2
    assert fetched[0] in keys_written(pipeline)


class Shrinks(Grows):
    def handleInputRows(self, key, rows, timerValues):
        for (n,) in list(self.map.keys()):
            if n >= 5:
                self.map.removeKey((n,))
        self.list.clear()
        return iter([])


def test_a_map_that_becomes_small_again_is_one_value_again(pipeline: OneOperator):
    pipeline.batch(Grows(), [("a", n) for n in range(2000)])
    pipeline.batch(Shrinks(), [("a", 0)])
    assert len(pipeline.shards.held) == 1
    pipeline.batch(Grows(), [("a", -3)])
    assert len(pipeline.shards.held) == 2


# --- time to live -------------------------------------------------------------------------------------------


class Expires(Base):
    def init(self, handle):
        self.value = handle.getValueState("value", COUNT, 800)
        self.list = handle.getListState("list", COUNT, 800)
        self.map = handle.getMapState("map", COUNT, COUNT, 800)

    def handleInputRows(self, key, rows, timerValues):
        now = timerValues.getCurrentProcessingTimeInMs()
        told = (self.value.get(), list(self.list.get()), list(self.map.keys()))
        self.value.update((now,))
        self.list.appendValue((now,))
        self.map.updateValue((now,), (now,))
        self.calls.append(told)
        return iter([])


class Forever(Expires):
    """The same without a time to live."""

    def init(self, handle):
        self.value = handle.getValueState("value", COUNT)
        self.list = handle.getListState("list", COUNT)
        self.map = handle.getMapState("map", COUNT, COUNT)


def index(pipeline):
    return [key for _, key in pipeline.shards.held if key.startswith(keyspace.EXPIRY)]


def test_a_value_expires_at_its_expiry_and_not_a_moment_before():
    pipeline = OneOperator(TimeMode.PROCESSING)
    for now in (1000, 1799, 1800, 2599):
        pipeline.batch(Expires(), [("a", 1)], BatchTimes(now))
    told = [call for call in CALLS if call != "close"]
    assert told == [
        (None, [], []),
        ((1000,), [(1000,)], [(1000,)]),
        ((1799,), [(1799,)], [(1799,)]),
        ((1800,), [(1800,)], [(1800,)]),
    ]


def test_a_value_that_is_updated_often_has_one_entry_in_the_index_and_is_not_removed_while_it_lives():
    pipeline = OneOperator(TimeMode.PROCESSING)
    spec, writes = pipeline.spec(Expires()), 0
    for now in range(10_000, 11_200, 10):
        pipeline.batch(spec, [("a", 1)], BatchTimes(now))
        writes += any(key.startswith(keyspace.EXPIRY) for key in keys_written(pipeline))
    assert len(index(pipeline)) == 3
    assert writes <= 120 * 10 / 100
    assert any(key.startswith(keyspace.value_prefix("list")) for _, key in pipeline.shards.held)
    pipeline.batch(Expires(), [], BatchTimes(11_200 + 900))
    assert pipeline.shards.held == {}


def test_the_index_lets_go_of_a_key_that_was_cleared_and_follows_a_change_of_the_time_to_live():
    class Longer(Expires):
        def init(self, handle):
            self.value = handle.getValueState("value", COUNT, 100_000)
            self.list = handle.getListState("list", COUNT, 100_000)
            self.map = handle.getMapState("map", COUNT, COUNT, 100_000)

    class Clears(Expires):
        def handleInputRows(self, key, rows, timerValues):
            for state in (self.value, self.list, self.map):
                state.clear()
            return iter([])

    pipeline = OneOperator(TimeMode.PROCESSING)
    pipeline.batch(Expires(), [("a", 1), ("b", 1)], BatchTimes(1000))
    pipeline.batch(Clears(), [("a", 1)], BatchTimes(1001))
    pipeline.batch(Longer(), [("b", 1)], BatchTimes(1002))
    pipeline.batch(Longer(), [], BatchTimes(5000))
    codec = KeyCodec(KEY)
    assert {key[-len(codec.encode(("b",))) :] for _, key in pipeline.shards.held} == {codec.encode(("b",))}
    pipeline.batch(Longer(), [("b", 1)], BatchTimes(5001))
    assert CALLS[-2] == ((1002,), [(1002,)], [(1002,)]), (
        "what was written later lives longer, in one list and map"
    )
    pipeline.batch(Longer(), [], BatchTimes(300_000))
    assert pipeline.shards.held == {}


def test_what_never_expires_lives_beside_what_does_in_one_list_and_map():
    pipeline = OneOperator(TimeMode.PROCESSING)
    pipeline.batch(Forever(), [("a", 1)], BatchTimes(1000))
    for now in (1100, 1200, 2500):
        pipeline.batch(Expires(), [("a", 1)], BatchTimes(now))
    pipeline.batch(Expires(), [], BatchTimes(9000))
    assert index(pipeline) == []
    left = {key: len(value) for key, value in pipeline.shards.held.items()}
    assert len(left) == 2
    pipeline.batch(Expires(), [("a", 1)], BatchTimes(9001))
    assert CALLS[-2] == (None, [(1000,)], [(1000,)])
    pipeline.batch(Expires(), [], BatchTimes(99_000))
    assert {key: len(value) for key, value in pipeline.shards.held.items()} == left


class Removes(Expires):
    def handleInputRows(self, key, rows, timerValues):
        for (n,) in list(self.map.keys()):
            if n > 1000:
                self.map.removeKey((n,))
        return iter([])


def test_a_map_whose_last_entry_was_removed_before_its_time_is_looked_at_again_later():
    pipeline = OneOperator(TimeMode.PROCESSING)
    pipeline.batch(Forever(), [("a", 1)], BatchTimes(500))
    for now in (1000, 1700):
        pipeline.batch(Expires(), [("a", 1)], BatchTimes(now))
    pipeline.batch(Removes(), [("a", 1)], BatchTimes(1710))
    pipeline.batch(Expires(), [], BatchTimes(1900))
    pipeline.batch(Expires(), [("a", 1)], BatchTimes(1950))
    before = max(len(value) for (_, key), value in pipeline.shards.held.items() if key[:4] == b"\xa3map")
    pipeline.batch(Expires(), [], BatchTimes(5000))
    after = max(len(value) for (_, key), value in pipeline.shards.held.items() if key[:4] == b"\xa3map")
    assert after < before
    assert index(pipeline) == []


def test_what_expires_behind_many_elements_that_never_do_is_looked_at_in_its_time(monkeypatch):
    pipeline = OneOperator(TimeMode.PROCESSING)
    pipeline.batch(Forever(), [("a", 1)], BatchTimes(1000))
    monkeypatch.setattr(parts, "SEGMENT", 10)
    for now in (1100, 1200, 1700):
        pipeline.batch(Expires(), [("a", 1)], BatchTimes(now))
    pipeline.batch(Expires(), [], BatchTimes(2100))
    assert sum(b"list" in key for key in index(pipeline)) == 1, "its last element lives"
    pipeline.batch(Expires(), [], BatchTimes(2600))
    assert index(pipeline) == []


def test_what_was_written_with_a_time_to_live_expires_and_goes_when_the_processor_has_none_any_more():
    pipeline = OneOperator(TimeMode.PROCESSING)
    pipeline.batch(Expires(), [("a", 1), ("b", 1)], BatchTimes(1000))
    pipeline.batch(Forever(), [("b", 1)], BatchTimes(1500))
    assert CALLS[-2] == ((1000,), [(1000,)], [(1000,)])
    pipeline.batch(Forever(), [("b", 1)], BatchTimes(10_000))
    assert CALLS[-2] == ((1500,), [(1500,)], [(1500,)])
    assert index(pipeline) == []
    b = KeyCodec(KEY).encode(("b",))
    assert {key[-len(b) :] for _, key in pipeline.shards.held} == {b}


def test_times_in_the_index_are_never_before_the_expiry_and_at_most_an_eighth_late():
    for ttl in (1, 7, 8, 1000, 86_400_000):
        for time in (0, 1, 999, 1_795_244_131_844):
            assert 0 <= expiry_index.rounded(time, ttl) - time <= ttl // 8
    assert SHARDS == 4
