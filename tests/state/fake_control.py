"""The coordinator as state hosts see it: a plain object that answers them and records what they say."""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable
from typing import Any

from chandy.state.rpc import messages
from chandy.state.rpc.orders import SnapshotOrder
from chandy.state.shards import RestoreSource, ResumePoint, ShardId
from chandy.storage.ids import BatchId, CheckpointId

from ..waiting import DEADLINE


class FakeControl:
    """``Control`` as a plain object: a test sets what it answers and reads what it was told."""

    def __init__(self) -> None:
        self.forget()
        self.handlers: dict[type[messages.Message[Any]], Callable[[Any], Any]] = {
            messages.AskBatch: self._ask,
            messages.ClaimShards: self._claim,
            messages.ShardsRestored: lambda restored: self.told.put(restored),
            messages.ShardNotOpened: lambda given_up: self.given_up.put(given_up),
            messages.Ack: lambda ack: self.acks.put(ack),
            messages.Decline: lambda decline: self.declines.put(decline),
            messages.CopyReport: lambda report: self.moves.put(report),
            messages.DropStandby: self._drop_standby,
            messages.TaskFailure: lambda failure: self.reports.append(failure),
        }

    def forget(self) -> None:
        """Forget what a test has set and what it was told."""
        self.asked: list[messages.AskBatch] = []
        self.claims: list[messages.ClaimShards] = []
        self.told: queue.Queue[messages.ShardsRestored] = queue.Queue()
        self.given_up: queue.Queue[messages.ShardNotOpened] = queue.Queue()
        self.acks: queue.Queue[messages.Ack] = queue.Queue()
        self.declines: queue.Queue[messages.Decline] = queue.Queue()
        self.moves: queue.Queue[messages.CopyReport] = queue.Queue()
        self.dropped: list[messages.DropStandby] = []
        self.drop_refusal: Exception | None = None
        self.kept: tuple[int, ...] = ()
        self.reports: list[messages.TaskFailure] = []
        self.ahead: dict[int, tuple[SnapshotOrder, ...]] = {}
        self.times: dict[int, messages.BatchTimes] = {}
        self.sources: dict[int, RestoreSource] = {}
        self.resume_point: ResumePoint | None = None
        self.elsewhere: dict[int, str] = {}
        self.refusal: Exception | None = None
        self.ask_gate, self.claim_gate = threading.Event(), threading.Event()
        self.ask_gate.set()
        self.claim_gate.set()

    def send(self, message: messages.Message[messages.Reply]) -> messages.Reply:
        answer: messages.Reply = self.handlers[type(message)](message)
        return answer

    def _ask(self, ask: messages.AskBatch) -> messages.BatchAnswer:
        self.asked.append(ask)
        assert self.ask_gate.wait(DEADLINE)
        if self.refusal:
            raise self.refusal
        return messages.BatchAnswer(
            self.ahead.get(ask.batch, ()), self.times.get(ask.batch, messages.BatchTimes())
        )

    def _claim(self, claim: messages.ClaimShards) -> messages.ClaimAnswer:
        self.claims.append(claim)
        assert self.claim_gate.wait(DEADLINE)
        if self.refusal:
            raise self.refusal
        apart = {*self.elsewhere, *self.kept}
        granted = {shard: self.sources.get(shard) for shard in claim.shards if shard not in apart}
        elsewhere = {s: a for s, a in self.elsewhere.items() if s in claim.shards}
        kept = tuple(shard for shard in self.kept if shard in claim.shards)
        return messages.ClaimAnswer(granted, elsewhere, self.resume_point, kept)

    def _drop_standby(self, drop: messages.DropStandby) -> None:
        if self.drop_refusal:
            raise self.drop_refusal
        self.dropped.append(drop)

    def acked(self) -> messages.Ack:
        """The next acknowledgement; a decline instead is a failure."""
        end = time.monotonic() + DEADLINE
        while time.monotonic() < end:
            try:
                return self.acks.get(timeout=0.02)
            except queue.Empty:
                assert self.declines.empty(), self.declines.get().error
        raise AssertionError("no acknowledgement")

    def declined(self) -> str:
        """The error of the next decline."""
        return self.declines.get(timeout=DEADLINE).error

    def restore_from(self, ack: messages.Ack, root: str, batch: int) -> None:
        """Let claims get the state of an acknowledged checkpoint."""
        for snapshot in ack.snapshots:
            source = RestoreSource(root, ack.checkpoint, BatchId(batch), snapshot.handle)
            self.sources[snapshot.shard.shard] = source


def order(store: str, checkpoint: int, cut: int, shards: tuple[int, ...], **more: object) -> SnapshotOrder:
    """An order for shards of operator "op" of query "q"; ``more`` takes the place of what it usually has."""
    values: dict[str, Any] = {"root": store, "base": None}
    values |= {"triggered_at": time.time(), "seconds_left": 60.0} | more
    ids = tuple(ShardId("op", shard) for shard in shards)
    return SnapshotOrder(CheckpointId(checkpoint), "query", "q", BatchId(cut), ids, **values)
