"""An operator's state begins with the rows that it was given: once, and before any row of a stream."""
# The methods have PySpark's names.
# ruff: noqa: N802, N803

import itertools
from pathlib import Path

import pandas as pd
import pytest
from pyspark.sql.streaming import StatefulProcessor
from pyspark.sql.types import StructType

from chandy.state import DeadLetters
from chandy.state.errors import ProcessorError, UnreadableFileError
from chandy.state.format import keyspace
from chandy.state.format.rows import SLICE
from chandy.state.format.schema import to_json
from chandy.state.operators.dead_letters import INITIAL_STATE, packing
from chandy.state.operators.time_mode import TimeMode
from chandy.state.processors.initial_state import InitialState, _ShardFiles
from chandy.state.processors.style import StyleName
from chandy.state.rpc.messages import BatchTimes

from ..pipeline import INPUT, OneOperator

COUNT = StructType().add("n", "long")


class Balance(StatefulProcessor):
    def init(self, handle):
        self.handle = handle
        self.count = handle.getValueState("count", COUNT)
        self.notes = handle.getListState("notes", COUNT)

    def handleInitialState(self, key, initialState, timerValues):
        numbers = initialState["n"].tolist() if isinstance(initialState, pd.DataFrame) else [initialState.n]
        self.count.update(((self.count.get() or (0,))[0] + sum(numbers),))
        self.notes.appendValue((len(numbers),))
        self.handle.registerTimer(timerValues.getCurrentWatermarkInMs() + 5)

    def told(self, what):
        row = (f"{what} {[n for (n,) in self.notes.get()]}", (self.count.get() or (0,))[0])
        return row if self.rows else pd.DataFrame([row])

    def handleInputRows(self, key, rows, timerValues):
        yield self.told(f"{key[0]} {list(self.handle.listTimers())}")

    def handleExpiredTimer(self, key, timerValues, expiredTimerInfo):
        yield self.told(f"timer {key[0]}")


def pipeline_of(style=StyleName.ROWS):
    processor = Balance()
    processor.rows = style is StyleName.ROWS
    return OneOperator(TimeMode.EVENT, style), processor


def initial_of(pipeline, folder, rows):
    written = _ShardFiles(str(folder))(iter(pipeline.table(rows).to_batches(max_chunksize=3)))
    files = {}
    for batch in written:
        for row in batch.to_pylist():
            files[row["shard"]] = (*files.get(row["shard"], ()), row["path"])
    return InitialState(to_json(INPUT), files)


ROWS = [("a", 1), ("bb", 10), ("a", 2), ("ccc", 100), (None, 7)]


@pytest.mark.parametrize("style", list(StyleName))
def test_the_initial_state_is_there_before_any_row_and_taken_once(tmp_path, style):
    pipeline, processor = pipeline_of(style)
    initial = initial_of(pipeline, tmp_path, ROWS)
    parts = [1, 1] if style is StyleName.ROWS else [2]
    first = [("a", 0), ("dd", 0)]
    tried = pipeline.attempt(processor, first, BatchTimes(0, 100), initial)
    found = pipeline.batch(processor, first, BatchTimes(0, 100), initial)
    assert tried == found
    assert {row["k"]: row["n"] for row in found} == {f"a [105] {parts}": 3, "dd [] []": 0}
    again = pipeline.batch(processor, [("a", 0), ("bb", 0)], BatchTimes(0, 105), initial)
    assert {row["k"]: row["n"] for row in again} == {
        f"a [105] {parts}": 3,
        "bb [105] [1]": 10,
        f"timer a {parts}": 3,
        "timer bb [1]": 10,
        "timer ccc [1]": 100,
        "timer None [1]": 7,
    }


def test_many_rows_of_a_key_come_in_pieces_of_which_each_is_handled(tmp_path):
    pipeline, processor = pipeline_of(StyleName.PANDAS)
    initial = initial_of(pipeline, tmp_path, [("a", 1)] * (SLICE + 3))
    (row,) = pipeline.batch(processor, [("a", 0)], BatchTimes(), initial)
    assert (row["k"], row["n"]) == (f"a [5] [{SLICE}, 3]", SLICE + 3)


def test_a_task_takes_up_only_shards_to_which_nothing_was_applied(tmp_path):
    pipeline, processor = pipeline_of()
    pipeline.batch(processor, [("bb", 0)], BatchTimes())
    initial = initial_of(pipeline, tmp_path, ROWS)
    rows = pipeline.batch(processor, [("a", 0), ("bb", 0)], BatchTimes(), initial)
    assert sorted(row["n"] for row in rows) == [0, 0]


def test_what_cannot_be_read_or_handled_is_told(tmp_path):
    pipeline, processor = pipeline_of()
    gone = InitialState(to_json(INPUT), {1: (str(tmp_path / "gone.arrow"),)})
    with pytest.raises(UnreadableFileError, match=r"gone\.arrow"):
        pipeline.batch(processor, [], BatchTimes(), gone)
    initial = initial_of(pipeline, tmp_path, [("a", None)])
    with pytest.raises(ProcessorError, match="unsupported operand") as failed:
        OneOperator(TimeMode.EVENT).batch(processor, [], BatchTimes(), initial)
    assert failed.value.where == "handleInitialState of key ('a',)"


class Refuses(Balance):
    def handleInitialState(self, key, initialState, timerValues):
        super().handleInitialState(key, initialState, timerValues)
        if key[0] == "bb":
            raise ValueError("not this one")


@pytest.mark.parametrize("style", list(StyleName))
def test_a_key_of_the_initial_state_that_fails_is_given_up_alone(tmp_path, style):
    pipeline, _ = pipeline_of(style)
    processor = Refuses()
    processor.rows = style is StyleName.ROWS
    initial = initial_of(pipeline, tmp_path, ROWS)
    with pytest.raises(ProcessorError, match="not this one"):
        pipeline.batch(processor, [], BatchTimes(0, 0), initial)
    pipeline.on_error = DeadLetters()
    assert pipeline.batch(processor, [], BatchTimes(0, 0), initial) == []
    told = {row["k"] for row in pipeline.batch(processor, [("bb", 0)], BatchTimes(0, 105), initial)}
    parts = [1, 1] if style is StyleName.ROWS else [2]
    assert told == {"bb [] []", f"timer a {parts}", "timer ccc [1]", "timer None [1]"}
    ((key, letter),) = [
        (key, value) for (_, key), value in pipeline.shards.held.items() if key[:2] == keyspace.DEAD_LETTERS
    ]
    assert keyspace.split_letter(key)[:3] == (0, 0, 0)
    place, *_ = packing().unpack_row(letter)
    assert place == "handleInitialState of key ('bb',)"


@pytest.mark.parametrize("style", list(StyleName))
def test_a_row_of_the_initial_state_that_is_no_value_of_python_is_given_up_as_one(tmp_path, style):
    pipeline, processor = pipeline_of(style)
    pipeline.on_error = DeadLetters()
    initial = initial_of(pipeline, tmp_path, ROWS)
    for path in map(Path, itertools.chain(*initial.files.values())):
        path.write_bytes(path.read_bytes().replace(b"ccc", b"c\xff\xff"))
    pipeline.batch(processor, [], BatchTimes(0, 0), initial)
    (letter,) = [
        value for (_, key), value in pipeline.shards.held.items() if key[:2] == keyspace.DEAD_LETTERS
    ]
    place, error, *_ = packing().unpack_row(letter)
    assert place.startswith(INITIAL_STATE)
    assert error.startswith("UnicodeDecodeError")
