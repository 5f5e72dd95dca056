"""Dead letters: a key on which the user's code fails is given up, and all else is as if it had not been there."""
# The methods have PySpark's names.
# ruff: noqa: N802, N803

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyspark.sql import Row
from pyspark.sql.streaming import StatefulProcessor
from pyspark.sql.types import ArrayType, LongType, StructType

from chandy.state import ArrowProcessor, ArrowResult, DeadLetters
from chandy.state.errors import (
    DefinitionError,
    HostLostError,
    OutputTypeError,
    ProcessorError,
    StateTooLargeError,
    TooManyDeadLettersError,
)
from chandy.state.format import keyspace
from chandy.state.format.arrow import BYTES
from chandy.state.format.keys import KeyCodec
from chandy.state.format.packing import Packing
from chandy.state.format.rows import RowWriter
from chandy.state.format.values import StateName
from chandy.state.operators import dead_letters
from chandy.state.operators.dataframe import SHARD
from chandy.state.operators.dead_letters import GivenUpKey, letters_of
from chandy.state.operators.entry_sizes import EntrySizes
from chandy.state.operators.task_state import TaskState
from chandy.state.rpc import wire
from chandy.state.rpc.access import Entries
from chandy.state.testing import OperatorTester
from chandy.state.testing.memory import MemoryAccess, MemoryShards
from tests.effort import trying

INPUT = StructType().add("k", "string").add("n", "long").add("fails", "string")
OUTPUT = StructType().add("k", "string").add("total", "long")
NUMBER = StructType().add("n", "long")
HOUR = 3_600_000
LETTERS = DeadLetters()


class Fails(StatefulProcessor):
    """Totals by key, with every kind of state. Rows say how the call for their key fails; timers fail by their key."""

    def init(self, handle: Any) -> None:
        self.handle = handle
        self.total = handle.getValueState("total", NUMBER)
        self.seen = handle.getListState("seen", NUMBER)
        self.last = handle.getMapState("last", NUMBER, NUMBER)

    def handleInputRows(self, key: Any, rows: Iterator[Row], timerValues: Any) -> Iterator[Row]:
        given = list(rows)
        (total,) = self.total.get() or (0,)
        total += sum(row.n for row in given)
        self.total.update((total,))
        for row in given:
            self.seen.appendValue((row.n,))
            self.last.updateValue((row.n % 3,), (row.n,))
        self.handle.registerTimer(timerValues.getCurrentProcessingTimeInMs() + given[0].n % 3)
        yield Row(k=key[0], total=total)
        for row in given:
            if row.fails == "raises":
                raise ValueError(f"cannot take {row.n}")
            if row.fails == "gives nonsense":
                yield Row(k=key[0], total="much")
            if row.fails == "keeps nonsense":
                self.total.update(("much",))

    def handleExpiredTimer(self, key: Any, timerValues: Any, expiredTimerInfo: Any) -> Iterator[Row]:
        self.seen.clear()
        self.handle.registerTimer(timerValues.getCurrentProcessingTimeInMs() + HOUR)
        yield Row(k=key[0], total=-1)
        if key[0].startswith("late"):
            raise ValueError("too late")


class Skips(Fails):
    """Does not even begin with what fails."""

    def handleExpiredTimer(self, key: Any, timerValues: Any, expiredTimerInfo: Any) -> Iterator[Row]:
        if not key[0].startswith("late"):
            yield from super().handleExpiredTimer(key, timerValues, expiredTimerInfo)


class FailsInPandas(Fails):
    def handleInputRows(self, key: Any, rows: Any, timerValues: Any) -> Any:
        given = [Row(*row) for frame in rows for row in frame.itertuples(index=False)]
        named = (Row(k=row[0], n=row[1], fails=row[2]) for row in given)
        for row in super().handleInputRows(key, named, timerValues):
            yield pd.DataFrame([row.asDict()])

    def handleExpiredTimer(self, key: Any, timerValues: Any, expiredTimerInfo: Any) -> Any:
        for row in super().handleExpiredTimer(key, timerValues, expiredTimerInfo):
            yield pd.DataFrame([row.asDict()])


