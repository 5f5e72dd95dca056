"""One checkpoint on its way."""

from __future__ import annotations

import itertools

import attrs
import pytest
from hypothesis import given
from hypothesis import strategies as st

from chandy.coordinator.errors import PhaseError
from chandy.coordinator.protocol.pending import PHASES, AckResult, CheckpointPhase, PendingCheckpoint
from chandy.coordinator.protocol.reasons import Reason
from chandy.coordinator.protocol.requests import Request
from chandy.coordinator.protocol.totals import PhaseSeconds
from chandy.state.shards import ShardId
from chandy.storage.checkpoints.manifest import (
    CheckpointKind,
    FileRef,
    Handle,
    Manifest,
    OperatorRecord,
    QueryRecord,
)

SHARDS = (ShardId("op", 0), ShardId("op", 1))
PROGRESS = QueryRecord("q", 4, Handle())
OPERATOR = OperatorRecord("op", "q", "{}", {}, (None, None))


def handle(name: str) -> Handle:
    return Handle((FileRef("CURRENT", name, 3, "00"),))


def pending(*, collecting: bool = True, kind: CheckpointKind = CheckpointKind.MANUAL) -> PendingCheckpoint:
    made = PendingCheckpoint(7, Request(1, kind, 1.0), "file:///store", 6, 1.0, 11.0)
    made.cut_at("q", 4)
    if collecting:
        made.enter(CheckpointPhase.COLLECTING, 2.0)
        made.expect("q", SHARDS, {}, (OPERATOR,))
    return made


def finalizing() -> PendingCheckpoint:
    made = pending()
    for number, shard in enumerate(SHARDS):
        made.acknowledge_shard("q", shard, handle(f"pack-{number}"), 10)
    made.acknowledge_query(PROGRESS, 5)
    made.enter(CheckpointPhase.FINALIZING, 2.0)
    return made


def manifest(of: PendingCheckpoint) -> Manifest:
    return of.manifest(pipeline="p", generation=2, completed_at=9.0, versions={"chandy": "1"})


def test_its_time_is_that_of_its_phases() -> None:
    one = pending(collecting=False)
    assert one.seconds(3.0) == PhaseSeconds(planning=2.0)
    one.enter(CheckpointPhase.COLLECTING, 3.0)
    assert one.seconds(7.0) == PhaseSeconds(2.0, 4.0)
    one.expect("q", (), {}, ())
    one.acknowledge_query(PROGRESS, 5)
    one.enter(CheckpointPhase.FINALIZING, 7.0)
    one.enter(CheckpointPhase.OVERDUE, 9.0)
    one.enter(CheckpointPhase.COMPLETED, 15.0)
    assert one.seconds(15.0) == PhaseSeconds(2.0, 4.0, 8.0)
    assert sum(attrs.astuple(one.seconds(15.0))) == 15.0 - one.triggered_at


def test_it_is_fully_acknowledged_at_the_last_distinct_acknowledgement_and_not_before() -> None:
    one = pending()
    for shard in SHARDS:
        assert not one.is_fully_acknowledged
        assert one.acknowledge_shard("q", shard, handle("pack")) is AckResult.ACCEPTED
    assert not one.is_fully_acknowledged
    assert one.acknowledge_query(PROGRESS, 0) is AckResult.ACCEPTED
    assert one.is_fully_acknowledged
    assert list(one.missing()) == []


def test_the_same_acknowledgement_again_is_a_duplicate_and_the_first_one_stands() -> None:
    one = pending()
    assert one.acknowledge_shard("q", SHARDS[0], handle("first"), 10) is AckResult.ACCEPTED
    assert one.acknowledge_shard("q", SHARDS[0], handle("second"), 10) is AckResult.DUPLICATE
    assert one.handles == {SHARDS[0]: handle("first")}
    assert one.new_bytes == 10
    assert one.acknowledge_query(PROGRESS, 1) is AckResult.ACCEPTED
    assert one.acknowledge_query(PROGRESS, 1) is AckResult.DUPLICATE
    assert one.new_bytes == 11
    assert not one.is_fully_acknowledged


@pytest.mark.parametrize(
    ("query", "shard"), [("q", ShardId("op", 2)), ("q", ShardId("x", 0)), ("x", SHARDS[0])]
)
def test_an_acknowledgement_of_no_participant_is_unknown_and_changes_nothing(
    query: str, shard: ShardId
) -> None:
    one, untouched = pending(), pending()
    assert one.acknowledge_shard(query, shard, handle("pack"), 10) is AckResult.UNKNOWN
    assert list(one.missing()) == list(untouched.missing())
    assert (one.handles, one.new_bytes) == ({}, 0)


def test_progress_at_another_cut_is_unknown() -> None:
    one = pending()
    assert one.acknowledge_query(QueryRecord("q", 5, Handle()), 0) is AckResult.UNKNOWN
    assert one.acknowledge_query(QueryRecord("x", 4, Handle()), 0) is AckResult.UNKNOWN


def test_nothing_can_be_acknowledged_before_the_cut_has_committed() -> None:
    one = pending(collecting=False)
    one.enter(CheckpointPhase.COLLECTING, 2.0)
    assert one.acknowledge_shard("q", SHARDS[0], handle("pack")) is AckResult.UNKNOWN
    assert list(one.missing()) == ["the commit of batch 4 of query 'q'"]


