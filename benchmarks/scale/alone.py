"""The checkpoint protocol alone, fed with events in this thread: processor time of ACKs, and memory."""

from __future__ import annotations

import gc
import time
import tracemalloc
from collections.abc import Iterator, Sequence

import attrs

from chandy.coordinator.config import CheckpointConfig
from chandy.coordinator.protocol import events as on
from chandy.coordinator.protocol.instructions import Discard
from chandy.coordinator.protocol.state_machine import CheckpointStateMachine, Outcome
from chandy.state.rpc.messages import Ack, ClaimShards, HostHello, SnapshotOrder
from chandy.storage.codec import from_json, to_json
from chandy.storage.manifest import CheckpointKind, Handle, QueryRecord

from .made import QUERY, QUERY_ID, UID, Fleet, acknowledgements

RETAINED = 3
_START = 1_700_000_000.0


@attrs.frozen
class Handled:
    """What one checkpoint cost the protocol."""

    acks_cpu: float
    """Seconds of processor time of all ACK events."""
    outcome_cpu: float
    """The same of the events from there to its completion."""
    longest: float
    """Seconds of the longest event of all: as long the lock is held, and a batch that begins waits."""


def new_protocol(fleet: Fleet, generation: int, root: str) -> CheckpointStateMachine:
    """Return the protocol of a pipeline with one query that has one operator."""
    protocol = CheckpointStateMachine(
        pipeline="scale",
        generation=generation,
        root=root,
        limits=CheckpointConfig(interval=None, retained=RETAINED).limits,
        next_id=1,
    )
    operators = (fleet.operator(),)
    added = on.QueryAdded(QUERY, QUERY_ID, batch=0, operators=operators, restored=operators, sources={})
    protocol.handle(added, _START)
    return protocol


class Alone:
    """A protocol without threads, store or link."""

    def __init__(self, fleet: Fleet) -> None:
        self._fleet = fleet
        self._now = _START
        self.protocol = new_protocol(fleet, 1, "file:///scale")
        for host, shards in fleet.hosts.items():
            self._handle(on.HostJoined(HostHello(host, f"grpc://{host}:1", host, host, 1)))
            self._handle(on.ShardsClaimed(ClaimShards(host, QUERY_ID, UID, shards)))

    def _handle(self, event: on.Event[on.Answer]) -> Outcome[on.Answer]:
        return self.protocol.handle(event, self._now)

    def checkpoint(self) -> Handled:
        """Run one checkpoint through all its events."""
        protocol = self.protocol
        checkpoint, batch = protocol.next_id, protocol.next_id
        self._now += 10
        self._handle(on.CheckpointRequested(CheckpointKind.MANUAL))
        self._handle(on.CutChosen(checkpoint, QUERY, batch))
        laps = Laps()
        with laps:
            self._handle(on.PlanningDone(checkpoint))
        with laps:
            self._handle(on.BatchCommitted(QUERY, batch))
        self._handle(on.ProgressStored(checkpoint, QueryRecord(QUERY, batch, Handle()), 0))
        acks = Laps()
        for ack in self._acks(protocol.pending[checkpoint].parts[QUERY].orders):
            with acks:
                self._handle(on.Acked(ack))
        outcome = Laps()
        with outcome:
            manifest = protocol.manifest(checkpoint, self._now)
        assert manifest is not None
        with outcome:
            protocol.doomed(manifest)
        with outcome:
            instructions = self._handle(on.Finalized(manifest)).instructions
        for instruction in instructions:
            if isinstance(instruction, Discard):
                self._handle(on.Discarded(len(instruction.dropped)))
        return Handled(acks.total, outcome.total, max(laps.longest, acks.longest, outcome.longest))

    def _acks(self, orders: dict[str, SnapshotOrder]) -> Iterator[Ack]:
        for host, order in orders.items():
            for ack in acknowledgements(order, host, self._fleet.acks_a_message):
                # As it comes through the link: with strings of its own.
                yield from_json(Ack, to_json(ack))


class Laps:
    """Processor time of this thread in one stretch after the other; a context manager."""

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
    """Measure some checkpoints, after those until retention drops one for each that completes."""
    alone = Alone(fleet)
    for _ in range(RETAINED):
        alone.checkpoint()
    return [alone.checkpoint() for _ in range(checkpoints)]


def held(fleet: Fleet, after: Sequence[int]) -> list[float]:
    """Return the bytes that a protocol holds after each of these numbers of checkpoints, ascending."""
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