class SkipsInPandas(FailsInPandas):
    def handleExpiredTimer(self, key: Any, timerValues: Any, expiredTimerInfo: Any) -> Any:
        if not key[0].startswith("late"):
            yield from super().handleExpiredTimer(key, timerValues, expiredTimerInfo)


class ArrowFails(ArrowProcessor):
    states = {"total": NUMBER, "count": NUMBER}
    ttl_ms = {"total": 5}

    def process(self, given: Any) -> ArrowResult:
        fails = set(given.rows["fails"].to_pylist())
        if "raises" in fails:
            raise ValueError("cannot take it")
        sums = np.add.reduceat(given.rows["n"].to_numpy(), given.bounds[:-1])
        before = pc.fill_null(pc.struct_field(given.states["total"], "n"), 0)
        total = pc.add(before, pa.array(sums))
        output = given.keys.append_column("total", total)
        if "gives nonsense" in fails:
            output = output.rename_columns(["k", "much"])
        count = pa.array(["much"] * len(total)) if "keeps nonsense" in fails else total
        states = {
            name: pa.StructArray.from_arrays([n], ["n"]) for name, n in (("total", total), ("count", count))
        }
        return ArrowResult(output, states)


def made_of(kind: str, on_error: Any, skips: bool = False) -> OperatorTester:
    if kind == "arrow":
        return OperatorTester.of_arrow(ArrowFails(), key=["k"], input=INPUT, output=OUTPUT, on_error=on_error)
    processor = {
        ("rows", False): Fails,
        ("rows", True): Skips,
        ("pandas", False): FailsInPandas,
        ("pandas", True): SkipsInPandas,
    }[kind, skips]
    return OperatorTester.of_processor(
        processor(),
        key=["k"],
        input=INPUT,
        output=OUTPUT,
        time_mode="ProcessingTime",
        pandas=kind == "pandas",
        on_error=on_error,
    )


def stored(of: OperatorTester) -> dict[tuple[int, bytes], bytes]:
    """What is stored, without the letters."""
    held = of.checkpoint().shards.held
    return {place: value for place, value in held.items() if not place[1].startswith(keyspace.DEAD_LETTERS)}


ROWS = st.lists(
    st.tuples(
        st.sampled_from([*"abcdefgh", "late1", "late2"]),
        st.integers(0, 50),
        st.sampled_from([None] * 8 + ["raises", "gives nonsense", "keeps nonsense"]),
    ),
    max_size=25,
)


@pytest.mark.parametrize("kind", ["rows", "pandas", "arrow"])
@trying(8)
@given(st.data())
def test_all_else_is_as_if_what_fails_had_not_been_there(kind: str, data: st.DataObject) -> None:
    tested, expected = made_of(kind, LETTERS), made_of(kind, "fail", skips=True)
    given_up: list[tuple[int, str]] = []
    for number, rows in enumerate(data.draw(st.lists(ROWS, min_size=1, max_size=4))):
        failing = {key for key, _, fails in rows if fails}
        given_up += [(number, key) for key in failing]
        good = [row for row in rows if row[0] not in failing]
        found, wanted = tested.batch(rows, time=2 * number), expected.batch(good, time=2 * number)
        assert sorted(found) == sorted(wanted)
        assert stored(tested) == stored(expected)
    for_rows = [(one.batch, one.key[0]) for one in tested.dead_letters() if one.rows]
    assert sorted(for_rows) == sorted(given_up)


