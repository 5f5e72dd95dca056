"""Drives the checkpoint protocol of one pipeline with many simulated state hosts, step by step, and counts each step.

The state machine, the watch over silent hosts and all messages are the product's own. There is no thread, no store and
no network: a message is encoded and decoded, and its bytes are counted.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Final, TypeVar

import attrs

from chandy.coordinator.execution.order_streams import HEARTBEAT_SECONDS
from chandy.coordinator.protocol import events as on
from chandy.coordinator.protocol import instructions as do
from chandy.coordinator.protocol.host_watch import LOOK_SECONDS, HostWatch, TakenForLost
from chandy.state.host.coordinator_client import PULSE_SECONDS
from chandy.state.rpc.messages import AskBatch, ClaimAnswer, ClaimShards, HostHello, HostPulse, ShardsRestored
from chandy.state.rpc.orders import Heartbeat, SnapshotOrder
from chandy.state.shards import RestoreSource, ShardId
from chandy.storage.checkpoints.manifest import CheckpointKind, Handle, Manifest, QueryRecord
from chandy.storage.codec import from_json, to_json
from chandy.storage.ids import BatchId

from ..scale.alone import Laps, new_machine
from ..scale.made import QUERY, QUERY_ID, UID, Fleet, acknowledgements

SHARDS_A_HOST: Final = 16
JOIN: Final = "all hosts join and claim their shards"
BATCH: Final = "a batch begins"
CHECKPOINT: Final = "a checkpoint"
LOSS: Final = "1 of 20 hosts is lost, and all shards are restored"
GROWTH: Final = "1 host joins for every 4"
IDLE: Final = "a second without events"
_ROOT: Final = "file:///hosts"
_HOST_TIMEOUT: Final = 10.0
T = TypeVar("T")


@attrs.frozen
class Cost:
    """What a step costs the coordinator."""

    received: int
    """Messages from hosts; the answers to them count as sent."""
    received_bytes: int
    """Of their bodies, without the headers of gRPC."""
    sent: int
    sent_bytes: int
    locked: float
    """Processor time in the state machine, under the coordinator's lock, in seconds."""
    coded: float
    """Processor time in which messages are decoded and encoded, in seconds."""
    longest: float
    """Seconds of the longest event. A batch that begins meanwhile waits so long."""

    @property
    def seconds(self) -> float:
        """Processor time of all."""
        return self.locked + self.coded


