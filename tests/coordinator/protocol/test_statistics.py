"""What became of checkpoints."""

from __future__ import annotations

import json
import math

import attrs
import pytest
from hypothesis import given
from hypothesis import strategies as st

from chandy.coordinator.protocol.reasons import Reason
from chandy.coordinator.protocol.statistics import SAMPLES, History, ShardStatistics, Status, Summary
from chandy.coordinator.protocol.totals import PhaseSeconds
from chandy.storage.checkpoints.manifest import CheckpointKind

NOW = 1_000.0
PHASES = PhaseSeconds(0.25, 0.5, 0.125)


def shard(number: int, size: int = 100, new_bytes: int = 10) -> ShardStatistics:
    return ShardStatistics(
        uid="delays",
        shard=number,
        trigger=NOW,
        start_delay=0.1,
        sync=0.02,
        async_=0.3,
        ack=NOW + 0.5,
        bytes=size,
        new_bytes=new_bytes,
        entries=3,
    )


def complete(
    history: History, id: int, *, duration: float = 1.0, size: int = 100, new_bytes: int = 10
) -> None:
    history.started(id, CheckpointKind.PERIODIC, NOW)
    history.completed(id, NOW + duration, size=size, new_bytes=new_bytes, phases=PHASES)


def fail(history: History, id: int) -> None:
    history.started(id, CheckpointKind.PERIODIC, NOW)
    history.failed(id, NOW + 1, Reason.EXPIRED, phases=PHASES)


@pytest.fixture
def history() -> History:
    return History()


@given(st.lists(st.tuples(st.sampled_from(["start", "complete", "fail", "restore"]), st.integers(1, 9))))
def test_those_triggered_are_those_in_progress_completed_and_failed(steps: list[tuple[str, int]]) -> None:
    history = History(limit=3)
    seen: set[int] = set()
    restored = 0
    for step, id in steps:
        if step == "start" and id not in seen:
            seen.add(id)
            history.started(id, CheckpointKind.MANUAL, NOW)
        elif step == "complete":
            history.completed(id, NOW, size=1, new_bytes=1, phases=PHASES)
        elif step == "fail":
            history.failed(id, NOW, Reason.DECLINED, phases=PHASES)
        elif step == "restore":
            history.restored(id)
            restored += 1
    counts = history.counts
    assert counts.triggered == counts.in_progress + counts.completed + counts.failed
    assert min(attrs.astuple(counts)) >= 0
    assert counts.restored == restored
    assert counts.triggered == len(seen)


def test_the_history_is_bounded_and_keeps_the_last_that_ended() -> None:
    history = History(limit=3)
    for id in range(1, 8):
        complete(history, id)
    assert [one.id for one in history.snapshot().checkpoints] == [7, 6, 5]
    assert history.counts.completed == 7


def test_a_checkpoint_in_progress_is_not_pushed_out_of_the_history() -> None:
    history = History(limit=2)
    history.started(1, CheckpointKind.SAVEPOINT, NOW)
    for id in range(2, 9):
        complete(history, id)
    checkpoints = history.snapshot().checkpoints
    assert [one.id for one in checkpoints] == [8, 7, 1]
    assert (checkpoints[-1].status, checkpoints[-1].duration) == (Status.IN_PROGRESS, None)


def test_a_completed_checkpoint_tells_of_each_of_its_shards(history: History) -> None:
    history.started(1, CheckpointKind.MANUAL, NOW)
    history.completed(1, NOW + 2, size=200, new_bytes=20, shards=[shard(0), shard(1)], phases=PHASES)
    (found,) = history.snapshot().checkpoints
    assert [attrs.astuple(one) for one in found.shards] == [
        ("delays", number, NOW, 0.1, 0.02, 0.3, NOW + 0.5, 100, 10, 3) for number in (0, 1)
    ]
    assert found.shards[0].duration == 0.5
    assert (found.kind, found.status, found.duration) == (CheckpointKind.MANUAL, Status.COMPLETED, 2.0)
    assert found.reason is None
    assert found.phases == history.totals.phases == PHASES