def test_a_letter_has_the_rows_the_exception_and_where_it_was_raised() -> None:
    tested = made_of("rows", LETTERS)
    rows = [("a", 1, None), ("b", 2, None), ("a", 3, "raises"), ("c", 4, None), ("d", 5, None)]
    assert len(tested.batch(rows, time=1000)) == 3
    (letter,) = tested.dead_letters()
    assert (letter.key, letter.time, letter.batch) == (("a",), 1000, 0)
    assert letter.rows == [Row(k="a", n=1, fails=None), Row(k="a", n=3, fails="raises")]
    assert letter.place == "key ('a',)"
    assert letter.error.startswith("ValueError: cannot take 3, at ")
    assert "handleInputRows" in letter.error
    assert "Traceback" in letter.traceback
    assert letter.traceback.count("cannot take 3") == letter.traceback.count("Traceback") == 1


def text(n: int) -> pa.Array:
    """A text that is not UTF-8, and then empty ones."""
    offsets = np.array([0] + [2] * n, np.int32)
    return pa.Array.from_buffers(pa.string(), n, [None, pa.py_buffer(offsets), pa.py_buffer(b"\xff\xfe")])


def numbers(first: int, integers: pa.DataType, dtype: pa.DataType) -> Any:
    return lambda n: pa.array([first] + [0] * (n - 1), integers).cast(dtype)


UNREADABLE = {
    "text": text,
    "date of the year 10000": numbers(2932897, pa.int32(), pa.date32()),
    "timestamp of the year 10000": numbers(253402300800_000000, pa.int64(), pa.timestamp("us", "UTC")),
    "timestamp of the year 9000": numbers(221845392000_000000, pa.int64(), pa.timestamp("us", "UTC")),
}


@pytest.mark.parametrize("what", UNREADABLE)
@pytest.mark.parametrize("kind", ["rows", "pandas"])
@pytest.mark.parametrize("column", ["key", "value"])
def test_a_row_or_key_that_is_no_value_of_python_is_given_up(what: str, kind: str, column: str) -> None:
    made = UNREADABLE[what]
    schema = StructType().add("k", what.split()[0] if what != "text" else "string").add("n", "long")
    if column == "value":
        schema = StructType([schema["n"], schema["k"]])
    first = schema.names[0]
    rows = pa.table({"k": made(6), "n": pa.array([-1, *range(5)])}).select(schema.names)
    shards = pa.array([0] * 6, pa.int32())

    class Echo(StatefulProcessor):
        def init(self, handle: Any) -> None:
            self.seen = handle.getValueState("seen", NUMBER)

        def handleInputRows(self, key: Any, rows: Any, timerValues: Any) -> Any:
            given = [row for frame in rows for row in frame.n] if kind == "pandas" else [r.n for r in rows]
            self.seen.update((len(given),))
            yield Row(n=sum(given)) if kind == "rows" else pd.DataFrame({"n": [sum(given)]})

    tested = OperatorTester.of_processor(
        Echo(), key=[first], input=schema, output=NUMBER, pandas=kind == "pandas", on_error=LETTERS, shards=1
    )
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(tested, "_table", lambda _: rows.append_column(SHARD, shards))
        found = tested.batch()
    letters, taken = tested.dead_letters(), kind == "rows" and "9000" in what
    assert [len(letter.rows) for letter in letters] == ([] if taken else [1])
    good = [10] if column == "key" else list(range(5))
    assert sorted(row.n for row in found) == ([-1, *good] if taken else good)


def test_a_new_arrow_state_that_does_not_fit_costs_its_key() -> None:
    class Nested(ArrowProcessor):
        states = {"s": StructType().add("v", ArrayType(LongType(), False))}

        def process(self, given: Any) -> ArrowResult:
            lists = [[1, None] if key == "bad" else [1] for key in given.keys["k"].to_pylist()]
            state = pa.StructArray.from_arrays([pa.array(lists, pa.list_(pa.int64()))], ["v"])
            return ArrowResult(given.keys, {"s": state})

    keys = StructType().add("k", "string")
    tested = OperatorTester.of_arrow(Nested(), key=["k"], input=keys, output=keys, on_error=LETTERS)
    assert sorted(tested.batch([("a",), ("bad",), ("c",)])) == [Row(k="a"), Row(k="c")]
    assert [letter.key for letter in tested.dead_letters()] == [("bad",)]


