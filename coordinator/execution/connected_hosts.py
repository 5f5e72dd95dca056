"""What state hosts ask and report, the orders to them, and which of them are still there."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import attrs

from ...state.errors import HostDismissedError
from ...state.rpc import messages
from ...state.rpc.orders import Order, StopHost
from ...state.shards import ShardId
from ...storage import runtime
from ...storage.checkpoints.proof import FenceProof
from ...storage.ids import BatchId
from ...storage.logs import logger
from ..protocol import events, host_watch
from ..protocol.copies import HAND_OVER_SECONDS
from .disk_watch import DiskWatch
from .host_process import end_host
from .locked_protocol import LockedProtocol
from .order_streams import OrderStreams
from .reports import Reports

if TYPE_CHECKING:
    from structlog.stdlib import BoundLogger

log = logger(__name__)


class ConnectedHosts:
    """The state hosts that read their orders, and what becomes of their messages.

    Args:
        protocol: the protocol of the pipeline.
        proof: a batch begins only where there is no successor.
        times: when a planned batch of the query with this Spark id is.
        clock: seconds since 1970, never going back.
        timeout: seconds of silence after which a host is taken for lost.
        reports: is told of what happens.
    """

    def __init__(
        self,
        protocol: LockedProtocol,
        proof: FenceProof,
        *,
        times: Callable[[str, BatchId], messages.BatchTimes],
        clock: Callable[[], float],
        timeout: float,
        reports: Reports,
    ) -> None:
        self._protocol = protocol
        self._proof = proof
        self._times = times
        self._clock = clock
        self._reports = reports
        self._order_streams = OrderStreams()
        self._lock = runtime.lock()
        """Held while the machine hears that a host comes or goes, so that it hears so in the right order."""
        self._watch = host_watch.HostWatch(timeout)
        self.disks = DiskWatch()
        """What is free on their disks."""
        self._streams: dict[str, object] = {}
        self._hellos: dict[str, messages.HostHello] = {}
        self._dismissed: set[str] = set()
        self._stopped = False
        self.handlers: dict[type[messages.Message[Any]], Callable[[Any], object]] = {
            messages.AskBatch: self.ask,
            messages.ClaimShards: self.claim,
            messages.Ack: self.ack,
            messages.Decline: self.decline,
            messages.CopyReport: self.moved,
            messages.DropStandby: self.drop_standby,
            messages.HostPulse: self.pulse,
            messages.TaskFailure: reports.processor_failed,
            messages.ShardsRestored: self.restored,
            messages.ShardNotOpened: self.not_opened,
        }
        """What answers each class of messages."""

    # --- what they ask and report ---------------------------------------------------------------------------

    def ask(self, ask: messages.AskBatch) -> messages.BatchAnswer:
        """Answer "begin batch". While a shard of the query is handed over to another host, there is no answer.

        Raises:
            FencedError: another coordinator has taken the pipeline over.
            StorageError: nobody knows: the last look is too long ago, and the store does not answer.
        """
        while (answer := self.ask_once(ask)) is None:
            self._protocol.wait_until(lambda state: not state.holds(ask.query_id), HAND_OVER_SECONDS)
        return answer

    def ask_once(self, ask: messages.AskBatch) -> messages.BatchAnswer | None:
        """Answer as ``ask``; return None while a shard of the query is handed over."""
        self._proof.check()
        self._check_not_dismissed(ask.host)
        if (answer := self._protocol.handle_often(events.BatchAsked(ask))) is None:
            return None
        # Spark has logged the times of a batch before its tasks run, so every attempt at it gets the same ones.
        return attrs.evolve(answer, times=self._times(ask.query_id, ask.batch))

    def claim(self, claim: messages.ClaimShards) -> messages.ClaimAnswer:
        """Make a host the owner of shards."""
        self._check_not_dismissed(claim.host)
        return self._protocol.handle(claim)

    def ack(self, ack: messages.Ack) -> None:
        """Record an acknowledgement."""
        self._check_not_dismissed(ack.host)
        results = self._protocol.handle_often(events.Acked(ack))
        log.debug("ack", checkpoint=ack.checkpoint, host=ack.host, results=[r.value for r in results])

    def decline(self, decline: messages.Decline) -> None:
        """Record that a host cannot do its part of a checkpoint."""
        log.warning("a state host declined", checkpoint=decline.checkpoint, error=decline.error)
        self._protocol.handle(decline)

    def moved(self, report: messages.CopyReport) -> None:
        """Record how far a move is."""
        self._check_not_dismissed(report.host)
        if report.step is messages.CopyStep.FAILED:
            log.warning("a shard stays where it is", copy=report.copy_id, host=report.host, why=report.why)
        self._protocol.handle(report)

    def drop_standby(self, drop: messages.DropStandby) -> None:
        """Consent that the owner of a shard goes on without its standby."""
        self._check_not_dismissed(drop.host)
        self._protocol.handle(drop)
        log.warning(
            "a shard goes on without its standby, which is behind; the next checkpoint makes another",
            uid=drop.shard.uid,
            shard=drop.shard.shard,
            host=drop.host,
        )

    def pulse(self, pulse: messages.HostPulse) -> None:
        """Record that a host lives."""
        now = self._clock()
        with self._lock:
            if (hello := self._hellos.get(pulse.host)) is None:
                return
            self._watch.heard(pulse.host, now)
            full_in = None if pulse.disk is None else self.disks.heard(hello, pulse.disk, now)
        if full_in is not None:
            log.warning(
                "the disk of a state host fills up; give it more room, or states a time to live, or drain the machine",
                machine=hello.machine,
                host=hello.host,
                disk=pulse.disk,
                full_in_minutes=round(full_in / 60),
            )

    def restored(self, restored: messages.ShardsRestored) -> None:
        """Record how shards were restored."""
        shards = tuple(ShardId(restored.uid, number) for number in restored.read)
        self._protocol.handle_often(events.ShardsRead(restored.query_id, shards))
        self._reports.shards_restored(restored)

    def not_opened(self, failed: messages.ShardNotOpened) -> None:
        """Record that a host gives up a shard that it could not open."""
        log.warning(
            "a shard could not be opened", uid=failed.shard.uid, shard=failed.shard.shard, why=failed.why
        )
        self._protocol.handle_often(failed)
        self._reports.shards_not_opened(failed.query_id, failed.why, failed.code)

    # --- orders ---------------------------------------------------------------------------------------------

    def orders(self, hello: messages.HostHello) -> Iterator[Order]:
        """Yield the orders to one host. The host counts as living as long as it reads them."""
        # A host may open a new stream before the end of its broken one is noticed.
        stream = object()
        is_replaced = self._protocol.is_dismissed(hello.host)
        if is_replaced or hello.host in self._dismissed:
            yield StopHost(is_replaced)
            return
        # A stream is read by threads of the server, which know no names.
        told = log.bind(pipeline=self._protocol.pipeline, host=hello.host, machine=hello.machine)
        # As soon as the state machine knows a host, it may have orders for it.
        with self._order_streams.connected(hello.host) as orders:
            with self._lock:
                self._streams[hello.host] = stream
                self._hellos[hello.host] = hello
                self._watch.heard(hello.host, self._clock())
                self._protocol.handle(events.HostJoined(hello))
            told.info("state host connected", pid=hello.pid)
            try:
                yield from orders
            finally:
                if not self._stopped:
                    self._stream_ended(hello, stream, told)

    def send(self, host: str, order: Order) -> None:
        """Send an order to a host, or drop it if the host is gone."""
        self._order_streams.send(host, order)

    def stop(self) -> None:
        """Tell all hosts to stop, also those that come from now on."""
        self._stopped = True
        self._order_streams.stop_all()

    def _stream_ended(self, hello: messages.HostHello, stream: object, told: BoundLogger) -> None:
        with self._lock:
            if self._streams.get(hello.host) is not stream:
                return
            self._forget_host(hello, is_silent=False)
        told.warning("state host disconnected")

    def _forget_host(self, hello: messages.HostHello, *, is_silent: bool) -> None:
        """Take a host for gone, with the lock held."""
        self._streams.pop(hello.host, None)
        self._hellos.pop(hello.host, None)
        self._watch.forget(hello.host)
        self.disks.left(hello.host)
        self._protocol.handle(events.HostLeft(hello, is_silent))

    # --- hosts that have gone silent ------------------------------------------------------------------------

    def look(self) -> None:
        """Look who is silent, and go on without those that have been so for too long."""
        with self._lock:
            verdicts = [(verdict, self._hellos[verdict.host]) for verdict in self._watch.look(self._clock())]
        for verdict, hello in verdicts:
            about = {"host": hello.host, "machine": hello.machine, "pid": hello.pid}
            match verdict:
                case host_watch.Suspected(_, silent):
                    log.warning(
                        "a state host is silent; look whether its process is stopped, its disk stalled or its "
                        "machine overloaded",
                        **about,
                        seconds=round(silent, 1),
                        lost_after=self._watch.timeout,
                    )
                case host_watch.Cleared():
                    log.warning("the state host answers again", **about)
                case host_watch.TakenForLost(_, silent):
                    self._dismiss(hello, silent)

    def _dismiss(self, hello: messages.HostHello, silent: float) -> None:
        """Go on without a host that may come back: it is killed if it can be, and nothing that it says counts."""
        with self._lock:
            self._dismissed.add(hello.host)
            self._forget_host(hello, is_silent=True)
        self._order_streams.send(hello.host, StopHost())
        killed = end_host(hello)
        log.error(
            "a state host has been silent for too long and is taken for lost"
            + ("" if killed else "; if its machine still runs, end the process there: the driver cannot"),
            host=hello.host,
            machine=hello.machine,
            pid=hello.pid,
            seconds=round(silent, 1),
        )

    def _check_not_dismissed(self, host: str) -> None:
        if host in self._dismissed:
            raise HostDismissedError(host)