def test_the_summary_covers_completed_checkpoints_only(history: History) -> None:
    complete(history, 1, duration=1, size=100, new_bytes=10)
    complete(history, 2, duration=3, size=300, new_bytes=30)
    history.started(3, CheckpointKind.PERIODIC, NOW)
    history.failed(
        3, NOW + 500, Reason.EXPIRED, shards=[shard(0, size=1_000_000, new_bytes=1_000_000)], phases=PHASES
    )
    history.started(4, CheckpointKind.PERIODIC, NOW)
    snapshot = history.snapshot()
    assert snapshot.duration is not None
    assert snapshot.size is not None
    assert snapshot.new_bytes is not None
    assert (snapshot.duration.min, snapshot.duration.avg, snapshot.duration.max) == (1, 2, 3)
    assert (snapshot.size.min, snapshot.size.avg, snapshot.size.max) == (100, 200, 300)
    assert (snapshot.new_bytes.min, snapshot.new_bytes.avg, snapshot.new_bytes.max) == (10, 20, 30)


def test_the_summary_goes_further_back_than_the_history() -> None:
    history = History(limit=1)
    for id in range(1, 11):
        complete(history, id, duration=id)
    duration = history.snapshot().duration
    assert duration is not None
    assert (duration.min, duration.max) == (1, 10)


def test_the_summary_is_bounded_too() -> None:
    history = History(limit=1)
    for id in range(SAMPLES + 1):
        complete(history, id, size=id)
    size = history.snapshot().size
    assert size is not None
    assert (size.min, size.max) == (1, SAMPLES)


@given(st.lists(st.integers(0, 6), min_size=1, max_size=20), st.integers(1, 5), st.integers(0, 12))
def test_the_shards_of_old_checkpoints_are_forgotten_before_there_are_too_many(
    counts: list[int], limit: int, shard_limit: int
) -> None:
    history = History(limit=limit, shard_limit=shard_limit)
    for id, count in enumerate(counts, start=1):
        history.started(id, CheckpointKind.PERIODIC, NOW)
        shards = [shard(number) for number in range(count)]
        history.completed(id, NOW + 1, size=100, new_bytes=10, shards=shards, phases=PHASES)
    newest, *older = history.snapshot().checkpoints
    assert len(newest.shards) == counts[-1]
    kept = [len(one.shards) for one in older]
    assert len(kept) == min(limit, len(counts)) - 1
    # The newest that fit in, and those whole.
    total, fits = counts[-1], True
    for count, found in zip(counts[-2::-1], kept, strict=False):
        total += count
        fits = fits and total <= shard_limit
        assert found == (count if fits else 0)


def test_what_happens_later_changes_no_copy(history: History) -> None:
    complete(history, 1)
    fail(history, 2)
    history.started(3, CheckpointKind.PERIODIC, NOW)
    before, copied = history.snapshot(), history.copy()
    totals = attrs.asdict(history.totals.copy())
    assert copied.snapshot() == before
    history.completed(3, NOW + 9, size=900, new_bytes=90, phases=PHASES)
    complete(history, 4, duration=7)
    fail(history, 5)
    history.restored(4)
    assert copied.snapshot() == before != history.snapshot()
    assert attrs.asdict(copied.totals) == totals


def test_the_latest_of_each_outcome_keeps_its_shards() -> None:
    history = History(shard_limit=1)
    history.started(1, CheckpointKind.PERIODIC, NOW)
    history.failed(1, NOW + 1, Reason.EXPIRED, shards=[shard(0), shard(1)], phases=PHASES)
    history.started(2, CheckpointKind.PERIODIC, NOW)
    history.completed(2, NOW + 1, size=100, new_bytes=10, shards=[shard(0), shard(1)], phases=PHASES)
    snapshot = history.snapshot()
    assert [len(one.shards) for one in snapshot.checkpoints] == [2, 0]
    for latest in (snapshot.latest_failed, snapshot.latest_completed):
        assert latest is not None
        assert len(latest.shards) == 2


def test_percentiles_are_those_of_the_nearest_rank() -> None:
    summary = Summary.of(range(1000, 0, -1))
    assert summary == Summary(1, 500.5, 1000, p50=500, p90=900, p95=950, p99=990, p999=999)
    assert Summary.of([7.0]) == Summary(7, 7, 7, 7, 7, 7, 7, 7)
    assert Summary.of([1, 2]) == Summary(1, 1.5, 2, p50=1, p90=2, p95=2, p99=2, p999=2)
    assert Summary.of([]) is None


