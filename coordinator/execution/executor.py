"""Carries the checkpoint protocol out: its lock, its threads, and the I/O that its instructions ask for.

Every event takes the lock, changes the protocol's values and leaves its instructions in one queue; nothing
else happens under the lock. One thread hands the instructions on in their order, so that a state host never
hears of an abort before the order that it aborts; whatever reads or writes goes to a pool. Manifests are
written by one thread, one after the other.
"""

from __future__ import annotations

import contextlib
import queue
import tempfile
import threading
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Protocol as Interface
from typing import TypeVar

import attrs

from ...state.rpc.messages import (
    Ack,
    AskBatch,
    BatchAnswer,
    BatchTimes,
    ClaimAnswer,
    ClaimShards,
    Decline,
    HostHello,
    Order,
    ShardsRestored,
    TaskFailure,
)
from ...storage.catalog import Catalog
from ...storage.collect import discard, discard_aborted
from ...storage.errors import (
    ChandyError,
    DamagedCheckpointError,
    FencedError,
    ObjectMissingError,
    OutcomeUnknownError,
    StoreFailedError,
)
from ...storage.layout import pack_key, savepoint_key, trigger_key
from ...storage.logs import logger
from ...storage.manifest import CheckpointKind, Manifest, QueryRecord
from ...storage.open import open_store
from ...storage.savepoint import claim_savepoint, commit_savepoint, discard_savepoint
from ...storage.snapshots import SnapshotWriter, copy_snapshot
from ...storage.store import Store
from ..checkpoint import Checkpoint
from ..errors import CheckpointError
from ..protocol import instructions as do
from ..protocol.reasons import Reason
from ..protocol.requests import Request
from ..protocol.state_machine import CheckpointStateMachine
from ..protocol.statistics import Statistics
from ..recovery.restore_point import RestorePoint, damage
from .order_streams import OrderStreams

log = logger(__name__)

T = TypeVar("T")

_COMMIT_POLL_SECONDS = 0.02
"""How soon the commit of a cut is noticed in a query that is idle; looked at only while one is awaited."""
_FENCE_SECONDS = 5.0
"""How soon it is noticed at the latest that another coordinator has taken over; a checkpoint notices at once."""
_ASK_AGAIN_SECONDS = 2.0
"""How soon a store is asked again what has become of a manifest."""
_STOP_SECONDS = 30.0
"""How long closing waits for a manifest that is being written."""


class Progress(Interface):
    """What the checkpoints need to know of the queries and of their files; answers come from the disk."""

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