class Crowd:
    """A coordinator and its hosts. The tasks of the only operator are as many as there were hosts at first."""

    def __init__(self, hosts: int) -> None:
        self._fleet = Fleet(hosts * SHARDS_A_HOST, SHARDS_A_HOST)
        self._now, self._batch, self._run = 1_700_000_000.0, BatchId(0), QUERY_ID
        self._watch = HostWatch(_HOST_TIMEOUT)
        self._ranges = tuple(self._fleet.hosts.values())
        self._names = list(self._fleet.hosts)
        self._locked, self._coded = Laps(), Laps()
        self._received: list[int] = []
        self._sent: list[int] = []
        self._orders: dict[str, SnapshotOrder] = {}
        self._instructions: list[do.Instruction] = []
        self.machine = new_machine(self._fleet, 1, _ROOT)
        self.costs: dict[str, list[Cost]] = {}
        """The costs of each time that a step was taken, by its name."""

    @property
    def hosts(self) -> int:
        """How many hosts live."""
        return len(self._names)

    # --- steps ----------------------------------------------------------------------------------------------

    def join(self) -> None:
        """Let all hosts join at once, as when a pipeline starts, and claim all shards."""
        with self._step(JOIN):
            for host in self._names:
                self._greet(host)
            self._claim_all()

    def begin(self) -> None:
        """Begin a batch on all hosts."""
        with self._step(BATCH):
            self._batch = BatchId(self._batch + 1)
            for host in self._names:
                ask = self._receive(AskBatch(host, self._run, self._batch))
                self._send(self._handle(on.BatchAsked(ask)))

    def checkpoint(self) -> Manifest:
        """Take a checkpoint after the newest batch, from the request until all hosts know that it is complete."""
        machine = self.machine
        with self._step(CHECKPOINT):
            checkpoint = machine.checkpoints.next_id
            self._handle(on.CheckpointRequested(CheckpointKind.MANUAL))
            self._handle(on.CutChosen(checkpoint, QUERY, self._batch))
            self._handle(on.PlanningDone(checkpoint))
            self._handle(on.BatchCommitted(QUERY, self._batch))
            self._handle(on.ProgressStored(checkpoint, QueryRecord(QUERY, self._batch, Handle()), 0))
            for host, order in self._orders.items():
                for ack in acknowledgements(order, host, None):
                    self._handle(on.Acked(self._receive(ack)))
                    self._send(None)
            self._orders = {}
            with self._locked:
                manifest = machine.manifest(checkpoint, self._now)
            assert manifest is not None
            self._handle(on.Finalized(manifest))
            for instruction in self._carried(do.Discard):
                self._handle(on.Discarded(tuple(one.id for one in instruction.dropped), ()))
        return manifest

    def lose(self, number: int) -> None:
        """Cut the power of some hosts. The pipeline goes back to its checkpoint, and the others claim all shards."""
        lost, self._names = self._names[:number], self._names[number:]
        with self._step(LOSS):
            self._now += _HOST_TIMEOUT
            for host in self._names:
                self._watch.heard(host, self._now)
            with self._locked:
                verdicts = self._watch.look(self._now)
            gone = [verdict.host for verdict in verdicts if isinstance(verdict, TakenForLost)]
            assert sorted(gone) == sorted(lost)
            for host in gone:
                self._handle(on.HostLeft(self.machine.members.hosts[host]))
            assert self._carried(do.GoBack)
            self._go_back(self.machine.checkpoints.retained.manifests[-1])
            self._claim_all()

    def grow(self, number: int) -> None:
        """Let some hosts join. No shard is free, so they are told where the shards of their tasks are."""
        with self._step(GROWTH):
            joined = [f"{host:032x}" for host in range(number)]
            for host in joined:
                self._greet(host)
            self._names += joined
            for host, shards in zip(joined, self._ranges, strict=False):
                assert not self._claim(host, shards).granted

    def idle(self) -> None:
        """Let as long pass as the hosts and the coordinator take for one look: words that they live, and no more."""
        with self._step(IDLE):
            self._now += LOOK_SECONDS
            for host in self._names:
                for _ in range(round(LOOK_SECONDS / PULSE_SECONDS)):
                    pulse = self._receive(HostPulse(host, None))
                    with self._locked:
                        self._watch.heard(pulse.host, self._now)
                    self._send(None)
                for _ in range(round(LOOK_SECONDS / HEARTBEAT_SECONDS)):
                    self._send(Heartbeat())
            with self._locked:
                assert not self._watch.look(self._now)

    # --- parts of steps -------------------------------------------------------------------------------------

    def _greet(self, host: str) -> None:
        place = f"executor-{host}"
        hello = HostHello(
            host, f"grpc+unix:///tmp/{host}/host.sock", place, place, 1, place, f"grpc+tls://{place}:40001"
        )
        self._handle(on.HostJoined(self._receive(hello)))
        self._watch.heard(host, self._now)
        self._send(Heartbeat())

    def _claim_all(self) -> None:
        """Run a task for each range of shards, in turns on the hosts."""
        for number, shards in enumerate(self._ranges):
            host = self._names[number % len(self._names)]
            granted = self._claim(host, shards).granted
            assert granted.keys() == set(shards)
            if any(granted.values()):
                restored = ShardsRestored(host, self._run, UID, 0.1, 0.1, 0.1, 0, 1, shards)
                read = self._receive(restored).read
                self._handle(on.ShardsRead(self._run, tuple(ShardId(UID, shard) for shard in read)))
                self._send(None)

    def _claim(self, host: str, shards: Sequence[int]) -> ClaimAnswer:
        claim = self._receive(ClaimShards(host, self._run, UID, tuple(shards)))
        answer = self._handle(claim)
        self._send(answer)
        return answer

    def _go_back(self, manifest: Manifest) -> None:
        self._handle(on.Suspended("hosts are lost"))
        before, self._run = self._run, f"{manifest.id:08}{QUERY_ID[8:]}"
        self._batch = manifest.queries[0].batch
        operator = manifest.operators[0]
        sources = {
            ShardId(UID, shard): RestoreSource(_ROOT, manifest.id, self._batch, stored)
            for shard, stored in enumerate(operator.shards)
            if stored is not None
        }
        added = on.QueryAdded(QUERY, self._run, self._batch, (self._fleet.operator(),), sources, (operator,))
        self._handle(added)
        self._handle(on.Released((before,)))
        self._handle(on.PipelineRestored(manifest.id))

    # --- counting -------------------------------------------------------------------------------------------

    @contextmanager
    def _step(self, name: str) -> Iterator[None]:
        self._locked, self._coded, self._received, self._sent = Laps(), Laps(), [], []
        yield
        cost = Cost(
            received=len(self._received),
            received_bytes=sum(self._received),
            sent=len(self._sent),
            sent_bytes=sum(self._sent),
            locked=self._locked.total,
            coded=self._coded.total,
            longest=self._locked.longest,
        )
        self.costs.setdefault(name, []).append(cost)

    def _receive(self, message: T) -> T:
        data = to_json(message)
        self._received.append(len(data))
        with self._coded:
            return from_json(type(message), data)

    def _send(self, message: object) -> None:
        with self._coded:
            data = to_json(message)
        self._sent.append(len(data))

    def _handle(self, event: on.Event[on.Answer]) -> on.Answer:
        with self._locked:
            outcome = self.machine.handle(event, self._now)
        for instruction in outcome.instructions:
            if isinstance(instruction, do.Send):
                assert instruction.host in self._names
                self._send(instruction.order)
                if isinstance(instruction.order, SnapshotOrder):
                    self._orders[instruction.host] = instruction.order
        self._instructions.extend(outcome.instructions)
        return outcome.answer

    def _carried(self, type_: type[T]) -> list[T]:
        """Return the instructions of a kind since the last call."""
        found: list[T] = [one for one in self._instructions if isinstance(one, type_)]
        self._instructions = []
        return found
