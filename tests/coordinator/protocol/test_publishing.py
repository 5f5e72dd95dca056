"""The protocol's part in publishing: after the manifest, in order, and for as long as a target needs."""

from __future__ import annotations

from typing import Any

import pytest

from chandy.coordinator.protocol import events, instructions
from chandy.coordinator.protocol.reasons import Reason
from chandy.coordinator.protocol.requests import Request
from chandy.storage.checkpoints.manifest import CheckpointKind, EpochRecord, OutputRecord, QueryRecord

from ..life_events import RUNS, STOPPED, going_back
from .bench import ROOT, Bench, handle


class Outputs(Bench):
    """The queries have a transactional sink each, or only those that ``transactional`` names."""

    def __init__(self, transactional: tuple[str, ...] = ("up", "down"), **config: Any) -> None:
        super().__init__(**config)
        self.transactional = transactional

    def store_progress(self, checkpoint: int, cut: int = 4) -> None:
        for query in ("up", "down"):
            output = OutputRecord("sink", (EpochRecord(checkpoint, 1),))
            outputs = (output,) if query in self.transactional else ()
            record = QueryRecord(query, cut, handle(f"progress-{checkpoint}"), outputs)
            self(events.ProgressStored(checkpoint, record, 1))

    def published(self, checkpoint: int, *queries: str) -> None:
        for query in queries or ("up", "down"):
            self(events.Published(checkpoint, query))

    @property
    def answered(self) -> list[Request]:
        return [resolve.request for resolve in self.of(instructions.Resolve)]

    def counts(self) -> tuple[int, int]:
        found = self.machine.checkpoints.history.counts
        return found.completed, found.failed


def test_publishing_begins_once_the_manifest_is_durable_and_not_before() -> None:
    bench = Outputs()
    bench.trigger(1)
    bench.acknowledge(1)
    assert bench.of(instructions.Publish) == []
    bench.finalize(1)
    assert bench.of(instructions.Publish) == [instructions.Publish(1, ("down", "up"))]
    assert bench.counts() == (1, 0)
    assert bench.machine.checkpoints.retained.base == 1


def test_a_request_is_answered_once_all_queries_have_published() -> None:
    bench = Outputs()
    request = bench.request()
    manifest = bench.complete(1)
    assert bench.answered == []
    bench.published(1, "down")
    bench.published(1, "down")
    assert bench.answered == []
    bench.published(1, "up")
    assert bench.of(instructions.Resolve) == [instructions.Resolve(request, manifest, ROOT)]
    # Whatever comes late changes nothing.
    bench.published(1)
    bench.published(99)
    assert len(bench.of(instructions.Resolve)) == 1


def test_nothing_waits_for_the_output_of_a_query_that_is_gone() -> None:
    bench = Outputs(max_unpublished=1)
    first = bench.request()
    bench.complete(1)
    bench(events.QueryRemoved("down"))
    bench.published(1, "up")
    assert bench.answered == [first]
    assert not bench.machine.checkpoints.publications.are_full
    bench.request()
    assert list(bench.machine.checkpoints.pending) == [2]


def test_the_last_query_that_is_gone_ends_a_publication() -> None:
    bench = Outputs(max_unpublished=1)
    first = bench.request()
    bench.complete(1)
    bench.published(1, "up")
    waiting = bench.request()
    bench(events.QueryRemoved("down"))
    assert bench.answered == [first]
    assert [pending.request for pending in bench.machine.checkpoints.pending.values()] == [waiting]


def test_only_queries_with_transactional_sinks_publish() -> None:
    bench = Outputs(transactional=("up",))
    request = bench.request()
    bench.complete(1)
    assert bench.of(instructions.Publish) == [instructions.Publish(1, ("up",))]
    bench.published(1, "up")
    assert bench.answered == [request]


def test_without_transactional_sinks_a_request_is_answered_at_once() -> None:
    bench = Outputs(transactional=())
    request = bench.request()
    bench.complete(1)
    assert (bench.of(instructions.Publish), bench.answered) == ([], [request])


def test_a_checkpoint_whose_manifest_was_not_written_publishes_nothing() -> None:
    bench = Outputs()
    bench.trigger(1)
    bench.acknowledge(1)
    bench.not_finalized(1)
    assert bench.of(instructions.Publish) == []


# The checkpoint is complete: that its target is away is no failure.
def test_at_its_deadline_a_request_is_answered_all_the_same() -> None:
    bench = Outputs(timeout="30 s")
    request = bench.request()
    bench.complete(1)
    assert bench.machine.next_deadline() == 130.0
    bench(events.Tick(), 129.9)
    assert bench.answered == []
    bench(events.Tick(), 130.0)
    assert bench.answered == [request]
    assert (bench.reasons(), bench.counts()) == ([], (1, 0))
    # There is nothing more to wait for, and no second answer.
    assert bench.machine.next_deadline() is None
    bench.published(1)
    assert bench.answered == [request]