class CheckpointExecutor:
    """The checkpoints of one pipeline at work."""

    def __init__(
        self,
        protocol: CheckpointStateMachine,
        *,
        catalog: Catalog,
        store: Store,
        progress: Progress,
        clock: Callable[[], float],
        on_state_lost: Callable[[str], None],
        on_failure: Callable[[ChandyError], None],
        on_processor_failure: Callable[[TaskFailure], None],
        on_restored: Callable[[ShardsRestored], None],
    ) -> None:
        """Bring the protocol to life.

        Args:
            protocol: the state machine; from now on only this object touches it.
            catalog: where manifests are committed.
            store: the pipeline's own store.
            progress: the queries on the driver's disk.
            clock: seconds since 1970, never going back.
            on_state_lost: called when the pipeline must go back to a checkpoint, with the reason.
            on_failure: called when the pipeline must fail: too many failed checkpoints, or fenced.
            on_processor_failure: called when a user's processor raised.
            on_restored: called when a host has restored shards.
        """
        self._protocol = protocol
        self._catalog = catalog
        self._store = store
        self._progress = progress
        self._clock = clock
        self._on_state_lost = on_state_lost
        self._on_failure = on_failure
        self._on_processor_failure = on_processor_failure
        self._on_restored = on_restored
        self._order_streams = OrderStreams()
        self._lock = threading.Lock()
        self._wake = threading.Event()
        self._closed = threading.Event()
        self._ended = threading.Event()
        self._futures: dict[Request, Future[Checkpoint]] = {}
        self._streams: dict[str, object] = {}
        # An Event among the instructions is set once all manifests before it are written; None is the end.
        self._instructions: queue.SimpleQueue[do.Instruction | threading.Event | None] = queue.SimpleQueue()
        self._pool = ThreadPoolExecutor(4, thread_name_prefix="chandy-io")
        self._finalizer = ThreadPoolExecutor(1, thread_name_prefix="chandy-manifests")
        # Deleting thousands of objects takes its time, and no checkpoint waits for it.
        self._cleaner = ThreadPoolExecutor(1, thread_name_prefix="chandy-cleaner")
        # Calls back whoever asked for a checkpoint. That may take long, or be a wait for whoever closes this: so nobody
        # waits for these threads, and there are many.
        self._answers = ThreadPoolExecutor(32, thread_name_prefix="chandy-answers")
        # Checkpoints of which nobody could tell whether their manifest was written.
        self._unknown: set[int] = set()
        self._threads = [
            threading.Thread(target=self._dispatch, name="chandy-dispatch", daemon=True),
            threading.Thread(target=self._watch, name="chandy-watch", daemon=True),
        ]
        for thread in self._threads:
            thread.start()

    # --- events ---------------------------------------------------------------------------------------------

    def event(self, happens: Callable[[CheckpointStateMachine, float], list[do.Instruction]]) -> None:
        """Let something happen to the protocol."""
        with self._lock:
            self._queue(happens(self._protocol, self._clock()))
        self._wake.set()

    def _queue(self, instructions: list[do.Instruction]) -> None:
        for instruction in instructions:
            self._instructions.put(instruction)

    def look(self, at: Callable[[CheckpointStateMachine], T]) -> T:
        """Read or change the protocol's values where no instruction can follow."""
        with self._lock:
            return at(self._protocol)

    def request(
        self, kind: CheckpointKind, *, target: str | None = None, forced: bool = False
    ) -> Future[Checkpoint]:
        """Ask for a checkpoint; the future has it, or the ``CheckpointError`` that ended it."""
        request = Request(kind, forced=forced, created_at=self._clock(), target=target)
        future: Future[Checkpoint] = Future()
        # Whoever waits may not cancel: the checkpoint is everybody's.
        future.set_running_or_notify_cancel()
        if self._closed.is_set():
            future.set_exception(CheckpointError(None, Reason.COORDINATOR_SHUTDOWN))
            return future
        with self._lock:
            self._futures[request] = future
            self._queue(self._protocol.request(request, self._clock()))
        self._wake.set()
        if self._ended.is_set():
            self._refuse_the_rest()
        return future

    def start_schedule(self, chance: Callable[[], float]) -> None:
        """Begin with periodic checkpoints, if that has not been done and there are to be any."""
        self.look(lambda protocol: protocol.start_schedule(self._clock(), chance))
        self._wake.set()

    def statistics(self) -> Statistics:
        """The checkpoints so far, counted and summarised."""
        return self.look(lambda protocol: protocol.history.snapshot())

    def damage(self, point: RestorePoint) -> DamagedCheckpointError | None:
        """Read a checkpoint that could not be restored; return the error that says so if it is damaged."""
        return damage(self._catalog, point)

    # --- Control: what state hosts ask ----------------------------------------------------------------------

    def ask(self, ask: AskBatch) -> BatchAnswer:
        """Answer "begin batch"."""
        with self._lock:
            answer, instructions = self._protocol.ask(ask, self._clock())
            self._queue(instructions)
        if instructions:
            self._wake.set()
        # Spark has logged the times of a batch before its tasks run; so every attempt at it gets the same ones.
        return attrs.evolve(answer, times=self._progress.times(ask.query_id, ask.batch))

    def claim(self, claim: ClaimShards) -> ClaimAnswer:
        """Make a host the owner of shards."""
        answer = self.look(lambda protocol: protocol.claim(claim))
        if answer.resume_point is not None:
            # Checkpoints may have waited for these shards.
            self.event(lambda protocol, now: protocol.tick(now))
        return answer

    def ack(self, ack: Ack) -> None:
        """Take an acknowledgement."""
        with self._lock:
            results, instructions = self._protocol.ack(ack, self._clock())
            self._queue(instructions)
        log.debug("ack", checkpoint=ack.checkpoint, host=ack.host, results=[r.value for r in results])

    def decline(self, decline: Decline) -> None:
        """Take a refusal."""
        log.warning("a state host declined", checkpoint=decline.checkpoint, error=decline.error)
        self.event(lambda protocol, now: protocol.decline(decline, now))

    def report(self, failure: TaskFailure) -> None:
        """Take word of a processor that raised."""
        self._on_processor_failure(failure)

    def restored(self, restored: ShardsRestored) -> None:
        """Take word of how shards were restored."""
        self._on_restored(restored)

    def orders(self, hello: HostHello) -> Iterator[Order]:
        """The stream of orders to one host; the host counts as living as long as it reads it."""
        # A host may have opened a new stream before the end of its broken one is noticed.
        stream = object()

        def joins(protocol: CheckpointStateMachine) -> bool:
            self._streams[hello.host] = stream
            return protocol.host_joined(hello)

        def leaves(protocol: CheckpointStateMachine) -> bool:
            if self._streams.get(hello.host) is not stream:
                return False
            del self._streams[hello.host]
            return protocol.host_left(hello.host)

        if self.look(joins):
            self._on_state_lost(f"a new state host took the place of one on {hello.machine}")
        log.info("state host connected", host=hello.host, machine=hello.machine, pid=hello.pid)
        try:
            yield from self._order_streams.orders(hello.host)
        finally:
            if not self._closed.is_set() and self.look(leaves):
                log.warning("state host lost", host=hello.host, machine=hello.machine)
                self._on_state_lost(f"state host {hello.host} on {hello.machine} is gone")

    # --- threads --------------------------------------------------------------------------------------------

    def _watch(self) -> None:
        """Notice commits of cuts, time, and a successor."""
        look_at = self._clock() + _FENCE_SECONDS
        while not self._closed.is_set():
            if self._clock() >= look_at:
                look_at = self._clock() + _FENCE_SECONDS
                if self.look(lambda protocol: protocol.closed) is None:
                    self._pool.submit(self._look_for_successor)
            waiting, deadline = self.look(lambda p: (p.waiting_for_commits(), p.next_deadline()))
            for name, cut in waiting.items():
                if self._is_committed(name, cut):
                    self._committed(name, cut)
            if deadline is not None and self._clock() >= deadline:
                self.event(lambda protocol, now: protocol.tick(now))
            until = look_at if deadline is None else min(look_at, deadline)
            pause = max(0.0, until - self._clock())
            self._wake.wait(min(pause, _COMMIT_POLL_SECONDS) if waiting else pause)
            self._wake.clear()

    def check_not_fenced(self) -> None:
        """Check that no other coordinator has taken the pipeline over.

        Raises:
            FencedError: one has.
            StorageError: the store does not tell.
        """
        self._catalog.check_not_fenced(self.look(lambda protocol: protocol.generation))

    def _look_for_successor(self) -> None:
        """Fail the pipeline if another coordinator has taken it over: both would write into the same sinks."""
        try:
            self.check_not_fenced()
        except FencedError as error:
            self._on_failure(error)
        except (OSError, ChandyError) as error:
            log.warning("cannot look for a successor", error=str(error))

    def _committed(self, query: str, batch: int) -> None:
        self.event(lambda protocol, now: protocol.committed(query, batch, now))

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
            match instruction:
                case do.Send(host, order):
                    self._order_streams.send(host, order)
                case do.Finalize():
                    self._finalizer.submit(self._carefully, self._finalize, instruction)
                case do.ChooseCut():
                    self._pool.submit(self._carefully, self._choose_cut, instruction)
                case do.StoreProgress():
                    self._pool.submit(self._carefully, self._store_progress, instruction)
                case do.CopyShards():
                    self._pool.submit(self._carefully, self._copy_shards, instruction)
                case do.Discard():
                    self._cleaner.submit(self._carefully, self._discard, instruction)
                case do.DiscardAborted():
                    self._cleaner.submit(self._carefully, self._discard_aborted, instruction)
                case do.Resolve():
                    self._answers.submit(self._carefully, self._resolve, instruction)
                case do.Reject():
                    self._answers.submit(self._carefully, self._reject, instruction)
                case do.FailPipeline(error):
                    self._on_failure(error)
                case threading.Event():
                    self._finalizer.submit(instruction.set)

    def _carefully(self, carry_out: Callable[[T], None], instruction: T) -> None:
        """Carry out an instruction in a pool; what it did not expect fails its checkpoint, never the pool."""
        try:
            carry_out(instruction)
        except Exception as error:
            log.exception("an instruction failed", instruction=type(instruction).__name__)
            checkpoint = getattr(instruction, "checkpoint", None)
            if checkpoint is not None:
                self._failed(checkpoint, Reason.TRIGGER_CHECKPOINT_FAILURE, error)

    def _failed(self, checkpoint: int, reason: Reason, error: Exception) -> None:
        detail = str(error) or type(error).__name__
        self.event(lambda protocol, now: protocol.failed(checkpoint, reason, detail, now))

    # --- instructions ---------------------------------------------------------------------------------------

    def _choose_cut(self, choose: do.ChooseCut) -> None:
        kind = CheckpointKind.SAVEPOINT.value if choose.is_savepoint else "checkpoint"
        try:
            # A successor's ids are its own.
            self._catalog.check_not_fenced(self.look(lambda protocol: protocol.generation))
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
        for query in choose.queries:
            self._cut(choose.checkpoint, query)
        self.event(lambda protocol, now: protocol.planning_done(choose.checkpoint, now))
        for query in choose.queries:
            # One that was stopped between the two looks at it will never commit what was planned.
            if (batch := self._progress.stands_at(query)) is not None:
                self._stands(query, batch)

    def _stands(self, query: str, batch: int) -> None:
        self.event(lambda protocol, now: protocol.stands(query, batch, now))

    def _cut(self, checkpoint: int, query: str) -> None:
        planned, stands_at = self._progress.planned(query), self._progress.stands_at(query)
        self.look(lambda p: p.cut(checkpoint, query, planned=planned, stands_at=stands_at))

    def _owner(self, checkpoint: int) -> str:
        generation = self.look(lambda protocol: protocol.generation)
        return f"{self._store.uri}, generation {generation}, checkpoint {checkpoint}"

    def _store_of(self, checkpoint: int, root: str) -> Store:
        """The store of a checkpoint, on which nothing is tried again once its time is over."""
        pending = self.look(lambda protocol: protocol.pending.get(checkpoint))
        left = pending.deadline - self._clock() if pending else 0.0
        return open_store(root).within(max(0.0, left))

    def _store_progress(self, order: do.StoreProgress) -> None:
        try:
            store = self._store_of(order.checkpoint, order.root)
            writer = SnapshotWriter(store, pack_key(order.checkpoint, f"driver-{order.query}"))
            with self._progress.hold(order.query, order.cut) as files:
                writer.add(order.query, files, order.base)
                stored = writer.finish()[order.query]
        except (OSError, ChandyError) as error:
            self._failed(order.checkpoint, Reason.IO_EXCEPTION, error)
            return
        record = QueryRecord(order.query, order.cut, stored.handle)
        self.event(lambda p, now: p.progress_stored(order.checkpoint, record, stored.new_bytes))

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
        self.event(lambda p, now: p.shards_copied(order.checkpoint, order.query, handles, new_bytes))

    def _finalize(self, order: do.Finalize) -> None:
        manifest = self.look(lambda protocol: protocol.finalize(order.checkpoint, self._clock()))
        if manifest is None:
            return
        root = self.look(lambda protocol: protocol.pending[order.checkpoint].root)
        if doomed := self.look(lambda protocol: protocol.doomed(manifest)):
            error = ObjectMissingError(root, min(doomed))
            self._failed(order.checkpoint, Reason.FINALIZE_CHECKPOINT_FAILURE, error)
            return
        try:
            self._commit(manifest, root)
        except FencedError as error:
            self._failed(order.checkpoint, Reason.FENCED, error)
            self._on_failure(error)
        except (OSError, ChandyError) as error:
            if isinstance(error, OutcomeUnknownError):
                self._unknown.add(order.checkpoint)
            self._failed(order.checkpoint, Reason.FINALIZE_CHECKPOINT_FAILURE, error)
        else:
            self.event(lambda protocol, now: protocol.finalized(manifest, now))

    def _commit(self, manifest: Manifest, root: str) -> None:
        """Make a manifest durable: the commit point of its checkpoint."""
        self._catalog.check_not_fenced(manifest.generation)
        if manifest.kind is CheckpointKind.SAVEPOINT:
            commit_savepoint(open_store(root), manifest, self._be_patient)
            self._catalog.check_not_fenced(manifest.generation)
        else:
            self._catalog.commit(manifest, self._be_patient)
            self._catalog.confirm(manifest, self._be_patient)

    def _be_patient(self, error: StoreFailedError) -> bool:
        """Wait until a store may be asked again; return whether to: as long as the coordinator lives."""
        log.warning("a manifest's fate is not known, asking again", error=str(error))
        return not self._closed.wait(_ASK_AGAIN_SECONDS)

    def _discard(self, order: do.Discard) -> None:
        generation = self.look(lambda protocol: protocol.generation)
        try:
            # What a successor keeps is no longer this coordinator's to say.
            self._catalog.check_not_fenced(generation)
            discard(self._store, order.dropped, order.kept)
        except (OSError, ChandyError) as error:
            log.warning("cannot delete old checkpoints; `chandy gc` can", error=str(error))
        self.event(lambda protocol, now: protocol.discarded(len(order.dropped), now))

    def _discard_aborted(self, order: do.DiscardAborted) -> None:
        if order.checkpoint in self._unknown:
            return
        try:
            if order.is_savepoint:
                discard_savepoint(open_store(order.root), self._owner(order.checkpoint))
            else:
                generation = self.look(lambda protocol: protocol.generation)
                discard_aborted(self._store, order.checkpoint, generation)
        except (OSError, ChandyError) as error:
            log.warning("cannot delete what an aborted checkpoint left", error=str(error))

    def _resolve(self, order: do.Resolve) -> None:
        manifest = order.manifest
        checkpoint = Checkpoint.of(manifest, order.root)
        log.info(
            "checkpoint completed", id=manifest.id, kind=manifest.kind.value, seconds=checkpoint.duration
        )
        if (future := self._futures.pop(order.request, None)) is not None:
            future.set_result(checkpoint)

    def _reject(self, order: do.Reject) -> None:
        log.info(
            "no checkpoint", id=order.error.id, reason=order.error.reason.value, detail=order.error.detail
        )
        if (future := self._futures.pop(order.request, None)) is not None:
            future.set_exception(order.error)

    # --- end ------------------------------------------------------------------------------------------------

    def settle(self) -> bool:
        """Wait until every manifest whose writing has begun is written or has failed; return whether that is so.

        While the store does not answer, nobody knows which checkpoint is the latest.
        """
        settled = threading.Event()
        self._instructions.put(settled)
        return settled.wait(_STOP_SECONDS)

    def abandon(self) -> None:
        """Tell the hosts to stop, and leave all else as it is: the interpreter is about to end."""
        self._closed.set()
        self._order_streams.stop_all()

    def close(self, reason: Reason = Reason.COORDINATOR_SHUTDOWN) -> None:
        """End every checkpoint that has not completed, tell the hosts to stop, and end the threads."""
        if self._closed.is_set():
            return
        with self._lock:
            asked = list(self._futures.values())
        self.event(lambda protocol, now: protocol.close(reason, now))
        self.settle()
        self._closed.set()
        self._wake.set()
        self._order_streams.stop_all()
        self._instructions.put(None)
        for thread in self._threads:
            thread.join(_STOP_SECONDS)
        self._pool.shutdown(wait=True)
        self._finalizer.shutdown(wait=True)
        self._cleaner.shutdown(wait=True)
        self._ended.set()
        self._refuse_the_rest()
        wait(asked, _STOP_SECONDS)
        self._answers.shutdown(wait=False)

    def _refuse_the_rest(self) -> None:
        """Fail the requests that came when nobody was left to hand instructions on."""
        with contextlib.suppress(queue.Empty):
            while True:
                instruction = self._instructions.get_nowait()
                if isinstance(instruction, do.Reject):
                    self._reject(instruction)
