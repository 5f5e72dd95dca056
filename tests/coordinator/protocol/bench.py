"""A state machine with hosts and queries whose steps a test takes one by one."""

from __future__ import annotations

from typing import Any, TypeVar

from chandy.coordinator.protocol import events, instructions
from chandy.coordinator.protocol.decisions import CheckpointsFailed, HostLost
from chandy.coordinator.protocol.pending import AckResult
from chandy.coordinator.protocol.reasons import Reason
from chandy.coordinator.protocol.requests import Request
from chandy.state.rpc.messages import Ack, ClaimShards, Decline, HostHello, ShardSnapshot
from chandy.state.rpc.orders import SnapshotOrder
from chandy.state.shards import RestoreSource, ShardId
from chandy.storage import ChandyError
from chandy.storage.checkpoints.manifest import (
    CheckpointKind,
    FileRef,
    Handle,
    Manifest,
    OperatorRecord,
    QueryRecord,
)
from chandy.storage.ids import CheckpointId
from tests.builders import failover

from ..limits import limits_of
from ..strict_machine import StrictStateMachine

ROOT = "file:///store"
SHARDS = {"up": 2, "down": 1}
T = TypeVar("T")


def handle(name: str) -> Handle:
    return Handle((FileRef("CURRENT", name, 3, "00"),))


def hello(host: str, executor: str | None = None) -> HostHello:
    return HostHello(host, f"address-{host}", "machine", executor or host, 1)