def test_checkpoints_complete_while_a_target_is_away_up_to_as_many_as_may_wait() -> None:
    bench = Outputs(max_unpublished=2, retained=9)
    for checkpoint in (1, 2):
        bench.request()
        bench.complete(checkpoint)
    assert [one.checkpoint for one in bench.of(instructions.Publish)] == [1, 2]
    assert bench.machine.checkpoints.publications.are_full
    third = bench.request()
    assert list(bench.machine.checkpoints.pending) == []
    bench.published(1)
    assert list(bench.machine.checkpoints.pending) == [3]
    bench.complete(3)
    bench.published(2)
    bench.published(3)
    assert bench.answered[-1] is third


def test_checkpoints_that_are_pending_when_no_more_may_wait_still_complete() -> None:
    bench = Outputs(max_unpublished=1, max_concurrent=2)
    bench.trigger(1)
    bench.trigger(2)
    bench.acknowledge(1)
    bench.finalize(1)
    bench.acknowledge(2)
    bench.finalize(2)
    assert [one.checkpoint for one in bench.of(instructions.Publish)] == [1, 2]


def test_a_periodic_request_waits_for_the_target_for_as_long_as_it_takes() -> None:
    bench = Outputs(max_unpublished=1, timeout="30 s", max_concurrent=1)
    bench(events.ScheduleStarted(0.5))
    bench.completed()
    for _ in range(20):
        bench.now += 20
        bench(events.Tick())
    assert bench.reasons() == []
    assert len(bench.machine.admission.queue) == 1
    bench.published(1)
    assert list(bench.machine.checkpoints.pending) == [2]
    assert bench.machine.checkpoints.pending[2].request.is_periodic


def test_a_request_that_somebody_waits_for_expires_says_why_and_is_no_failed_checkpoint() -> None:
    bench = Outputs(max_unpublished=1, timeout="30 s")
    first = bench.request()
    bench.complete(1)
    second = bench.request()
    bench(events.Tick(), bench.now + 31)
    assert bench.answered == [first]
    assert bench.reasons() == [Reason.TOO_MANY_REQUESTS]
    assert not Reason.TOO_MANY_REQUESTS.counted
    (reject,) = bench.of(instructions.Reject)
    assert reject.request is second
    assert "1 checkpoints have output that its targets have not taken" in reject.error.detail


def test_a_request_has_its_full_time_again_once_the_target_is_back() -> None:
    bench = Outputs(max_unpublished=1, timeout="30 s")
    bench(events.ScheduleStarted(0.5))
    bench.completed()
    bench.now += 500
    bench(events.Tick())
    bench(going_back("a host is gone"))
    bench.published(1)
    bench(events.Tick(), bench.now + 29)
    assert bench.reasons() == []
    assert len(bench.machine.admission.queue) == 1


def test_a_savepoint_publishes_nothing_and_is_answered_at_once() -> None:
    bench = Outputs()
    request = bench.request(CheckpointKind.SAVEPOINT)
    bench.complete(1)
    assert (bench.of(instructions.Publish), bench.answered) == ([], [request])
    assert not bench.machine.checkpoints.publications.are_full


def test_going_back_ends_nothing_that_is_being_published() -> None:
    bench = Outputs()
    request = bench.request()
    bench.complete(1)
    bench(going_back("a host is gone"))
    bench(RUNS)
    bench(events.PipelineRestored(1))
    assert bench.answered == []
    bench.published(1)
    assert bench.answered == [request]


def test_when_the_coordinator_closes_what_is_complete_is_answered() -> None:
    bench = Outputs()
    request = bench.request()
    bench.complete(1)
    bench(STOPPED)
    assert bench.answered == [request]
    assert bench.reasons() == []
    bench.published(1)
    assert bench.answered == [request]


# Nobody looks at deadlines any more.
def test_a_checkpoint_that_completes_after_the_coordinator_has_closed_is_answered_at_once() -> None:
    bench = Outputs()
    request = bench.trigger(1)
    bench.acknowledge(1)
    bench(STOPPED)
    bench.finalize(1)
    assert bench.answered == [request]
    assert bench.of(instructions.Publish) == [instructions.Publish(1, ("down", "up"))]


@pytest.mark.parametrize("overdue", [False, True])
def test_a_request_that_has_its_answer_gets_no_second_one(overdue: bool) -> None:
    """Its manifest took so long that it was told so, and then it completes after all."""
    bench = Outputs(timeout="30 s")
    bench.trigger(1)
    bench.acknowledge(1)
    if overdue:
        bench(events.Tick(), 131.0)
    bench.finalize(1)
    bench.published(1)
    assert (len(bench.reasons()), len(bench.answered)) == ((1, 0) if overdue else (0, 1))