def test_a_checkpoint_that_is_being_planned_is_never_fully_acknowledged() -> None:
    one = PendingCheckpoint(7, Request(1, CheckpointKind.MANUAL, 1.0), "file:///store", None, 1.0, 11.0)
    assert not one.is_fully_acknowledged


def test_a_shard_that_holds_nothing_counts_as_acknowledged_and_has_no_state_in_the_manifest() -> None:
    one = pending()
    one.acknowledge_shard("q", SHARDS[0], None)
    one.acknowledge_shard("q", SHARDS[1], handle("pack"))
    one.acknowledge_query(PROGRESS, 0)
    one.enter(CheckpointPhase.FINALIZING, 2.0)
    (operator,) = manifest(one).operators
    assert operator.shards == (None, handle("pack"))


def test_finalizing_before_all_have_acknowledged_is_refused_with_what_is_missing() -> None:
    one = pending()
    one.acknowledge_shard("q", SHARDS[0], handle("pack"))
    with pytest.raises(PhaseError) as raised:
        one.enter(CheckpointPhase.FINALIZING, 2.0)
    assert raised.value.missing == ("the progress of query 'q'", "shard 1 of operator 'op'")
    assert one.phase is CheckpointPhase.COLLECTING


def test_there_is_no_manifest_of_a_checkpoint_that_is_not_being_finalized() -> None:
    with pytest.raises(PhaseError):
        manifest(pending())


def test_no_savepoint_is_subsumed_by_a_checkpoint_that_completes_before_it() -> None:
    savepoint = pending(kind=CheckpointKind.SAVEPOINT)
    with pytest.raises(PhaseError):
        savepoint.enter(CheckpointPhase.ABORTED, 2.0, Reason.SUBSUMED)
    assert savepoint.phase is CheckpointPhase.COLLECTING
    pending().enter(CheckpointPhase.ABORTED, 2.0, Reason.SUBSUMED)


def test_only_the_ways_from_planning_over_collecting_and_finalizing_to_one_end_are_open() -> None:
    open_ways = {
        (CheckpointPhase.PLANNING, CheckpointPhase.COLLECTING),
        (CheckpointPhase.PLANNING, CheckpointPhase.ABORTED),
        (CheckpointPhase.COLLECTING, CheckpointPhase.FINALIZING),
        (CheckpointPhase.COLLECTING, CheckpointPhase.ABORTED),
        (CheckpointPhase.FINALIZING, CheckpointPhase.COMPLETED),
        (CheckpointPhase.FINALIZING, CheckpointPhase.ABORTED),
        (CheckpointPhase.FINALIZING, CheckpointPhase.OVERDUE),
        (CheckpointPhase.OVERDUE, CheckpointPhase.COMPLETED),
        (CheckpointPhase.OVERDUE, CheckpointPhase.ABORTED),
    }
    for start, end in itertools.product(CheckpointPhase, CheckpointPhase):
        one = finalizing()
        one.phase = start
        if (start, end) in open_ways:
            one.enter(end, 2.0, Reason.DECLINED)
            assert one.phase is end
        else:
            with pytest.raises(PhaseError):
                one.enter(end, 2.0)
            assert one.phase is start


def test_every_phase_has_its_rules_and_a_checkpoint_is_revocable_until_its_manifest_is_being_written() -> (
    None
):
    assert set(PHASES) == set(CheckpointPhase)
    one = pending(collecting=False)
    assert one.is_revocable
    one.enter(CheckpointPhase.COLLECTING, 2.0)
    assert one.is_revocable
    written = finalizing()
    assert not written.is_revocable
    assert written.is_awaited
    written.enter(CheckpointPhase.OVERDUE, 2.0)
    assert not written.is_revocable
    assert not written.is_awaited
    assert manifest(written).id == written.id


def test_the_manifest_names_exactly_what_was_acknowledged_and_only_the_queries_of_the_cut() -> None:
    made = manifest(finalizing())
    assert (made.id, made.generation, made.triggered_at, made.completed_at) == (7, 2, 1.0, 9.0)
    assert made.queries == (PROGRESS,)
    assert [(o.uid, o.shards) for o in made.operators] == [("op", (handle("pack-0"), handle("pack-1")))]
    assert made.new_bytes == 25


def test_who_must_acknowledge_is_fixed_once() -> None:
    one = pending()
    one.acknowledge_shard("q", SHARDS[0], handle("pack"))
    one.expect("q", SHARDS, {}, ())
    assert "shard 0 of operator 'op'" not in list(one.missing())


@given(st.permutations(["commit a", "progress a", 0, 1, "commit b", "progress b"]))
def test_it_is_fully_acknowledged_exactly_when_nothing_is_missing(events: list[int | str]) -> None:
    made = pending(collecting=False)
    made.parts.clear()
    made.cut_at("a", 4)
    made.cut_at("b", 5)
    assert not made.is_fully_acknowledged
    made.enter(CheckpointPhase.COLLECTING, 2.0)
    for event in [*events, 0, 1]:
        match event:
            case "commit a":
                made.expect("a", SHARDS, {}, (OPERATOR,))
            case "commit b":
                made.expect("b", (), {}, ())
            case "progress a":
                made.acknowledge_query(QueryRecord("a", 4, Handle()), 0)
            case "progress b":
                made.acknowledge_query(QueryRecord("b", 5, Handle()), 0)
            case int():
                made.acknowledge_shard("a", SHARDS[event], handle("pack"))
        assert made.is_fully_acknowledged == (list(made.missing()) == [])
    assert made.is_fully_acknowledged