def test_an_exhausted_machine_is_nobodys_fault(monkeypatch: pytest.MonkeyPatch) -> None:
    tested = made_of("rows", LETTERS)

    def exhausted(*_: Any) -> Any:
        raise pa.ArrowMemoryError("malloc failed")

    monkeypatch.setattr(RowWriter, "batch", exhausted)
    with pytest.raises(MemoryError):
        tested.batch([("a", 1, None)])


TEXT = st.lists(st.characters() | st.sampled_from("\0\n\ud800\udcff")).map("".join)
"""Whatever Python takes for a text, with halves of surrogate pairs and zeros."""


class Mute(Exception):
    def __str__(self) -> str:
        raise RuntimeError("no text")

    __repr__ = __str__


class Numeric(Exception):
    def __str__(self) -> str:
        return 17  # type: ignore[return-value]


def with_note(error: Exception, note: str) -> Exception:
    error.add_note(note)
    return error


def caused(error: Exception, cause: Exception) -> Exception:
    error.__cause__ = cause
    return error


SINGLE = st.builds(
    lambda kind, text: kind(text), st.sampled_from([ValueError, SyntaxError, OSError, Mute, Numeric]), TEXT
)
EXCEPTIONS = st.recursive(
    SINGLE,
    lambda inner: (
        st.builds(ExceptionGroup, TEXT, st.lists(inner, min_size=1, max_size=2))
        | st.builds(with_note, inner, TEXT)
        | st.builds(caused, inner, inner)
    ),
    max_leaves=4,
)


class Raises(StatefulProcessor):
    def init(self, handle: Any) -> None:
        pass

    def handleInputRows(self, key: Any, rows: Any, timerValues: Any) -> Any:
        if key[0] == "b":
            raise self.error
        yield Row(k=key[0], total=1)


def raises(error: Exception) -> Any:
    # No pickle: whatever it raises is to come out as it is.
    Raises.error = error  # type: ignore[attr-defined]
    return Raises()


@trying(20)
@given(EXCEPTIONS)
def test_whatever_is_raised_and_says_whatever_costs_its_key_alone(error: Exception) -> None:
    tested = OperatorTester.of_processor(
        raises(error), key=["k"], input=INPUT, output=OUTPUT, on_error=LETTERS, shards=1
    )
    assert len(tested.batch([(key, 1, None) for key in "abc"])) == 2
    (letter,) = tested.dead_letters()
    assert (letter.key, letter.place) == (("b",), "key ('b',)")
    assert letter.error.startswith(type(error).__name__)
    assert "\0" not in letter.error + letter.traceback


@trying(20)
@given(TEXT, TEXT)
def test_any_text_of_an_error_can_be_stored(part: str, found: str) -> None:
    error = OutputTypeError("op", part, "a number", found)
    (letter,) = letters_of(GivenUpKey(0, b"k"), error, found, 1)
    _, _, value = letter.stored(0, 0)
    place, summary, trace, *_ = dead_letters.packing().unpack_row(value)
    assert summary == trace.partition("\n")[0]
    if found.isprintable() and part.isprintable():
        assert (place, trace) == (found, str(error))


def test_a_timer_that_fails_is_given_up_and_does_not_fire_again() -> None:
    tested = made_of("rows", LETTERS)
    assert tested.batch([("late", 0, None)], time=10) == [Row(k="late", total=0)]
    (letter,) = tested.dead_letters()
    assert letter.rows == []
    assert letter.place == "handleExpiredTimer of key ('late',)"
    assert tested.timers("late") == []
    assert tested.state("seen", "late") == [Row(n=0)], "what the handler has changed is forgotten"
    assert tested.batch(time=20) == []
    assert len(tested.dead_letters()) == 1


