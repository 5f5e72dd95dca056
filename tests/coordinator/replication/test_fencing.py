"""A pipeline that has been taken over has lost its replicas, too: it begins none, and drops none."""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import ExitStack
from types import SimpleNamespace
from typing import Any

import pytest

from chandy import Permit
from chandy.coordinator.channels.contract import Channels
from chandy.coordinator.config import CheckpointConfig
from chandy.coordinator.connectors.state_changes import StateChangesSource
from chandy.coordinator.execution.locked_protocol import LockedProtocol
from chandy.coordinator.execution.recording import Recording
from chandy.coordinator.execution.successor_watch import SuccessorWatch
from chandy.coordinator.recovery.runs import Runs
from chandy.coordinator.replication.replica import Replica
from chandy.coordinator.replication.replicating import Replicating
from chandy.coordinator.user_acts import UserActs
from chandy.coordinator.wiring.taken_pipeline import FoundPipeline, PipelineTakeover
from chandy.state.local.processes import Process
from chandy.storage.checkpoints.catalog import Catalog
from chandy.storage.checkpoints.pins import Pins, pins
from chandy.storage.errors import FencedError

from ...builders import AskingProof, MemoryStore, make_manifest
from ..protocol.bench import Bench
from ..stand_ins import watch_of


class Touched(Exception):
    """Something was done."""


def touched(*args: Any, **kwargs: Any) -> Any:
    raise Touched


class OfB:
    """A pipeline that driver A has led, and driver B has taken over. Its reader has pinned checkpoint 1."""

    def __init__(self) -> None:
        self.store = MemoryStore()
        self.catalog = Catalog(self.store)
        self.a = AskingProof(self.store, self.catalog.take_over("A", 0.0).generation)
        self.catalog.commit(make_manifest(1))
        self.pins = Pins(self.store, "r")
        self.pins.hold(1, 0.0)
        self.b = AskingProof(self.store, self.catalog.take_over("B", 1.0).generation)

    @property
    def pinned(self) -> tuple[int, ...]:
        return pins(self.store).get("r", ())


@pytest.fixture
def of_b() -> OfB:
    return OfB()


def test_a_fenced_driver_begins_no_replica(of_b: OfB) -> None:
    nothing: Any = None
    replicating = Replicating(
        touched, nothing, "p", "memory://", "memory://p", CheckpointConfig(), Permit(), of_b.a, nothing
    )
    with pytest.raises(FencedError):
        replicating.replica(
            nothing,
            nothing,
            nothing,
            state=None,
            to=(),
            name="r",
            format=None,
            before=False,
            shards_per_batch=None,
            registry=None,
        )


def test_a_pipeline_within_one_that_was_taken_over_is_not_taken_over(of_b: OfB) -> None:
    """It would fence the replica of the successor, which then has failed for good."""
    inner = Catalog(MemoryStore())
    generation = inner.take_over("B's replica", 0.0).generation
    takeover = PipelineTakeover(
        "p.replica.r",
        inner,
        CheckpointConfig(),
        "latest",
        lambda: 0.0,
        Process.of(os.getpid()),
        Permit(),
        Runs(Channels(), Recording()),
        of_b.a,
    )
    with ExitStack() as closing, pytest.raises(FencedError):
        takeover.now(FoundPipeline([], None, ()), closing)
    assert inner.newest_generation() == generation


def test_what_takes_a_pipeline_over_takes_over_what_is_within(of_b: OfB) -> None:
    inner = Catalog(MemoryStore())
    watch = SuccessorWatch(
        inner,
        inner.take_over("A's replica", 0.0).generation,
        trusts_look=0.0,
        hold_lease=lambda: 0.0,
        within=of_b.a,
    )
    told: list[FencedError] = []
    watch.listen(told.append)
    for check in (watch.proof.check, watch.proof.check_now, watch.look):
        with pytest.raises(FencedError):
            check()
    assert len(told) == 1
    watch_of(inner, watch.proof.generation).proof.check_now()


def test_a_fenced_driver_releases_nothing_that_its_successor_goes_on_from(of_b: OfB) -> None:
    source = StateChangesSource(of_b.pins, "copy", of_b.a)

    def replica(proof: AskingProof, stop: Callable[..., object]) -> Replica:
        pipeline: Any = SimpleNamespace(queries=(), stop=stop)
        return Replica(
            name="r",
            operator="totals",
            state="s",
            format="upsert",
            pipeline=pipeline,
            source=source,
            proof=proof,
            acts=UserActs(LockedProtocol(Bench().machine, lambda: 0.0)),
        )

    with pytest.raises(FencedError):
        replica(of_b.a, touched).drop()
    source._release(2)
    with pytest.raises(FencedError):
        of_b.pins.release(of_b.a)
    assert of_b.pinned == (1,)
    replica(of_b.b, lambda timeout: None).drop()
    assert of_b.pinned == ()
