"""Which batches are in which epoch, what is still to be published, and where a life begins."""

from __future__ import annotations

import pytest

from chandy.coordinator.sinks.two_phase.contract import Staged
from chandy.coordinator.sinks.two_phase.epochs import (
    Ahead,
    EpochLog,
    EpochsToPublish,
    LostOutput,
    where_to_begin,
)
from chandy.storage.checkpoints.manifest import EpochRecord, OutputRecord


def staged(note: str, rows: int = 1) -> Staged:
    return Staged(rows, note=note)


def log_of(*batches: int, sinks: tuple[str, ...] = ("a",)) -> EpochLog:
    log = EpochLog(sinks)
    for batch in batches:
        log.stage(batch, [staged(f"batch {batch}")])
    return log


def epochs(log: EpochLog, checkpoint: int, sink: str = "a") -> list[tuple[int, list[str]]]:
    return [(one.id, [part.note for part in one.staged]) for one in log.unpublished(sink, checkpoint)]


# --- the log ------------------------------------------------------------------------------------------------


def test_a_cut_closes_the_batches_since_the_cut_before_in_their_order() -> None:
    log = EpochLog(("a",))
    for batch in (2, 0, 1, 3):
        log.stage(batch, [staged(f"{batch}/{partition}") for partition in range(2)])
    log.close(1, 0)
    log.close(2, 2)
    assert epochs(log, 2) == [(1, ["0/0", "0/1"]), (2, ["1/0", "1/1", "2/0", "2/1"])]
    (first, second) = log.unpublished("a", 2)
    assert (first.last, first.rows, second.last, second.rows) == (0, 2, 2, 4)
    log.close(3, 3)
    assert epochs(log, 3)[2:] == [(3, ["3/0", "3/1"])]


def test_a_checkpoint_publishes_nothing_that_a_later_one_has_closed() -> None:
    log = log_of(0, 1)
    log.close(1, 0)
    log.close(2, 1)
    assert epochs(log, 1) == [(1, ["batch 0"])]


def test_a_checkpoint_publishes_what_failed_ones_have_closed() -> None:
    log = log_of(0, 1, 2)
    log.close(3, 0)
    log.close(4, 1)
    log.close(7, 2)
    assert epochs(log, 7) == [(3, ["batch 0"]), (4, ["batch 1"]), (7, ["batch 2"])]


def test_an_epoch_without_rows_leaves_nothing_to_publish() -> None:
    log = log_of()
    log.close(1, 5)
    log.stage(6, [staged("", rows=0)])
    log.close(2, 6)
    assert epochs(log, 2) == []
    assert log.is_published(2)


def test_an_epoch_with_a_note_alone_is_published() -> None:
    log = log_of()
    log.stage(0, [staged("what a writer has left", rows=0)])
    log.close(1, 0)
    assert epochs(log, 1) == [(1, ["what a writer has left"])]
    assert not log.is_published(1)


def test_a_batch_that_runs_again_replaces_what_it_wrote() -> None:
    log = log_of(0)
    assert log.stage(0, [staged("again")]) == (staged("batch 0"),)
    assert log.stage(1, []) == ()
    log.close(1, 1)
    assert epochs(log, 1) == [(1, ["again"])]


def test_each_sink_has_a_position_of_its_own_and_an_epoch_stays_until_all_have_it() -> None:
    log = log_of(0, 1, sinks=("a", "b"))
    log.close(1, 0)
    log.close(2, 1)
    log.published("a", 2)
    assert epochs(log, 2, "a") == []
    assert [id for id, _ in epochs(log, 2, "b")] == [1, 2]
    assert not log.is_published(1)
    log.published("b", 1)
    assert (log.is_published(1), log.is_published(2)) == (True, False)
    assert [id for id, _ in epochs(log, 2, "b")] == [2]
    assert (log.newest_published("a"), log.newest_published("b")) == (2, 1)
    log.published("b", 2)
    assert log.is_published(2)


def test_a_position_from_an_earlier_life_leaves_the_epochs_after_it() -> None:
    log = log_of(0)
    log.published("a", 4)
    log.close(5, 0)
    assert [id for id, _ in epochs(log, 5)] == [5]
    assert log.newest_published("a") == 4


def test_going_back_forgets_what_comes_after_the_checkpoint_and_keeps_what_it_has() -> None:
    log = log_of(0, 1, 2)
    log.close(1, 0)
    log.close(2, 1)
    # A manifest of which nobody knows whether it is there may name the epoch that was closed.
    assert log.go_back(1) == [staged("batch 2")]
    assert epochs(log, 9) == [(1, ["batch 0"])]
    # The same batches run again, with other rows.
    log.stage(1, [staged("new")])
    log.close(3, 1)
    assert epochs(log, 3) == [(1, ["batch 0"]), (3, ["new"])]