class Bench:
    """A state machine with two queries at batch 4, of which ``down`` reads ``up``. Hosts a and b own shards."""

    def __init__(
        self,
        *,
        claimed: bool = True,
        retained: int = 3,
        generation: int = 1,
        next_id: int = 1,
        base: int | None = None,
        completed: tuple[Manifest, ...] = (),
        sources: dict[ShardId, RestoreSource] | None = None,
        required: tuple[str, ...] = (),
        **config: Any,
    ) -> None:
        self.now = 100.0
        self.seen: list[instructions.Instruction] = []
        limits = limits_of(**{"interval": "10 s", "initial_delay": 10.0, "retained": retained, **config})
        self.machine = StrictStateMachine(
            pipeline="p",
            generation=generation,
            root=ROOT,
            limits=limits,
            next_id=next_id,
            failover=failover(),
            base=base,
            completed=completed,
            required=dict.fromkeys(required, CheckpointId(1)),
        )
        for host in "ab":
            self.answer(events.HostJoined(hello(host)))
        for name, reads in (("up", ()), ("down", ("up",))):
            self.add(name, reads, sources or {})
        if claimed:
            self.claim("a", "up", (0,))
            self.claim("b", "up", (1,))
            self.claim("b", "down", (0,))

    def add(
        self, name: str, reads: tuple[str, ...], sources: dict[ShardId, RestoreSource], id: str = "id"
    ) -> None:
        operator = OperatorRecord(f"{name}-op", name, "{}", {}, (None,) * SHARDS[name])
        added = events.QueryAdded(
            name,
            f"{name}-{id}",
            batch=4,
            operators=(operator,),
            restored=(operator,),
            sources=sources,
            reads=reads,
        )
        self.answer(added)

    def claim(self, host: str, query: str, shards: tuple[int, ...]) -> None:
        self.answer(ClaimShards(host, f"{query}-id", f"{query}-op", shards))

    def __call__(self, event: events.Event[Any], at: float | None = None) -> list[instructions.Instruction]:
        """Let something happen, and a moment pass; return the instructions."""
        new = list(self.machine.handle(event, self.now if at is None else at).instructions)
        self.now += 0.01
        self.seen += new
        return new

    def answer(self, event: events.Event[events.Answer]) -> events.Answer:
        """Let something happen; return its answer."""
        outcome = self.machine.handle(event, self.now)
        self.seen += outcome.instructions
        return outcome.answer

    def of(self, kind: type[T]) -> list[T]:
        return [instruction for instruction in self.seen if isinstance(instruction, kind)]

    def lost(self) -> list[str]:
        """Why the pipeline was to go back."""
        noticed = [one.noticed for one in self.of(instructions.Decided)]
        return [one.why for one in noticed if isinstance(one, HostLost)]

    def failed(self) -> list[ChandyError]:
        """By what the pipeline was to fail."""
        noticed = [one.noticed for one in self.of(instructions.Decided)]
        return [one.error for one in noticed if isinstance(one, CheckpointsFailed)]

    def orders(self, kind: type[T]) -> list[tuple[str, T]]:
        return [
            (send.host, send.order) for send in self.of(instructions.Send) if isinstance(send.order, kind)
        ]

    def reasons(self) -> list[Reason]:
        return [reject.error.reason for reject in self.of(instructions.Reject)]

    # --- what happens

    def request(
        self,
        kind: CheckpointKind = CheckpointKind.MANUAL,
        *,
        target: str | None = None,
        is_final: bool = False,
    ) -> Request:
        if kind is CheckpointKind.SAVEPOINT and target is None:
            target = "file:///savepoint"
        request = self.answer(events.CheckpointRequested(kind, target, is_final))
        self.now += 0.01
        return request

    def plan(self, checkpoint: int, planned: int = 4) -> None:
        for query in ("down", "up"):
            self.answer(events.CutChosen(checkpoint, query, planned))
        self(events.PlanningDone(checkpoint))

    def trigger(self, checkpoint: int, planned: int = 4) -> Request:
        """Ask for a checkpoint, and choose its cut."""
        request = self.request()
        self.plan(checkpoint, planned)
        return request

    def ack_of(self, host: str, order: SnapshotOrder, mark: str = "") -> Ack:
        snapshots = tuple(
            ShardSnapshot(shard, handle(f"{order.checkpoint}{mark}"), 10, 0.0, 0.0, 0.0, entries=1)
            for shard in order.shards
        )
        return Ack(host, order.checkpoint, order.query_id, snapshots)

    def acks(self, checkpoint: int) -> list[Ack]:
        orders = [(h, o) for h, o in self.orders(SnapshotOrder) if o.checkpoint == checkpoint]
        return [self.ack_of(host, order) for host, order in orders]

    def ack(self, ack: Ack) -> tuple[AckResult, ...]:
        results = self.answer(events.Acked(ack))
        self.now += 0.01
        return results

    def store_progress(self, checkpoint: int, cut: int = 4) -> None:
        for query in ("up", "down"):
            record = QueryRecord(query, cut, handle(f"progress-{checkpoint}"))
            self(events.ProgressStored(checkpoint, record, 1))

    def acknowledge(self, checkpoint: int) -> None:
        for ack in self.acks(checkpoint):
            self.ack(ack)
        self.store_progress(checkpoint)

    def finalize(self, checkpoint: int) -> Manifest:
        manifest = self.machine.manifest(checkpoint, self.now)
        assert manifest is not None
        self(events.Finalized(manifest))
        return manifest

    def complete(self, checkpoint: int) -> Manifest:
        self.plan(checkpoint)
        self.acknowledge(checkpoint)
        return self.finalize(checkpoint)

    def completed(self, *, kind: CheckpointKind = CheckpointKind.MANUAL) -> Manifest:
        checkpoint = self.machine.checkpoints.next_id
        self.request(kind)
        return self.complete(checkpoint)

    def not_finalized(self, checkpoint: int, *, is_known: bool = True) -> None:
        manifest = self.machine.manifest(checkpoint, self.now)
        assert manifest is not None
        reason = Reason.FINALIZE_CHECKPOINT_FAILURE
        self(events.NotFinalized(manifest, reason, "disk full", is_known))

    def fail(self, checkpoint: int, error: str = "no space") -> None:
        self(Decline("a", checkpoint, "up-id", error))

    def end_deletions(self) -> None:
        for discard in self.of(instructions.Discard):
            self(events.Discarded(tuple(manifest.id for manifest in discard.dropped), ()))
            self.seen.remove(discard)


def hello_on(host: str, machine: str) -> HostHello:
    return HostHello(host, f"address-{host}", machine, host, 1)
