"""Feeds events to the checkpoint state machine alone, in this thread: processor time of ACKs, and memory."""

from __future__ import annotations

import gc
import time
import tracemalloc
from collections.abc import Iterator, Sequence

import attrs

from chandy.coordinator.config import CheckpointConfig
from chandy.coordinator.protocol import events
from chandy.coordinator.protocol.failover import Failover
from chandy.coordinator.protocol.instructions import Discard
from chandy.coordinator.protocol.state_machine import Outcome, PipelineStateMachine
from chandy.coordinator.recovery.restart import NoRestart
from chandy.state.rpc.messages import Ack, ClaimShards, HostHello
from chandy.state.rpc.orders import SnapshotOrder
from chandy.storage.checkpoints.manifest import CheckpointKind, Handle, QueryRecord
from chandy.storage.codec import from_json, to_json
from chandy.storage.ids import BatchId, CheckpointId

from .made import QUERY, QUERY_ID, UID, Fleet, acknowledgements

RETAINED = 3
_START = 1_700_000_000.0


@attrs.frozen
class Handled:
    """The costs of one checkpoint in the state machine."""

    acks_cpu: float
    """Processor time of all ACK events, in seconds."""
    outcome_cpu: float
    """Processor time of the events from the last ACK to completion, in seconds."""
    longest: float
    """Seconds of the longest event. The lock is held that long, and a batch that begins meanwhile must wait."""


def new_machine(fleet: Fleet, generation: int, root: str) -> PipelineStateMachine:
    """Return the state machine of a pipeline with one query that has one operator."""
    machine = PipelineStateMachine(
        pipeline="scale",
        generation=generation,
        root=root,
        limits=CheckpointConfig(interval=None, retained=RETAINED).limits,
        next_id=CheckpointId(1),
        failover=Failover(NoRestart().tracker(), lambda: 0.0),
    )
    operators = (fleet.operator(),)
    added = events.QueryAdded(
        QUERY, QUERY_ID, batch=BatchId(0), operators=operators, restored=operators, sources={}
    )
    machine.handle(added, _START)
    return machine


class Alone:
    """Drives a state machine without threads, a store or RPC."""

    def __init__(self, fleet: Fleet) -> None:
        self._fleet = fleet
        self._now = _START
        self.machine = new_machine(fleet, 1, "file:///scale")
        for host, shards in fleet.hosts.items():
            self._handle(events.HostJoined(HostHello(host, f"grpc://{host}:1", host, host, 1)))
            self._handle(ClaimShards(host, QUERY_ID, UID, shards))

    def _handle(self, event: events.Event[events.Answer]) -> Outcome[events.Answer]:
        return self.machine.handle(event, self._now)

    def checkpoint(self) -> Handled:
        """Run one checkpoint through all its events."""
        machine = self.machine
        checkpoint = machine.checkpoints.next_id
        batch = BatchId(checkpoint)
        self._now += 10
        self._handle(events.CheckpointRequested(CheckpointKind.MANUAL))
        self._handle(events.CutChosen(checkpoint, QUERY, batch))
        laps = Laps()
        with laps:
            self._handle(events.PlanningDone(checkpoint))
        with laps:
            self._handle(events.BatchCommitted(QUERY, batch))
        self._handle(events.ProgressStored(checkpoint, QueryRecord(QUERY, batch, Handle()), 0))
        acks = Laps()
        for ack in self._acks(machine.checkpoints.pending[checkpoint].parts[QUERY].orders):
            with acks:
                self._handle(events.Acked(ack))
        outcome = Laps()
        with outcome:
            manifest = machine.manifest(checkpoint, self._now)
        assert manifest is not None
        with outcome:
            machine.checkpoints.doomed(manifest)
        with outcome:
            instructions = self._handle(events.Finalized(manifest)).instructions
        for instruction in instructions:
            if isinstance(instruction, Discard):
                self._handle(events.Discarded(tuple(one.id for one in instruction.dropped), ()))
        return Handled(acks.total, outcome.total, max(laps.longest, acks.longest, outcome.longest))

    def _acks(self, orders: dict[str, SnapshotOrder]) -> Iterator[Ack]:
        for host, order in orders.items():
            for ack in acknowledgements(order, host, self._fleet.acks_a_message):
                # A message that arrives by RPC has its own copies of all strings.
                yield from_json(Ack, to_json(ack))


class Laps:
    """Measures the processor time of this thread, lap by lap. Each lap is a ``with`` block."""

    def __init__(self) -> None:
        self.total = self.longest = 0.0
        self._begun = 0.0

    def __enter__(self) -> None:
        self._begun = time.thread_time()

    def __exit__(self, *_: object) -> None:
        lap = time.thread_time() - self._begun
        self.total += lap
        self.longest = max(self.longest, lap)


def handled(fleet: Fleet, checkpoints: int) -> list[Handled]:
    """Measure some checkpoints, after as many that retention deletes one for each that completes."""
    alone = Alone(fleet)
    for _ in range(RETAINED):
        alone.checkpoint()
    return [alone.checkpoint() for _ in range(checkpoints)]


def held(fleet: Fleet, after: Sequence[int]) -> list[float]:
    """Return the bytes that a state machine holds after each of these numbers of checkpoints, which ascend."""
    gc.collect()
    tracemalloc.start()
    try:
        before, _ = tracemalloc.get_traced_memory()
        alone = Alone(fleet)
        sizes = []
        for number in range(1, max(after) + 1):
            alone.checkpoint()
            if number in after:
                gc.collect()
                sizes.append(float(tracemalloc.get_traced_memory()[0] - before))
        return sizes
    finally:
        tracemalloc.stop()
