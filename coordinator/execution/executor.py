"""Carries out the checkpoint protocol: its lock, its threads, and the I/O that its instructions ask for.

An event takes the lock, changes the state machine and leaves its instructions in one queue. Nothing else happens under
the lock. One thread hands the instructions on in their order, so that a state host never gets an abort before the order
that it aborts. Each store has threads of its own for all reading and writing: one that does not answer holds up nothing
that goes to another. Of these, one thread writes the manifests, one after the other.
"""

from __future__ import annotations

import contextlib
import queue
import tempfile
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import Future, wait
from contextlib import AbstractContextManager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar
from typing import Protocol as Interface

import attrs

from ...state.errors import HostDismissedError
from ...state.rpc.messages import (
    Ack,
    AskBatch,
    BatchAnswer,
    BatchTimes,
    ClaimAnswer,
    ClaimShards,
    Decline,
    DropStandby,
    HostHello,
    HostPulse,
    MoveReport,
    MoveStep,
    Order,
    ShardId,
    ShardNotOpened,
    ShardsRestored,
    StopOrder,
    TaskFailure,
)
from ...storage.catalog import Catalog
from ...storage.collect import discard, discard_aborted
from ...storage.errors import (
    ChandyError,
    FailureCode,
    FencedError,
    ObjectMissingError,
    OutcomeUnknownError,
    StoreFailedError,
)
from ...storage.layout import pack_key, savepoint_key, trigger_key
from ...storage.logs import carried, logger
from ...storage.manifest import ChannelRecord, CheckpointKind, Manifest, OutputRecord, QueryRecord
from ...storage.open import open_store
from ...storage.savepoint import claim_savepoint, discard_savepoint
from ...storage.snapshots import SnapshotWriter, copy_snapshot
from ...storage.store import Store
from ...storage.verification import check
from ..checkpoint import Checkpoint
from ..protocol import events as on
from ..protocol import host_watch
from ..protocol import instructions as do
from ..protocol.copies import HAND_OVER_SECONDS
from ..protocol.errors import CheckpointError
from ..protocol.event_log import EventLog, LoggedEvent
from ..protocol.reasons import Reason
from ..protocol.requests import Request
from ..protocol.state_machine import CheckpointStateMachine, Outcome
from ..protocol.statistics import Statistics
from .commit import commit_steps
from .host_process import end_host
from .order_streams import OrderStreams
from .workers import StoreWorkers, Workers

if TYPE_CHECKING:
    from structlog.stdlib import BoundLogger

log = logger(__name__)

T = TypeVar("T")

_COMMIT_POLL_SECONDS = 0.02
"""How soon the commit of a cut is noticed in an idle query; polled only while a checkpoint waits for one."""
_FENCE_SECONDS = 2.0
"""How soon it is noticed at the latest that another coordinator has taken over; a checkpoint notices at once."""
_ASK_AGAIN_SECONDS = 2.0
"""The pause before a store is asked again whether a manifest was written."""
_STOP_SECONDS = 30.0
"""How long closing waits for a manifest that is being written, and then for all else that is being done."""

_PRE_COMMITS = 5
"""How often sinks are asked what a savepoint has to publish, while retention deletes what is published."""

Job = do.Instruction | Callable[[], None]
"""What the threads do."""


class Progress(Interface):
    """What checkpoints need to know about the queries and their files. The answers come from the disk."""

    def planned(self, query: str) -> int:
        """The newest batch that Spark has planned; -1 if none."""
        ...

    def stands_at(self, query: str) -> int | None:
        """The newest committed batch of a query that has ended; None while it runs."""
        ...

    def is_committed(self, query: str, batch: int) -> bool:
        """Whether a batch has committed."""
        ...

    def times(self, query_id: str, batch: int) -> BatchTimes:
        """When a planned batch of the query with this Spark id is."""
        ...

    def hold(self, query: str, batch: int) -> AbstractContextManager[Mapping[str, Path]]:
        """Keep the files that restore the query's own progress right after a batch, by their names."""
        ...

    def close_epoch(self, query: str, checkpoint: int, cut: int) -> None:
        """Close off the query's output up to a cut. The calls come in the order of the cuts."""
        ...

    def pre_commit(self, query: str, checkpoint: int) -> tuple[OutputRecord, ...]:
        """Return what a checkpoint's manifest says of the query's transactional sinks."""
        ...

    def channels(self, manifest: Manifest) -> tuple[ChannelRecord, ...]:
        """Return what was between the queries at a checkpoint that is about to complete. It looks at nothing anew."""
        ...

    def commit(self, query: str, checkpoint: int) -> None:
        """Begin to publish what a completed checkpoint has; ``Published`` reports the end."""
        ...