@given(st.lists(st.floats(0, 1e12), min_size=1, max_size=300))
def test_a_summary_is_ordered_and_its_percentiles_are_values_that_occurred(values: list[float]) -> None:
    summary = Summary.of(values)
    assert summary is not None
    ranks = {0.5: summary.p50, 0.9: summary.p90, 0.95: summary.p95, 0.99: summary.p99, 0.999: summary.p999}
    assert [summary.min, *ranks.values(), summary.max] == sorted([summary.min, *ranks.values(), summary.max])
    assert summary.min <= summary.avg <= summary.max
    assert math.isclose(summary.avg, sum(values) / len(values), abs_tol=1e-300)
    for share, percentile in ranks.items():
        assert percentile in values
        assert sum(value <= percentile for value in values) >= share * len(values) - 1e-9
        assert sum(value < percentile for value in values) < share * len(values)


def test_the_size_of_a_failed_checkpoint_is_the_sum_of_the_bytes_of_its_shards(history: History) -> None:
    history.started(1, CheckpointKind.PERIODIC, NOW)
    shards = [shard(0, size=1000, new_bytes=1), shard(1, size=234, new_bytes=2)]
    history.failed(1, NOW + 1, Reason.EXPIRED, shards=shards, phases=PHASES)
    (found,) = history.snapshot().checkpoints
    assert (found.size, found.new_bytes) == (1234, 3)
    assert (found.status, found.reason) == (Status.FAILED, Reason.EXPIRED)


def test_the_size_of_a_completed_checkpoint_is_in_bytes_with_the_files_of_its_queries(
    history: History,
) -> None:
    history.started(1, CheckpointKind.PERIODIC, NOW)
    history.completed(1, NOW + 1, size=5000, new_bytes=70, shards=[shard(0)], phases=PHASES)
    found = history.snapshot().latest_completed
    assert found is not None
    assert (found.size, found.new_bytes) == (5000, 70)


def test_the_latest_is_the_one_with_the_highest_id_not_the_one_that_ended_last(history: History) -> None:
    for id in (1, 2):
        history.started(id, CheckpointKind.PERIODIC, NOW)
    for id in (2, 1):
        history.completed(id, NOW + 1, size=1, new_bytes=1, phases=PHASES)
    latest = history.snapshot().latest_completed
    assert latest is not None
    assert latest.id == 2


def test_the_latest_completed_is_remembered_however_many_have_failed_since() -> None:
    history = History(limit=2)
    complete(history, 1)
    for id in range(2, 9):
        fail(history, id)
    snapshot = history.snapshot()
    latest, failed = snapshot.latest_completed, snapshot.latest_failed
    assert latest is not None
    assert failed is not None
    assert (latest.id, failed.id) == (1, 8)


def test_before_anything_has_happened_there_is_nothing_to_tell() -> None:
    snapshot = History().snapshot()
    assert (snapshot.latest_completed, snapshot.latest_failed, snapshot.restored) == (None, None, None)
    assert (snapshot.duration, snapshot.size, snapshot.new_bytes, snapshot.checkpoints) == (
        None,
        None,
        None,
        (),
    )


@pytest.mark.parametrize("late", ["completed", "failed"])
def test_word_that_comes_after_the_end_changes_nothing(history: History, late: str) -> None:
    complete(history, 1)
    before = history.snapshot()
    for id in (1, 77):
        if late == "completed":
            history.completed(id, NOW + 9, size=9, new_bytes=9, phases=PHASES)
        else:
            history.failed(id, NOW + 9, Reason.DECLINED, phases=PHASES)
    assert history.snapshot() == before


def test_a_snapshot_does_not_change_afterwards_and_can_be_made_plain(history: History) -> None:
    complete(history, 1)
    history.restored(1)
    snapshot = history.snapshot()
    plain = json.dumps(attrs.asdict(snapshot))
    fail(history, 2)
    assert json.dumps(attrs.asdict(snapshot)) == plain
    assert json.loads(plain)["counts"]["completed"] == 1
    assert json.loads(plain)["restored"] == 1
