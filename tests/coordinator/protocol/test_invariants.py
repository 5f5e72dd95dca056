"""The invariants of the protocol: each is noticed when it is broken by hand. The walks hold them after every event."""

from __future__ import annotations

import re
from collections.abc import Callable

import attrs
import pytest

from chandy.coordinator.errors import PipelineFailedError
from chandy.coordinator.protocol import events
from chandy.coordinator.protocol.copies import CopyPhase, ShardCopy
from chandy.coordinator.protocol.decisions import CheckpointsFailed, WaitToRestart
from chandy.coordinator.protocol.errors import InvariantBrokenError
from chandy.coordinator.protocol.instructions import Decided
from chandy.coordinator.protocol.invariants import CheckedStateMachine, broken_invariants
from chandy.coordinator.protocol.life import Life, Setback
from chandy.coordinator.protocol.pending import CheckpointPhase
from chandy.state.shards import ShardId
from chandy.storage.checkpoints.manifest import CheckpointKind
from tests.builders import failover

from .bench import Bench, hello

Break = Callable[[Bench], object]


@pytest.fixture
def bench() -> Bench:
    """One checkpoint is pending, and another request waits."""
    bench = Bench()
    bench.trigger(1)
    bench.request()
    return bench


def add_move(bench: Bench, **differs: object) -> None:
    one = ShardCopy(1, "up", ShardId("up-op", 0), "a", "b")
    bench.machine.placement.moves.under_way[1] = attrs.evolve(one, **differs)


def close_without_clearing(bench: Bench) -> None:
    bench.machine.failover.life = Life().stopped()


GOING_BACK = Life().set_back(Setback(PipelineFailedError("it is lost"), 0.0))

BROKEN: list[tuple[Break, str]] = [
    (lambda b: b.machine.members.hosts.update(c=hello("c", executor="a")), "two state hosts"),
    (lambda b: b.machine.members.dismissed.add("a"), "dismissed host a is a member"),
    (lambda b: setattr(b.machine.queries["up"].gate, "passed", 3), "before it has started"),
    (lambda b: b.machine.queries["up"].gate.place(7, 4), "a barrier of checkpoint 7, which is over"),
    (lambda b: setattr(b.machine.queries["up"].assignment, "shards", ()), "no such shards"),
    (lambda b: setattr(b.machine.checkpoints.pending[1], "phase", CheckpointPhase.FINALIZING), "but misses"),
    (lambda b: setattr(b.machine.checkpoints.pending[1], "phase", CheckpointPhase.ABORTED), "is aborted"),
    (lambda b: setattr(b.machine.checkpoints.pending[1], "base", 7), "has been dropped"),
    (lambda b: setattr(b.machine.checkpoints, "next_id", 1), "the next is 1"),
    (lambda b: setattr(b.machine.failover, "life", GOING_BACK), "no checkpoint may run"),
    (lambda b: setattr(b.machine.limits, "max_concurrent", 0), "0 may be"),
    (close_without_clearing, "although the coordinator is closed"),
    (lambda b: add_move(b, query="none"), "belongs to no query"),
    (lambda b: add_move(b, target="a"), "has its owner as its target"),
    (lambda b: add_move(b, target="c"), "has a target that is gone"),
    (lambda b: add_move(b, owner="b", target="a"), "has an owner without the shard"),
    (
        lambda b: add_move(b, phase=CopyPhase.STORING, checkpoint=9),
        "waits for a checkpoint that is not pending",
    ),
    (lambda b: add_move(b, phase=CopyPhase.HANDING_OVER), "without a new term"),
    (lambda b: add_move(b, phase=CopyPhase.HANDING_OVER, deadline=1.0, term=9), "waits for its snapshot"),
]


@pytest.mark.parametrize(("broken", "what"), BROKEN, ids=lambda one: one if isinstance(one, str) else "")
def test_an_invariant_that_does_not_hold_is_named(broken: Break, what: str, bench: Bench) -> None:
    assert broken_invariants(bench.machine) == []
    with pytest.MonkeyPatch.context() as patch:
        # What limits allow is frozen.
        patch.setattr(type(bench.machine.limits), "__setattr__", object.__setattr__)
        broken(bench)
    assert any(what in one for one in broken_invariants(bench.machine)), broken_invariants(bench.machine)


def test_a_checked_machine_fails_the_pipeline_and_names_the_event(bench: Bench) -> None:
    machine = CheckedStateMachine(
        pipeline="p", generation=1, root="", limits=bench.machine.limits, next_id=1, failover=failover()
    )
    assert machine.handle(events.HostJoined(hello("a")), 1.0).instructions == ()
    machine.members.dismissed.add("a")
    (failed,) = machine.handle(events.Tick(), 2.0).instructions
    assert isinstance(failed, Decided)
    assert isinstance(failed.decision, WaitToRestart)
    assert isinstance(failed.noticed, CheckpointsFailed)
    assert isinstance(failed.noticed.error, InvariantBrokenError)
    assert re.match(
        r"after Tick,.* dismissed host a is a member; .* please report", str(failed.noticed.error)
    )


def test_a_savepoint_is_no_checkpoint_that_takes_a_place(bench: Bench) -> None:
    """As many savepoints as users ask for are pending beside it."""
    bench.request(CheckpointKind.SAVEPOINT)
    assert broken_invariants(bench.machine) == []