def test_a_batch_that_runs_again_has_the_same_letters() -> None:
    tested = made_of("rows", LETTERS)
    tested.batch([("a", 1, "raises")], time=5)
    point = tested.checkpoint()
    tested.batch([("b", 2, "raises"), ("c", 3, None)], time=6)
    once = tested.dead_letters()
    tested.restore(point)
    assert [one.key for one in tested.dead_letters()] == [("a",)]
    tested.batch([("b", 2, "raises"), ("c", 3, None)], time=6)
    assert [attr.key for attr in tested.dead_letters()] == [("a",), ("b",)]
    assert tested.dead_letters() == once


def test_letters_of_batches_with_one_time_stand_side_by_side() -> None:
    tested = made_of("rows", LETTERS)
    for _ in range(3):
        tested.batch([("a", 1, "raises")], time=5)
    assert [one.batch for one in tested.dead_letters()] == [0, 1, 2]


def test_a_key_with_many_rows_has_several_letters() -> None:
    tested = made_of("rows", LETTERS)
    tested.batch([("a", n, "raises" if n == 2200 else None) for n in range(2500)])
    assert [len(one.rows) for one in tested.dead_letters()] == [1000, 1000, 500]
    assert [row.n for one in tested.dead_letters() for row in one.rows] == list(range(2500))


class Verbose(Fails):
    def handleInputRows(self, key: Any, rows: Iterator[Row], timerValues: Any) -> Iterator[Row]:
        raise ValueError(f"begin {'x' * 1_000_000} end")


def test_texts_of_a_letter_lose_their_middle_if_they_are_very_long() -> None:
    tested = OperatorTester.of_processor(
        Verbose(), key=["k"], input=INPUT, output=OUTPUT, time_mode="ProcessingTime", on_error=LETTERS
    )
    tested.batch([("a", 1, None)])
    (letter,) = tested.dead_letters()
    assert len(letter.error) < 21_000
    assert letter.error.startswith("ValueError: begin xx")
    assert "handleInputRows" in letter.error[-100:]
    assert letter.traceback.startswith("Traceback")
    assert len(letter.traceback) < 21_000


def test_rows_are_cut_by_their_bytes_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dead_letters, "_ROW_BYTES", 1000)
    tested = made_of("rows", LETTERS)
    tested.batch([("a", n, "raises" if n == 7 else "x" * 400) for n in range(8)])
    assert [len(one.rows) for one in tested.dead_letters()] == [2, 2, 2, 2]


# --- limits -------------------------------------------------------------------------------------------------


def test_too_many_in_a_batch_fail_it_and_nothing_is_kept() -> None:
    tested = made_of("rows", DeadLetters(max_per_batch=2))
    rows = [(key, 1, "raises") for key in "abcde"]
    with pytest.raises(TooManyDeadLettersError) as found:
        tested.batch(rows)
    assert "3 dead letters in batch 0 in one task, more than max_per_batch=2" in str(found.value)
    assert "ValueError: cannot take 1" in str(found.value)
    assert tested.dead_letters() == []
    assert tested.batch(rows[:2]) == []
    assert len(tested.dead_letters()) == 2


def test_too_many_in_an_hour_fail_the_batch() -> None:
    tested = made_of("rows", DeadLetters(max_per_hour=2))
    for time in (0, 1, HOUR + 1):
        tested.batch([("a", 1, "raises")], time=time)
    with pytest.raises(TooManyDeadLettersError, match="3 dead letters in an hour in one task"):
        tested.batch([("a", 1, "raises")], time=HOUR + 1)
    tested.batch([("a", 1, "raises")], time=HOUR + 2)
    assert len(tested.dead_letters()) == 4


