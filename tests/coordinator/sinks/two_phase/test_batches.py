"""A query's sinks that publish each batch at once, without Spark: what is visible when, and after what goes wrong."""

from __future__ import annotations

import contextlib
import sqlite3
import threading
import traceback
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import attrs
import pyarrow as pa
import pytest

from chandy.coordinator.sinks.two_phase import publisher, staging
from chandy.coordinator.sinks.two_phase.contract import Publish, Staged
from chandy.coordinator.sinks.two_phase.digest import digest
from chandy.coordinator.sinks.two_phase.errors import (
    BatchInterruptedError,
    OutputAheadError,
    OutputError,
    OutputLostError,
)
from chandy.storage.checkpoints.batch_record import NOTHING
from chandy.storage.checkpoints.manifest import EpochRecord, OutputRecord
from chandy.storage.errors import FencedError
from tests.waiting import DEADLINE, eventually

from .batch_lives import COLUMNS, Row, SinkLife, SinkRuns, rows, write_batch
from .batch_lives import lives as lives
from .sqlite_sink import SqliteSink


@pytest.fixture(autouse=True)
def without_spark(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(staging, "write_batch", write_batch)
    monkeypatch.setattr(publisher, "_FIRST_PAUSE", 0.001)


@pytest.fixture
def target(tmp_path: Path) -> SqliteSink:
    return SqliteSink(tmp_path / "out.db", COLUMNS, publish="batch")


def position(sink: SqliteSink) -> int | None:
    with contextlib.closing(sqlite3.connect(sink.path)) as db:
        ((epoch,),) = db.execute("SELECT epoch FROM positions").fetchall()
        return epoch  # type: ignore[no-any-return]


# --- the usual way ------------------------------------------------------------------------------------------


def test_rows_are_visible_with_their_batch_and_nothing_of_them_is_kept(
    lives: SinkRuns, target: SqliteSink
) -> None:
    life = lives.begun(target)
    life.take(0, (1, "a"), (2, "b"))
    assert rows(target) == [(1, "a"), (2, "b")]
    assert position(target) is None
    assert life.staged() == []
    life.take(1, (2, "newer"))
    assert rows(target) == [(1, "a"), (2, "newer")]


def test_a_checkpoint_has_nothing_to_publish_and_moves_the_position(
    lives: SinkRuns, target: SqliteSink
) -> None:
    life = lives.begun(target)
    life.take(0, (1, "a"))
    assert life.checkpoint(3, cut=0) == (OutputRecord("sqlite", (EpochRecord(3, rows=0),)),)
    assert position(target) == 3
    # One without batches has nothing to say.
    assert life.checkpoint(4, cut=0) == (OutputRecord("sqlite", (), published=3),)
    assert position(target) == 3


def test_no_checkpoint_takes_an_older_value_to_the_table_again(lives: SinkRuns, target: SqliteSink) -> None:
    life = lives.begun(target)
    life.take(0, (1, "old"))
    life.sink.close_epoch(1, 0)
    life.take(1, (1, "new"))
    life.sink.pre_commit(1)
    life.sink.commit(1)
    eventually(lambda: life.published == [1])
    assert rows(target) == [(1, "new")]


def test_a_batch_without_rows_asks_nothing_of_the_target(
    lives: SinkRuns, target: SqliteSink, tmp_path: Path
) -> None:
    life = lives.begun(target)
    (tmp_path / "away").touch()
    life.take(0)


def test_sinks_of_both_kinds_get_the_same_rows_each_at_its_time(
    lives: SinkRuns, target: SqliteSink, tmp_path: Path
) -> None:
    later = SqliteSink(tmp_path / "later.db", COLUMNS, "later")
    life = lives.begun(target, later)
    life.take(0, (1, "a"), (2, "b"))
    assert rows(target) == [(1, "a"), (2, "b")]
    assert rows(later) == []
    of_target, of_later = life.checkpoint(1, cut=0)
    assert of_target.epochs == (EpochRecord(1, rows=0),)
    assert of_later.epochs[0].rows == len(of_later.epochs[0].staged.files) == 2
    assert rows(later) == rows(target)


@pytest.mark.parametrize("publish", ["batch", "checkpoint"])
def test_the_digest_of_a_batch_is_kept_before_it_commits(
    lives: SinkRuns, target: SqliteSink, tmp_path: Path, publish: Publish
) -> None:
    later = SqliteSink(tmp_path / "later.db", COLUMNS, "later")
    life = lives(attrs.evolve(target, publish=publish), later)
    directory = life.begin()
    life.take(0, (1, "a"))
    life.takes_digests = True
    life.take(1, (1, "a"), (2, "b"))
    life.take(2)
    whole = digest([pa.record_batch({"k": [2, 1], "v": ["b", "a"]})])
    assert [life.sink.digests(batch) for batch in range(4)] == [
        {},
        {"sqlite": whole, "later": whole},
        {"sqlite": NOTHING, "later": NOTHING},
        {},
    ]
    life.checkpoint(1, cut=2)
    # It is still asked for when a checkpoint has it, and by who resumes the run.
    assert staging.read_digest(directory, 1) == life.sink.digests(1)["later"] == whole


# --- a target that is away, and a run that ends -------------------------------------------------------------


@contextlib.contextmanager
def in_the_background(life: SinkLife, batch: int, *given: Row) -> Iterator[list[BaseException]]:
    """Run a batch on a thread; give the error that it ends with."""
    ended: list[BaseException] = []

    def run() -> None:
        try:
            life.take(batch, *given)
        except BaseException as error:  # noqa: BLE001 (the test looks at it)
            ended.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    yield ended
    thread.join(DEADLINE)
    assert not thread.is_alive()


def test_a_batch_waits_for_its_target_and_goes_on_by_itself(
    lives: SinkRuns, target: SqliteSink, tmp_path: Path
) -> None:
    life = lives.begun(target)
    (tmp_path / "away").touch()
    with in_the_background(life, 0, (1, "a")) as ended:
        eventually(lambda: life.staged() != [], "the batch to be written")
        assert rows(target) == []
        (tmp_path / "away").unlink()
    assert ended == []
    assert rows(target) == [(1, "a")]
    assert life.failures == []


@pytest.mark.parametrize("is_stopped", [True, False])
def test_what_a_stop_does_to_the_tasks_of_a_batch_is_no_error_of_theirs(
    lives: SinkRuns, target: SqliteSink, monkeypatch: pytest.MonkeyPatch, is_stopped: bool
) -> None:
    life = lives.begun(target)

    def cancelled(*arguments: Any) -> tuple[Staged, ...]:
        if is_stopped:
            life.sink.interrupt()
        raise RuntimeError("An error occurred while calling o7.collect" + 10_000 * " of Java")

    monkeypatch.setattr(staging, "write_batch", cancelled)
    with pytest.raises(BatchInterruptedError if is_stopped else RuntimeError) as caught:
        life.take(0, (1, "a"))
    # What Spark is told.
    assert ("of Java" in "".join(traceback.format_exception(caught.value))) is not is_stopped
    assert rows(target) == []


@pytest.mark.parametrize("end", ["going back", "stop"])
def test_a_batch_that_waits_ends_with_its_run_and_is_never_published(
    lives: SinkRuns, target: SqliteSink, tmp_path: Path, end: str
) -> None:
    life = lives.begun(target)
    (tmp_path / "away").touch()
    with in_the_background(life, 0, (1, "stale")) as ended:
        eventually(lambda: life.staged() != [], "the batch to be written")
        if end == "stop":
            life.sink.interrupt()
        else:
            life.begin()
    assert [type(one) for one in ended] == [BatchInterruptedError]
    assert life.staged() == []
    (tmp_path / "away").unlink()
    if end == "going back":
        life.take(0, (2, "b"))
        assert rows(target) == [(2, "b")]
    assert life.failures == []


def test_a_refused_row_ends_the_pipeline_and_the_batch(lives: SinkRuns, target: SqliteSink) -> None:
    life = lives.begun(target)
    life.take(0, (1, "a"))
    with contextlib.closing(sqlite3.connect(target.path)) as db:
        db.execute("CREATE TRIGGER no BEFORE INSERT ON rows BEGIN SELECT RAISE(ABORT, 'no more'); END")
    with pytest.raises(OutputError, match="no more"):
        life.take(1, (2, "b"))
    assert [type(one) for one in life.failures] == [OutputError]
    assert rows(target) == [(1, "a")]
    assert life.staged() == []


# --- lives --------------------------------------------------------------------------------------------------


def test_an_earlier_life_publishes_no_batch_any_more_and_fails(lives: SinkRuns, target: SqliteSink) -> None:
    zombie = lives.begun(target)
    zombie.take(0, (1, "a"))
    successor = lives.begun(target)
    with pytest.raises(FencedError):
        zombie.take(1, (1, "zombie"), (2, "zombie"))
    assert [type(one) for one in zombie.failures] == [FencedError]
    assert rows(target) == [(1, "a")]
    successor.take(0, (1, "b"))
    assert rows(target) == [(1, "b")]


def test_a_life_that_goes_back_writes_over_what_came_after_its_checkpoint(
    lives: SinkRuns, target: SqliteSink
) -> None:
    first = lives.begun(target)
    first.take(0, (1, "a"))
    outputs = first.checkpoint(1, cut=0)
    first.take(1, (1, "b"), (2, "b"))
    second = lives(target, first_epoch=2)
    second.begin(1, outputs, last=0)
    assert rows(target) == [(1, "b"), (2, "b")]
    # The batches are cut another way.
    second.take(1, (1, "b"))
    second.take(2, (2, "b"), (3, "c"))
    assert rows(target) == [(1, "b"), (2, "b"), (3, "c")]
    second.checkpoint(2, cut=2)
    assert position(target) == 2


def test_an_older_checkpoint_is_no_error_and_later_epochs_count_on(
    lives: SinkRuns, target: SqliteSink
) -> None:
    first = lives.begun(target)
    first.take(0, (1, "a"))
    outputs = first.checkpoint(1, cut=0)
    first.take(1, (1, "b"))
    first.checkpoint(2, cut=1)
    for checkpoint, known in ((1, outputs), (None, ())):
        again = lives(target, first_epoch=3)
        again.begin(checkpoint, known, last=0 if checkpoint else -1)
        again.take(1, (1, "c"))
    assert rows(target) == [(1, "c")]
    assert position(target) == 2
    assert again.checkpoint(3, cut=1) == (OutputRecord("sqlite", (EpochRecord(3, rows=0),), published=2),)
    assert position(target) == 3


def test_a_target_that_is_ahead_by_ids_of_another_storage_is_still_refused(
    lives: SinkRuns, target: SqliteSink
) -> None:
    first = lives.begun(target)
    first.take(0, (1, "a"))
    first.checkpoint(7, cut=0)
    with pytest.raises(OutputAheadError, match="another uid"):
        lives(target, first_epoch=3).begin(2, ())


def test_a_target_that_lacks_the_checkpoint_is_noticed(lives: SinkRuns, target: SqliteSink) -> None:
    first = lives.begun(target)
    first.take(0, (1, "a"))
    first.checkpoint(1, cut=0)
    outputs = first.checkpoint(2, cut=0)
    first.sink.close()
    target.path.unlink()
    with pytest.raises(OutputLostError, match="nothing of it"):
        lives(target).begin(2, outputs)


def test_what_waited_for_a_checkpoint_is_published_by_a_life_that_no_longer_waits(
    lives: SinkRuns, target: SqliteSink
) -> None:
    first = lives.begun(attrs.evolve(target, publish="checkpoint"))
    first.take(0, (1, "a"))
    first.sink.close_epoch(1, 0)
    outputs = first.sink.pre_commit(1)
    assert rows(target) == []
    # It has another table then, with a key.
    with contextlib.closing(sqlite3.connect(target.path)) as db:
        db.execute("DROP TABLE rows")
    second = lives(target)
    second.begin(1, outputs)
    assert rows(target) == [(1, "a")]
    second.take(1, (1, "b"))
    assert rows(target) == [(1, "b")]


# --- going on behind a checkpoint ---------------------------------------------------------------------------


def test_a_query_may_go_on_behind_its_checkpoint_with_batches_that_are_published(
    lives: SinkRuns, target: SqliteSink
) -> None:
    first = lives(target)
    directory = first.begin()
    first.take(0, (1, "a"))
    second = lives(target)
    assert second.sink.obstacle(directory, -1, 0) is None
    assert second.sink.obstacle(directory, -1, 1)
    second.sink.resume("q", second.beginning(directory, None, ()), 0)
    second.take(1, (1, "b"))
    assert rows(target) == [(1, "b")]
    (output,) = second.checkpoint(1, cut=1)
    assert output.epochs == (EpochRecord(1, rows=0),)
    assert position(target) == 1


def test_a_query_may_go_on_behind_its_checkpoint_with_batches_that_are_staged(
    lives: SinkRuns, target: SqliteSink
) -> None:
    target = attrs.evolve(target, publish="checkpoint")
    first = lives(target)
    directory = first.begin()
    first.take(0, (1, "a"))
    second = lives(target)
    second.sink.resume("q", second.beginning(directory, None, ()), 0)
    second.take(1, (2, "b"))
    second.checkpoint(1, cut=1)
    assert rows(target) == [(1, "a"), (2, "b")]


@pytest.mark.parametrize("before", ["checkpoint", "batch"])
def test_a_query_goes_back_if_nobody_knows_what_was_published_at_once(
    lives: SinkRuns, target: SqliteSink, tmp_path: Path, before: Publish
) -> None:
    """Sinks of both kinds have what both may have to publish, whatever the one did before."""
    later = SqliteSink(tmp_path / "later.db", COLUMNS, "later")
    first = lives(attrs.evolve(target, publish=before), later)
    directory = first.begin()
    first.take(0, (1, "a"))
    assert (first.sink.obstacle(directory, -1, 0) is None) is (before == "checkpoint")
    assert lives(target, later).sink.obstacle(directory, -1, 0)