class CheckpointExecutor:
    """Runs the checkpoints of one pipeline."""

    def __init__(
        self,
        machine: CheckpointStateMachine,
        *,
        catalog: Catalog,
        store: Store,
        progress: Progress,
        clock: Callable[[], float],
        host_timeout: float,
        on_state_lost: Callable[[str], None],
        on_failure: Callable[[ChandyError], None],
        on_processor_failure: Callable[[TaskFailure], None],
        on_restored: Callable[[ShardsRestored], None],
        on_not_opened: Callable[[str, str, FailureCode | None], None],
        trusts_look: float = 15.0,
        hold_lease: Callable[[], float] = lambda: 0.0,
        on_completed: Callable[[Manifest], None] = lambda manifest: None,
    ) -> None:
        """Start the threads.

        Args:
            machine: the state machine; from now on only this object touches it.
            catalog: where manifests are committed.
            store: the pipeline's own store.
            progress: the queries on the driver's disk.
            clock: seconds since 1970, never going back.
            host_timeout: seconds of silence after which a state host is taken for lost.
            on_state_lost: called when the pipeline must go back to a checkpoint, with the reason.
            on_failure: called when the pipeline must fail: too many failed checkpoints, or fenced.
            on_processor_failure: called when a user's processor raised.
            on_restored: called when a host has restored shards.
            on_not_opened: called when state that a query was restored with turns out to be unusable before a task needs
                it: with Spark's id of the query, why, and what it means.
            trusts_look: seconds for which a batch may begin without another look for a successor.
            hold_lease: renews the driver's lease if a standby may have taken over. It returns, by the same clock, since
                when there was no gap: earlier looks do not count.
            on_completed: called with each checkpoint that has completed, before anybody else is told. It must not wait
                for anything that may be away.
        """
        self._machine = machine
        self._generation = machine.generation
        self._log = EventLog()
        self._catalog = catalog
        self._store = store
        self._progress = progress
        self._clock = clock
        self._on_state_lost = on_state_lost
        self._on_failure = on_failure
        self._on_processor_failure = on_processor_failure
        self._on_restored = on_restored
        self._on_not_opened = on_not_opened
        self._on_completed = on_completed
        self._hold_lease = hold_lease
        self._trusts_look = max(trusts_look, 2 * _FENCE_SECONDS)
        self._looked_at = clock()
        """When it was last certain that there was no successor."""
        self._is_looking = False
        self._order_streams = OrderStreams()
        self._lock = threading.Lock()
        self._changed = threading.Condition(self._lock)
        """Notified after every event."""
        self._wakes: list[threading.Event] = []
        self._closing = threading.Event()
        self._closed = threading.Event()
        self._ended = threading.Event()
        self._futures: dict[Request, Future[Checkpoint]] = {}
        self._streams: dict[str, object] = {}
        self._look_for_successor_at = clock() + _FENCE_SECONDS
        self._hosts = host_watch.HostWatch(host_timeout)
        self._hellos: dict[str, HostHello] = {}
        self._dismissed: set[str] = set()
        # A threading.Event among the instructions is set once all manifests before it are written; None is the end.
        self._instructions: queue.SimpleQueue[do.Instruction | threading.Event | None] = queue.SimpleQueue()
        self._own = StoreWorkers(self._carefully)
        self._elsewhere: dict[str, StoreWorkers] = {}
        """By URI, for savepoints; changed by the dispatching thread alone."""
        # Reading a checkpoint again may take as long as restoring it.
        self._reader = Workers[Job](self._carefully, 1, "chandy-read-back")
        # Runs the callbacks of futures. A callback may take long, or wait for the thread that closes the executor. So
        # nothing waits for these threads, and there are many.
        self._answers = Workers[Job](self._carefully, 32, "chandy-answers")
        self._threads = [
            threading.Thread(target=carried(self._dispatch), name="chandy-dispatch", daemon=True),
            self._watcher("chandy-watch", self._look_at_the_time),
            self._watcher("chandy-commits", self._look_for_commits),
        ]
        for thread in self._threads:
            thread.start()

    # --- events ---------------------------------------------------------------------------------------------

    def handle(self, event: on.Event[on.Answer]) -> on.Answer:
        """Pass an event to the state machine; return its answer. The instructions are carried out later.

        Raises:
            ChandyError: the state machine refuses the event.
        """
        answer = self._handle(event)
        self._look_again()
        return answer

    def _look_again(self) -> None:
        """Wake those who watch: there may be an earlier deadline now, or a commit to watch for."""
        for wake in self._wakes:
            wake.set()

    def _handle(self, event: on.Event[on.Answer]) -> on.Answer:
        with self._lock:
            outcome = self._change(event)
            self._queue(outcome.instructions)
        return outcome.answer

    def _change(self, event: on.Event[on.Answer]) -> Outcome[on.Answer]:
        """Pass an event on, with the lock held; the caller queues the instructions before it lets the lock go."""
        now = self._clock()
        self._log.add(event, now)
        outcome = self._machine.handle(event, now)
        self._changed.notify_all()
        return outcome

    def _queue(self, instructions: Iterable[do.Instruction]) -> None:
        for instruction in instructions:
            self._instructions.put(instruction)

    def read(self, value: Callable[[CheckpointStateMachine], T]) -> T:
        """Return a value of the state machine. ``value`` must not change anything."""
        with self._lock:
            return value(self._machine)

    def wait_until(self, holds: Callable[[CheckpointStateMachine], bool], seconds: float) -> bool:
        """Wait until something holds of the state machine; return whether it does now."""
        with self._lock:
            return self._changed.wait_for(lambda: holds(self._machine), seconds)

    @property
    def events(self) -> tuple[LoggedEvent, ...]:
        """The last events, oldest first, to find out what led to a state; see ``event_log.replay``."""
        with self._lock:
            return tuple(self._log)

    def request(
        self, kind: CheckpointKind, *, target: str | None = None, of_stop: bool = False
    ) -> Future[Checkpoint]:
        """Request a checkpoint; the future has it, or the ``CheckpointError`` that ended it.

        Args:
            kind: which kind.
            target: URI to write it to; None: the pipeline's own store.
            of_stop: whether a stop waits for it.
        """
        future: Future[Checkpoint] = Future()
        # The caller cannot cancel it: others may wait for the checkpoint, too.
        future.set_running_or_notify_cancel()
        if self._closing.is_set():
            future.set_exception(CheckpointError(None, Reason.COORDINATOR_SHUTDOWN))
            return future
        with self._lock:
            outcome = self._change(on.CheckpointRequested(kind, target, of_stop))
            # Before the instructions: one of them may end the request at once.
            self._futures[outcome.answer] = future
            self._queue(outcome.instructions)
        self._look_again()
        if self._ended.is_set():
            self._answer_the_rest()
        return future

    def statistics(self) -> Statistics:
        """Counts, records and summaries of the checkpoints so far."""
        return self.read(lambda machine: machine.history.snapshot())

    # --- Control: what state hosts ask ----------------------------------------------------------------------

    def ask(self, ask: AskBatch) -> BatchAnswer:
        """Answer "begin batch". While a shard of the query is handed over to another host, there is no answer.

        Raises:
            FencedError: another coordinator has taken the pipeline over.
            StorageError: nobody knows: the last look is too long ago, and the store does not answer.
        """
        # A driver that was frozen, or cut off from its store, may have been taken for dead meanwhile.
        held_since = self._hold_lease()
        if self._looked_at < held_since or self._clock() - self._looked_at > self._trusts_look:
            self._look_for_successor()
        self._check_not_dismissed(ask.host)
        while (answer := self._handle(on.BatchAsked(ask))) is None:
            # The move may have set a deadline.
            self._look_again()
            self.wait_until(lambda machine: not machine.holds(ask.query_id), HAND_OVER_SECONDS)
        # Spark has logged the times of a batch before its tasks run, so every attempt at it gets the same ones.
        return attrs.evolve(answer, times=self._progress.times(ask.query_id, ask.batch))

    def claim(self, claim: ClaimShards) -> ClaimAnswer:
        """Make a host the owner of shards."""
        self._check_not_dismissed(claim.host)
        return self.handle(on.ShardsClaimed(claim))

    def ack(self, ack: Ack) -> None:
        """Record an acknowledgement."""
        self._check_not_dismissed(ack.host)
        results = self._handle(on.Acked(ack))
        log.debug("ack", checkpoint=ack.checkpoint, host=ack.host, results=[r.value for r in results])

    def decline(self, decline: Decline) -> None:
        """Record that a host cannot do its part of a checkpoint."""
        log.warning("a state host declined", checkpoint=decline.checkpoint, error=decline.error)
        self.handle(on.Declined(decline))

    def moved(self, report: MoveReport) -> None:
        """Record how far a move is."""
        self._check_not_dismissed(report.host)
        if report.step is MoveStep.FAILED:
            log.warning("a shard stays where it is", move=report.move, host=report.host, why=report.why)
        self.handle(on.MoveReported(report))

    def drop_standby(self, drop: DropStandby) -> None:
        """Consent that the owner of a shard goes on without its standby."""
        self._check_not_dismissed(drop.host)
        self.handle(on.StandbyDropped(drop))
        log.warning(
            "a shard goes on without its standby, which is behind; the next checkpoint makes another",
            uid=drop.shard.uid,
            shard=drop.shard.shard,
            host=drop.host,
        )

    def pulse(self, pulse: HostPulse) -> None:
        """Record that a host lives."""
        with self._lock:
            if pulse.host in self._hellos:
                self._hosts.heard(pulse.host, self._clock())

    def report(self, failure: TaskFailure) -> None:
        """Record that a processor raised."""
        self._on_processor_failure(failure)

    def restored(self, restored: ShardsRestored) -> None:
        """Record how shards were restored."""
        shards = tuple(ShardId(restored.uid, number) for number in restored.read)
        self._handle(on.ShardsRead(restored.query_id, shards))
        self._on_restored(restored)

    def not_opened(self, failed: ShardNotOpened) -> None:
        """Record that a host gives up a shard that it could not open."""
        log.warning(
            "a shard could not be opened", uid=failed.shard.uid, shard=failed.shard.shard, why=failed.why
        )
        self._handle(on.ShardGivenUp(failed.host, failed.query_id, failed.shard))
        self._on_not_opened(failed.query_id, failed.why, failed.code)

    def orders(self, hello: HostHello) -> Iterator[Order]:
        """Yield the orders to one host. The host counts as living as long as it reads them."""
        # A host may open a new stream before the end of its broken one is noticed.
        stream = object()
        if hello.host in self._dismissed or self.read(lambda machine: hello.host in machine.replaced):
            yield StopOrder()
            return
        # A stream is read by threads of the server, which know no names.
        told = log.bind(pipeline=self._machine.pipeline, host=hello.host, machine=hello.machine)
        # As soon as the state machine knows a host, it may have orders for it.
        with self._order_streams.connected(hello.host) as orders:
            with self._lock:
                self._streams[hello.host] = stream
                self._hellos[hello.host] = hello
                self._hosts.heard(hello.host, self._clock())
                self._queue(self._change(on.HostJoined(hello)).instructions)
            told.info("state host connected", pid=hello.pid)
            try:
                yield from orders
            finally:
                if not self._closed.is_set():
                    self._stream_ended(hello, stream, told)

    def _stream_ended(self, hello: HostHello, stream: object, told: BoundLogger) -> None:
        with self._lock:
            if self._streams.get(hello.host) is not stream:
                return
            self._forget_host(hello)
        told.warning("state host disconnected")

    def _forget_host(self, hello: HostHello) -> None:
        """Take a host for gone, with the lock held."""
        self._streams.pop(hello.host, None)
        self._hellos.pop(hello.host, None)
        self._hosts.forget(hello.host)
        self._queue(self._change(on.HostLeft(hello)).instructions)

    # --- hosts that have gone silent ------------------------------------------------------------------------

    def _look_at_hosts(self) -> None:
        with self._lock:
            verdicts = [(verdict, self._hellos[verdict.host]) for verdict in self._hosts.look(self._clock())]
        for verdict, hello in verdicts:
            about = {"host": hello.host, "machine": hello.machine, "pid": hello.pid}
            match verdict:
                case host_watch.Suspected(_, silent):
                    log.warning(
                        "a state host is silent; look whether its process is stopped, its disk stalled or its "
                        "machine overloaded",
                        **about,
                        seconds=round(silent, 1),
                        lost_after=self._hosts.timeout,
                    )
                case host_watch.Cleared():
                    log.warning("the state host answers again", **about)
                case host_watch.TakenForLost(_, silent):
                    self._dismiss(hello, silent)

    def _dismiss(self, hello: HostHello, silent: float) -> None:
        """Go on without a host that may come back: it is killed if it can be, and nothing that it says counts."""
        with self._lock:
            self._dismissed.add(hello.host)
            self._forget_host(hello)
        self._order_streams.send(hello.host, StopOrder())
        killed = end_host(hello)
        log.error(
            "a state host has been silent for too long and is taken for lost"
            + ("" if killed else "; kill its process, for the driver cannot"),
            host=hello.host,
            machine=hello.machine,
            pid=hello.pid,
            seconds=round(silent, 1),
        )

    def _check_not_dismissed(self, host: str) -> None:
        if host in self._dismissed:
            raise HostDismissedError(host)

    # --- threads --------------------------------------------------------------------------------------------

    def _watcher(self, name: str, look: Callable[[], float | None]) -> threading.Thread:
        wake = threading.Event()
        self._wakes.append(wake)
        return threading.Thread(target=carried(self._watch), args=(look, wake), name=name, daemon=True)

    def _watch(self, look: Callable[[], float | None], wake: threading.Event) -> None:
        """Look again and again, after the seconds that a look returns or when something has happened."""
        while not self._closed.is_set():
            try:
                pause = look()
            except Exception:
                # Nothing would ever expire if the thread ended.
                log.exception("watching failed")
                pause = host_watch.LOOK_SECONDS
            wake.wait(pause)
            wake.clear()

    def _look_at_the_time(self) -> float:
        """Look for deadlines, for silent hosts, and now and then for a successor."""
        if self._clock() >= self._look_for_successor_at:
            self._look_for_successor_at = self._clock() + _FENCE_SECONDS
            # One at a time: a store that is away keeps it waiting.
            if not self._is_looking and self.read(lambda machine: machine.closed) is None:
                self._is_looking = True
                self._own.io.submit(self._watch_for_successor)
        self._look_at_hosts()
        deadline = self.read(lambda machine: machine.next_deadline())
        if deadline is not None and self._clock() >= deadline:
            self.handle(on.Tick())
        until = min(self._look_for_successor_at, self._clock() + host_watch.LOOK_SECONDS)
        until = until if deadline is None else min(until, deadline)
        return max(0.0, until - self._clock())

    def _look_for_commits(self) -> float | None:
        """Look for commits of cuts, on the driver's disk, which may not answer."""
        waiting = self.read(lambda machine: machine.waiting_for_commits())
        for query, cut in waiting.items():
            if self._is_committed(query, cut):
                self.handle(on.BatchCommitted(query, cut))
        return _COMMIT_POLL_SECONDS if waiting else None

    def check_not_fenced(self) -> None:
        """Check that no other coordinator has taken the pipeline over.

        Raises:
            FencedError: one has.
            StorageError: the store does not tell.
        """
        now = self._clock()
        self._catalog.check_not_fenced(self._generation)
        self._looked_at = now

    def _look_for_successor(self) -> None:
        """Fail the pipeline if another coordinator has taken it over: both would write into the same sinks."""
        now = self._clock()
        try:
            if now - self._looked_at > self._trusts_look:
                self.check_not_fenced()
            else:
                # With one request instead of two: it is made every few seconds.
                self._catalog.check_next_not_claimed(self._generation)
                self._looked_at = now
        except FencedError as error:
            self._on_failure(error)
            raise

    def _watch_for_successor(self) -> None:
        try:
            self._look_for_successor()
        except FencedError:
            pass
        except (OSError, ChandyError) as error:
            log.warning("cannot look for a successor", error=str(error))
        finally:
            self._is_looking = False

    def _is_committed(self, query: str, batch: int) -> bool:
        try:
            return self._progress.is_committed(query, batch)
        except (OSError, ChandyError) as error:
            log.warning("cannot look for a commit", query=query, batch=batch, error=str(error))
            return False
        except KeyError:
            # The query could not be started after all; its checkpoints are being aborted.
            return False

    def _dispatch(self) -> None:
        """Hand instructions on, in their order."""
        while (instruction := self._instructions.get()) is not None:
            try:
                self._hand_on(instruction)
            except Exception:
                log.exception("an instruction failed", instruction=type(instruction).__name__)

    def _hand_on(self, instruction: do.Instruction | threading.Event) -> None:
        match instruction:
            case do.Send(host, order):
                self._order_streams.send(host, order)
            case do.Finalize():
                self._workers(instruction.root).manifests.submit(instruction)
            case do.StoreProgress():
                # Here, because the jobs of two checkpoints may overtake each other.
                self._progress.close_epoch(instruction.query, instruction.checkpoint, instruction.cut)
                self._workers(instruction.root).io.submit(instruction)
            case do.ChooseCut() | do.CopyShards():
                self._workers(instruction.root).io.submit(instruction)
            case do.Publish(checkpoint, queries):
                for query in queries:
                    self._progress.commit(query, checkpoint)
            case do.ReadBack():
                self._reader.submit(instruction)
            case do.DiscardAborted():
                self._workers(instruction.root).cleaner.submit(instruction)
            case do.Discard():
                self._own.cleaner.submit(instruction)
            case do.Resolve() | do.Reject():
                self._answers.submit(instruction)
            case do.GoBack(why):
                log.warning("state is lost", why=why)
                self._on_state_lost(why)
            case do.Promoted(why, shards):
                log.warning("standbys take the place of lost shards", why=why, shards=len(shards))
            case do.FailPipeline(error):
                log.debug("the pipeline fails", events=self.events)
                self._on_failure(error)
            case do.ReportStatisticsFailure(bug):
                log.error("a checkpoint could not be counted", error=repr(bug))
            case threading.Event():
                self._own.manifests.submit(instruction.set)

    def _workers(self, root: str) -> StoreWorkers:
        """The threads for a store."""
        if root == self._store.uri:
            return self._own
        found = self._elsewhere.get(root)
        if found is None:
            self._elsewhere = {uri: one for uri, one in self._elsewhere.items() if not one.is_idle}
            found = self._elsewhere[root] = StoreWorkers(self._carefully)
        return found

    def _carefully(self, job: Job) -> None:
        """Do what an instruction says. An unexpected error fails its checkpoint."""
        try:
            self._do(job)
        except Exception as error:
            log.exception("an instruction failed", instruction=type(job).__name__)
            log.debug("an instruction failed", events=self.events)
            checkpoint = getattr(job, "checkpoint", None)
            if checkpoint is not None:
                self._failed(checkpoint, Reason.TRIGGER_CHECKPOINT_FAILURE, error)

    def _do(self, job: Job) -> None:
        match job:
            case do.ChooseCut():
                self._choose_cut(job)
            case do.StoreProgress():
                self._store_progress(job)
            case do.CopyShards():
                self._copy_shards(job)
            case do.ReadBack():
                self._read_back(job)
            case do.Finalize():
                self._finalize(job)
            case do.Discard():
                self._discard(job)
            case do.DiscardAborted():
                self._discard_aborted(job)
            case do.Resolve():
                self._resolve(job)
            case do.Reject():
                self._reject(job)
            case _ if callable(job):
                job()

    def _failed(self, checkpoint: int, reason: Reason, error: Exception) -> None:
        detail = str(error) or type(error).__name__
        self.handle(on.CheckpointFailed(checkpoint, reason, detail))

    # --- instructions ---------------------------------------------------------------------------------------

    def _choose_cut(self, choose: do.ChooseCut) -> None:
        kind = CheckpointKind.SAVEPOINT.value if choose.is_savepoint else "checkpoint"
        try:
            # A successor's ids are its own.
            self.check_not_fenced()
            # Before anything else: no later life uses the id again, whatever becomes of this one.
            note = f"{kind} of {self._owner(choose.checkpoint)}"
            self._store.create(trigger_key(choose.checkpoint), note.encode())
            if choose.is_savepoint:
                self._store.create(savepoint_key(choose.checkpoint), choose.root.encode())
                claim_savepoint(open_store(choose.root), self._owner(choose.checkpoint))
        except FencedError as error:
            self._failed(choose.checkpoint, Reason.FENCED, error)
            self._on_failure(error)
            return
        except (OSError, ChandyError) as error:
            self._failed(choose.checkpoint, Reason.IO_EXCEPTION, error)
            return
        if self.read(lambda machine: choose.checkpoint not in machine.pending):
            # It was aborted meanwhile, and cleaned up perhaps before its place was claimed.
            self._discard_aborted(do.DiscardAborted(choose.checkpoint, choose.root, choose.is_savepoint))
            return
        for query in choose.queries:
            planned, stands_at = self._progress.planned(query), self._progress.stands_at(query)
            self.handle(on.CutChosen(choose.checkpoint, query, planned, stands_at))
        self.handle(on.PlanningDone(choose.checkpoint))
        for query in choose.queries:
            # A query that was stopped since its cut was chosen never commits what it had planned.
            if (batch := self._progress.stands_at(query)) is not None:
                self.handle(on.QueryStopped(query, batch))

    def _owner(self, checkpoint: int) -> str:
        return f"{self._store.uri}, generation {self._generation}, checkpoint {checkpoint}"

    def _store_of(self, checkpoint: int, root: str) -> Store:
        """The store of a checkpoint. Nothing is retried on it after the checkpoint's deadline."""
        pending = self.read(lambda machine: machine.pending.get(checkpoint))
        left = pending.deadline - self._clock() if pending else 0.0
        return open_store(root).within(max(0.0, left))

    def _store_progress(self, order: do.StoreProgress) -> None:
        try:
            store = self._store_of(order.checkpoint, order.root)
            outputs, staged_bytes = self._pre_commit(order, store)
            writer = SnapshotWriter(store, pack_key(order.checkpoint, f"driver-{order.query}"))
            with self._progress.hold(order.query, order.cut) as files:
                writer.add(order.query, files, order.base)
                stored = writer.finish()[order.query]
        except (OSError, ChandyError) as error:
            self._failed(order.checkpoint, Reason.IO_EXCEPTION, error)
            return
        record = QueryRecord(order.query, order.cut, stored.handle, outputs)
        self.handle(on.ProgressStored(order.checkpoint, record, stored.new_bytes + staged_bytes))

    def _pre_commit(self, order: do.StoreProgress, store: Store) -> tuple[tuple[OutputRecord, ...], int]:
        """Ask a query's sinks what the manifest must say, and keep what it names; return how many bytes that wrote."""
        asked = 0
        while True:
            outputs = self._progress.pre_commit(order.query, order.checkpoint)
            asked += 1
            try:
                return outputs, self._keep_staged(outputs, store)
            except ObjectMissingError:
                # It was published meanwhile, and retention has deleted it.
                if asked == _PRE_COMMITS:
                    raise

    def _keep_staged(self, outputs: Iterable[OutputRecord], store: Store) -> int:
        """See to it that a checkpoint's store has what is to be published; return how many bytes that wrote."""
        if store.uri == self._store.uri:
            return 0
        # Several sinks publish the same files.
        files = {file.key: file for one in outputs for epoch in one.epochs for file in epoch.staged.files}
        for file in files.values():
            check(self._store, file)
            store.write(file.key, self._store.read(file.key))
        return sum(file.size for file in files.values())

    def _copy_shards(self, order: do.CopyShards) -> None:
        try:
            with tempfile.TemporaryDirectory(prefix="chandy-copy-") as folder:
                pack = pack_key(order.checkpoint, f"driver-{order.query}-shards")
                writer = SnapshotWriter(self._store_of(order.checkpoint, order.root), pack)
                for number, (_, source) in enumerate(order.sources):
                    scratch = Path(folder) / str(number)
                    copy_snapshot(open_store(source.root), source.handle, writer, str(number), scratch)
                stored = writer.finish()
        except (OSError, ChandyError) as error:
            self._failed(order.checkpoint, Reason.IO_EXCEPTION, error)
            return
        handles = {shard: stored[str(number)].handle for number, (shard, _) in enumerate(order.sources)}
        new_bytes = sum(snapshot.new_bytes for snapshot in stored.values())
        self.handle(on.ShardsCopied(order.checkpoint, order.query, handles, new_bytes))

    def _read_back(self, order: do.ReadBack) -> None:
        files = [(source.root, file) for source in order.sources for file in source.handle.files]
        log.info("reading what nobody has read of the restored checkpoint", files=len(files))
        whole = False
        try:
            for root, file in files:
                if self._closed.is_set():
                    return
                check(open_store(root), file)
            whole = True
        except (OSError, ChandyError) as error:
            log.warning("cannot verify the restored checkpoint", error=str(error))
            if isinstance(error, ChandyError) and self._is_needed(error):
                self._on_not_opened(order.query_id, str(error), error.code)
        finally:
            self.handle(on.SourcesReadBack(order.query_id, whole))

    def _is_needed(self, error: ChandyError) -> bool:
        """Return whether an error matters: retention may have deleted what checkpoints have ceased to need."""
        if not isinstance(error, ObjectMissingError):
            return True
        key = error.key
        return self.read(lambda machine: machine.retained.needs(key))

    def _finalize(self, order: do.Finalize) -> None:
        manifest = self.read(lambda machine: machine.manifest(order.checkpoint, self._clock()))
        if manifest is None:
            return
        manifest = self._with_channels(manifest)
        not_finalized = partial(on.NotFinalized, manifest, Reason.FINALIZE_CHECKPOINT_FAILURE)
        try:
            if doomed := self.read(lambda machine: machine.doomed(manifest)):
                raise ObjectMissingError(order.root, min(doomed))
            for _ in commit_steps(manifest, order.root, self._catalog, open_store, self._be_patient):
                pass
        except FencedError as error:
            self.handle(on.NotFinalized(manifest, Reason.FENCED, str(error)))
            self._on_failure(error)
        except (OSError, ChandyError) as error:
            self.handle(not_finalized(str(error), is_known=not isinstance(error, OutcomeUnknownError)))
        except Exception as error:
            log.exception("a manifest could not be written", checkpoint=order.checkpoint)
            self.handle(not_finalized(repr(error), is_known=False))
        else:
            self._tell_of(manifest)
            self.handle(on.Finalized(manifest))
            seconds = manifest.completed_at - manifest.triggered_at
            log.info("checkpoint completed", id=manifest.id, kind=manifest.kind.value, seconds=seconds)

    def _tell_of(self, manifest: Manifest) -> None:
        try:
            self._on_completed(manifest)
        except Exception:
            # The checkpoint is complete, whatever becomes of the news.
            log.exception("what was to be done after a checkpoint has failed", checkpoint=manifest.id)

    def _with_channels(self, manifest: Manifest) -> Manifest:
        try:
            return attrs.evolve(manifest, channels=self._progress.channels(manifest))
        except Exception as error:  # noqa: BLE001 (a restore does not need them)
            log.warning("cannot tell what is between the queries", error=str(error) or repr(error))
            return manifest

    def _be_patient(self, error: StoreFailedError) -> bool:
        """Wait until a store may be asked again; return whether to ask it: not once the coordinator has closed."""
        log.warning("cannot tell whether a manifest was written, asking again", error=str(error))
        return not self._closed.wait(_ASK_AGAIN_SECONDS)

    def _discard(self, order: do.Discard) -> None:
        try:
            # A successor decides itself which checkpoints it keeps.
            self.check_not_fenced()
            discard(self._store, order.dropped, order.kept)
        except (OSError, ChandyError) as error:
            log.warning("cannot delete old checkpoints; `chandy gc` can", error=str(error))
        finally:
            # No checkpoint begins while too many deletions are counted as under way.
            self.handle(on.Discarded(tuple(manifest.id for manifest in order.dropped)))

    def _discard_aborted(self, order: do.DiscardAborted) -> None:
        try:
            if order.is_savepoint:
                discard_savepoint(open_store(order.root), self._owner(order.checkpoint))
            else:
                discard_aborted(self._store, order.checkpoint, self._generation)
        except (OSError, ChandyError) as error:
            log.warning("cannot delete what an aborted checkpoint left", error=str(error))

    def _resolve(self, order: do.Resolve) -> None:
        if (future := self._futures.pop(order.request, None)) is not None:
            future.set_result(Checkpoint.of(order.manifest, order.root))

    def _reject(self, order: do.Reject) -> None:
        reason = order.error.reason
        # What somebody must know: not that a policy refused a request, or that a newer checkpoint came first.
        write = log.warning if reason.counted or reason is Reason.FENCED else log.info
        write("no checkpoint", id=order.error.id, reason=reason.value, detail=order.error.detail)
        if (future := self._futures.pop(order.request, None)) is not None:
            future.set_exception(order.error)

    # --- end ------------------------------------------------------------------------------------------------

    def settle(self) -> bool:
        """Wait until every manifest that is being written is written or has failed; return whether that is so.

        While the store does not answer, it is not known which checkpoint is the latest.
        """
        settled = threading.Event()
        self._instructions.put(settled)
        return settled.wait(_STOP_SECONDS)

    def abandon(self) -> None:
        """Tell the hosts to stop and leave all else as it is, because the interpreter is about to end."""
        self._closed.set()
        self._order_streams.stop_all()

    def close(self, reason: Reason = Reason.COORDINATOR_SHUTDOWN) -> None:
        """Abort pending checkpoints, tell the hosts to stop, and end the threads.

        It waits for what is being written and deleted, but not for ever: what hangs is named in the log and left
        behind. Every future has an outcome when this returns.
        """
        if self._closed.is_set():
            return
        with self._lock:
            asked = list(self._futures.values())
        self.handle(on.Closed(reason))
        # However many requests come now, none of them is queued ahead of what is waited for.
        self._closing.set()
        self._settle_all()
        self._closed.set()
        self._look_again()
        self._order_streams.stop_all()
        self._instructions.put(None)
        deadline = time.monotonic() + _STOP_SECONDS
        for thread in self._threads:
            thread.join(max(0.0, deadline - time.monotonic()))
        left = [job for workers in self._all_workers() for job in workers.wait(deadline)]
        if left:
            names = sorted({_name(job) for job in left})
            log.error("closed although something hangs; it is left behind", seconds=_STOP_SECONDS, what=names)
        self._ended.set()
        self._answer_the_rest()
        wait(asked, _STOP_SECONDS)
        self._refuse_the_rest(reason)

    def _settle_all(self) -> None:
        """Wait for the manifests of savepoints, too."""
        deadline = time.monotonic() + _STOP_SECONDS
        self.settle()
        for workers in self._all_workers():
            workers.manifests.wait(deadline)

    def _all_workers(self) -> list[StoreWorkers]:
        return [self._own, *self._elsewhere.values()]

    def _answer_the_rest(self) -> None:
        """Give the answers that came after the dispatching thread had ended."""
        with contextlib.suppress(queue.Empty):
            while True:
                match self._instructions.get_nowait():
                    case do.Resolve() as answer:
                        self._resolve(answer)
                    case do.Reject() as answer:
                        self._reject(answer)

    def _refuse_the_rest(self, reason: Reason) -> None:
        """Fail the requests that have no answer: nobody waits for their manifests any more."""
        detail = "its outcome was not known in time; `chandy list` tells whether it is complete"
        for request in list(self._futures):
            self._reject(do.Reject(request, CheckpointError(None, reason, detail)))


def _name(job: Job) -> str:
    checkpoint = getattr(job, "checkpoint", None)
    name = getattr(job, "__name__", type(job).__name__)
    return name if checkpoint is None else f"{name} of checkpoint {checkpoint}"