def test_letters_are_deleted_when_they_are_too_old() -> None:
    tested = made_of("rows", DeadLetters(keep=timedelta(seconds=1)))
    tested.batch([("a", 1, "raises")], time=0)
    tested.batch(time=1000)
    assert len(tested.dead_letters()) == 1
    tested.batch(time=1001)
    assert tested.dead_letters() == []
    assert not [
        place for place in tested.checkpoint().shards.held if place[1].startswith(keyspace.DEAD_LETTERS)
    ]


@pytest.mark.parametrize(
    "wrong",
    [
        {"max_per_batch": 0},
        {"max_per_batch": True},
        {"max_per_hour": 1.5},
        {"keep": "1 day"},
        {"keep": timedelta(0)},
        {"keep": timedelta(days=40_000)},
    ],
)
def test_limits_that_are_none_are_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(DefinitionError, match=next(iter(wrong))):
        DeadLetters(**wrong)


def test_what_is_no_way_to_take_errors_is_refused() -> None:
    with pytest.raises(DefinitionError, match="on_error"):
        made_of("rows", "ignore")


# --- what is no error of the user's code --------------------------------------------------------------------


@pytest.mark.parametrize(
    ("fails", "error"),
    [("raises", ProcessorError), ("gives nonsense", OutputTypeError), ("keeps nonsense", ProcessorError)],
)
def test_without_letters_it_fails_the_batch(fails: str, error: type[Exception]) -> None:
    with pytest.raises(error):
        made_of("rows", "fail").batch([("a", 1, fails)])


class Large(StatefulProcessor):
    """Keeps as long a text as a row says, after a value that expires. A negative number is one of timers to set."""

    def init(self, handle: Any) -> None:
        self.handle = handle
        self.count = handle.getValueState("count", NUMBER, 100)
        self.text = handle.getValueState("text", StructType().add("text", "string"))
        self.times = 0

    def handleInputRows(self, key: Any, rows: Iterator[Row], timerValues: Any) -> Iterator[Row]:
        now, self.times = timerValues.getCurrentProcessingTimeInMs(), self.times + 1
        for row in rows:
            self.count.update((row.n,))
            self.text.update(("x" * max(row.n, 0),))
            for at in range(-row.n):
                self.handle.registerTimer(now - at)
            if row.fails == "sets a timer the first time" and self.times == 1:
                self.handle.registerTimer(now)
        yield Row(k=key[0], total=1)

    def handleExpiredTimer(self, key: Any, timerValues: Any, expiredTimerInfo: Any) -> Iterator[Row]:
        yield Row(k=key[0], total=-1)


class ArrowLarge(ArrowProcessor):
    states = {"count": NUMBER, "text": StructType().add("text", "string")}
    ttl_ms = {"count": 5}

    def process(self, given: Any) -> ArrowResult:
        n = given.rows["n"].combine_chunks()
        text = pa.array(["x" * size for size in n.to_pylist()])
        states = {
            "count": pa.StructArray.from_arrays([n], ["n"]),
            "text": pa.StructArray.from_arrays([text], ["text"]),
        }
        return ArrowResult(given.keys.append_column("total", n), states)


def large(on_error: Any, kind: str = "rows") -> OperatorTester:
    if kind == "arrow":
        return OperatorTester.of_arrow(ArrowLarge(), key=["k"], input=INPUT, output=OUTPUT, on_error=on_error)
    return OperatorTester.of_processor(
        Large(), key=["k"], input=INPUT, output=OUTPUT, time_mode="ProcessingTime", on_error=on_error
    )