def test_going_back_deletes_nothing_that_an_earlier_run_has_written() -> None:
    """A cut may have closed it off there, for a manifest of which nobody knows."""
    log = log_of()
    log.resume({0: [staged("resumed")], 1: []})
    log.stage(2, [staged("own")])
    assert log.go_back(None) == [staged("own")]
    log.stage(0, [staged("again")])
    assert log.go_back(None) == [staged("again")]


def test_what_an_earlier_run_has_written_is_closed_off_like_all_else() -> None:
    log = log_of()
    log.resume({0: [staged("resumed")]})
    log.stage(1, [staged("own")])
    log.close(4, 1)
    assert epochs(log, 4) == [(4, ["resumed", "own"])]


def test_going_back_to_nothing_forgets_everything() -> None:
    log = log_of(0, 1)
    log.close(1, 0)
    log.go_back(None)
    assert epochs(log, 9) == []
    log.close(2, 9)
    assert epochs(log, 9) == []


# --- where a life begins ------------------------------------------------------------------------------------


def record(*ids: int, published: int | None = None) -> OutputRecord:
    return OutputRecord("a", tuple(EpochRecord(id, 1) for id in ids), published)


def ids(*ids: int) -> tuple[EpochRecord, ...]:
    return tuple(EpochRecord(id, 1) for id in ids)


@pytest.mark.parametrize(
    ("output", "checkpoint", "position", "expected"),
    [
        # Without a checkpoint the target must be empty.
        (None, None, None, EpochsToPublish(())),
        (None, None, 3, Ahead(3, None)),
        # The sink is new to the query.
        (None, 5, None, EpochsToPublish(())),
        (None, 5, 4, EpochsToPublish(())),
        (None, 5, 6, Ahead(6, 5)),
        # Nothing, some or all of what the checkpoint has is published.
        (record(3, 5), 5, None, EpochsToPublish(ids(3, 5))),
        (record(3, 5), 5, 3, EpochsToPublish(ids(5))),
        (record(3, 5), 5, 5, EpochsToPublish(())),
        (record(3, 5, published=2), 5, 2, EpochsToPublish(ids(3, 5))),
        (record(3, 5, published=2), 5, 3, EpochsToPublish(ids(5))),
        (record(published=2), 5, 2, EpochsToPublish(())),
        (record(), 5, None, EpochsToPublish(())),
        # The target has what comes later.
        (record(3, 5), 5, 6, Ahead(6, None)),
        (record(3, 5, published=2), 5, 9, Ahead(9, 2)),
        # It has what is not in the checkpoint, and was closed before it: a savepoint whose rows went another way.
        (record(3, 5, published=2), 5, 4, Ahead(4, 2)),
        (record(5), 5, 4, Ahead(4, None)),
        (record(published=2), 5, 3, Ahead(3, 2)),
        # It has lost what it had, and some of it is still there to be published.
        (record(published=4), 5, None, LostOutput(4, None, ())),
        (record(published=4), 5, 3, LostOutput(4, 3, ())),
        (record(5, published=4), 5, 3, LostOutput(4, 3, ids(5))),
        (record(5, published=4), 5, None, LostOutput(4, None, ids(5))),
    ],
)
def test_where_a_life_begins(
    output: OutputRecord | None,
    checkpoint: int | None,
    position: int | None,
    expected: EpochsToPublish | Ahead | LostOutput,
) -> None:
    assert where_to_begin(output, checkpoint, position) == expected


@pytest.mark.parametrize(
    ("position", "recognised", "expected"),
    [
        # The target has epochs that the checkpoint names as not published: they are what both have.
        (9, {3}, Ahead(9, 3)),
        (9, {3, 5}, Ahead(9, 5)),
        # What comes before one that it does not have is published first, so it is not the same output.
        (9, {5}, Ahead(9, 2)),
        # It was taken back, and its files are there.
        (2, {3, 5}, LostOutput(5, 2, ids(3, 5))),
        (3, {3, 5}, LostOutput(5, 3, ids(5))),
        (3, {3}, EpochsToPublish(ids(5))),
        (2, {5}, EpochsToPublish(ids(3, 5))),
    ],
)
def test_what_the_target_recognises_stays(
    position: int, recognised: set[int], expected: EpochsToPublish | Ahead | LostOutput
) -> None:
    assert where_to_begin(record(3, 5, published=2), 5, position, recognised) == expected