@pytest.mark.parametrize("kind", ["rows", "arrow"])
def test_a_key_whose_state_is_too_large_is_given_up(monkeypatch: pytest.MonkeyPatch, kind: str) -> None:
    monkeypatch.setattr(wire, "LARGEST", 2000)
    failing, tested, expected = large("fail", kind), large(LETTERS, kind), large("fail", kind)
    before, rows = [("b", 1, None)], [("a", 100, None), ("b", 3000, None), ("c", 200, None)]
    for one in (failing, tested, expected):
        one.batch(before, time=0)
    with pytest.raises(StateTooLargeError):
        failing.batch(rows, time=1000)
    # The value that has expired is removed although the batch would have written another one.
    assert sorted(tested.batch(rows, time=1000)) == sorted(expected.batch([rows[0], rows[2]], time=1000))
    assert [one.key for one in tested.dead_letters()] == [("b",)]
    assert stored(tested) == stored(expected)


def test_no_timer_of_a_failed_attempt_fires(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(wire, "LARGEST", 2000)
    tested = large(LETTERS)
    rows = [("a", 1, "sets a timer the first time"), ("b", -1000, None)]
    assert tested.batch(rows, time=1000) == [Row(k="a", total=1)]
    assert [one.key for one in tested.dead_letters()] == [("b",)]


def test_changes_since_a_mark_are_forgotten_also_by_reads() -> None:
    access = MemoryShards().begin()
    state = TaskState(access, EntrySizes("op", KeyCodec(StructType().add("k", "string"))))
    shards = np.array([1, 1], np.int32)

    def put(first: bytes | None, second: bytes | None) -> None:
        state.put(Entries(shards[:1], pa.array([b"one"], BYTES), pa.array([first], BYTES)))
        state.put_one(1, b"two", second)

    def read() -> list[bytes | None]:
        return state.fetch(shards, pa.array([b"one", b"two"], BYTES)).to_pylist()

    put(b"1", b"2")
    mark = state.mark()
    put(b"3", b"4")
    state.mark()
    put(None, None)
    assert read() == [None, None]
    state.go_back(mark)
    assert read() == [b"1", b"2"]
    assert sum(map(len, state.changes())) == 2


class Reads(Fails):
    """Reads parts of a list, whatever comes of it."""

    def handleInputRows(self, key: Any, rows: Iterator[Row], timerValues: Any) -> Iterator[Row]:
        try:
            self.handle.listTimers()
            list(self.handle.listTimers())
        except Exception as error:
            if next(rows).fails == "raises":
                raise ValueError("no timers") from error
        yield Row(k=key[0], total=0)


@pytest.mark.parametrize("on_error", ["fail", LETTERS], ids=["fail", "letters"])
@pytest.mark.parametrize("fails", ["raises", None])
def test_a_state_host_that_is_lost_is_no_error_of_the_code_that_wants_to_read(
    monkeypatch: pytest.MonkeyPatch, on_error: Any, fails: str | None
) -> None:
    lost, asked = HostLostError("here", "killed"), []

    class Lost(MemoryAccess):
        def fetch(self, shards: Any, keys: Any) -> Any:
            if self.fetches == 3:
                asked.append(keys)
                raise lost
            return super().fetch(shards, keys)

    def begin(self: MemoryShards, times: Any = None, shards: Any = range(16)) -> MemoryAccess:
        own = frozenset(shards)
        return Lost(self, times, own - self.known, own)

    tested = OperatorTester.of_processor(
        Reads(), key=["k"], input=INPUT, output=OUTPUT, time_mode="ProcessingTime", on_error=on_error
    )
    monkeypatch.setattr(MemoryShards, "begin", begin)
    with pytest.raises(HostLostError) as found:
        tested.batch([(key, 1, fails) for key in "abcd"])
    assert found.value is lost
    assert tested.dead_letters() == []
    assert not fails or len(asked) == 1, "nothing is tried again"


def test_a_letter_of_an_earlier_version_has_no_offsets() -> None:
    before = Packing(dead_letters.VERSIONS[:1], StateName("", keyspace.LETTERS))
    stored = before.pack_row(("place", "error", "traceback", b"rows"))
    assert dead_letters.packing().unpack_row(stored) == ("place", "error", "traceback", b"rows", None)
