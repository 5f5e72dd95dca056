"""What a checkpoint asks of stores and disks: its place, the progress of queries, its manifest, and to clean up.

Each job takes as long as a store takes, and is made of steps (``job_steps``).
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable
from functools import partial
from typing import Final

import attrs

from ...storage.checkpoints.catalog import Catalog
from ...storage.checkpoints.collect import discard, discard_aborted
from ...storage.checkpoints.layout import is_shared, pack_key, savepoint_key, trigger_key
from ...storage.checkpoints.manifest import CheckpointKind, Handle, Manifest, OutputRecord, QueryRecord
from ...storage.checkpoints.restore import read_file
from ...storage.checkpoints.savepoint import claim_savepoint, discard_savepoint
from ...storage.checkpoints.snapshots import SnapshotWriter, copy_snapshot
from ...storage.checkpoints.verification import check
from ...storage.disk.scratch import scratch_directory
from ...storage.errors import (
    ChandyError,
    FencedError,
    NotDeletedError,
    ObjectMissingError,
    OutcomeUnknownError,
)
from ...storage.ids import BatchId, CheckpointId
from ...storage.logs import logger
from ...storage.store import Store
from ...storage.times import rounded
from ..protocol import events, instructions
from ..protocol.reasons import Reason
from .commit import commit_steps
from .job_steps import JobSteps
from .locked_protocol import LockedProtocol
from .progress import Progress
from .recording import Recording
from .reports import Reports
from .successor_watch import SuccessorWatch

log = logger(__name__)

_TAKEN_SECONDS: Final = 1.0
"""No successor begins, takes a checkpoint and drops it for a newer one in less."""
_PRE_COMMITS: Final = 5
"""How often sinks are asked what a savepoint has to publish, while retention deletes what is published."""


class CheckpointJobs:
    """Carries out what instructions ask of stores, and tells the state machine how it ended.

    Args:
        protocol: the protocol of the pipeline.
        watch: is told of a successor, and proves that there is no successor.
        catalog: where manifests are committed.
        store: the pipeline's own store.
        open_store: opens other stores, by their URIs.
        progress: the queries on the driver's disk.
        clock: seconds since 1970, never going back.
        is_closed: whether nobody waits for a job any more.
        reports: is told of what happens.
        recording: looks for shadows when a checkpoint begins.
    """

    def __init__(
        self,
        protocol: LockedProtocol,
        watch: SuccessorWatch,
        *,
        catalog: Catalog,
        store: Store,
        open_store: Callable[[str], Store],
        progress: Progress,
        clock: Callable[[], float],
        is_closed: Callable[[], bool],
        reports: Reports,
        recording: Recording,
    ) -> None:
        self._protocol = protocol
        self._watch = watch
        self._catalog = catalog
        self._store = store
        self._open_store = open_store
        self._progress = progress
        self._clock = clock
        self._is_closed = is_closed
        self._reports = reports
        self._recording = recording
        self._repeated: set[CheckpointId] = set()
        """Checkpoints that are kept and whose manifest the store was asked for more than once."""

    def failed(self, checkpoint: CheckpointId, reason: Reason, error: Exception) -> None:
        """Tell the state machine that a checkpoint cannot complete."""
        detail = str(error) or type(error).__name__
        self._protocol.handle(events.InstructionFailed(checkpoint, reason, detail))

    # --- its place ------------------------------------------------------------------------------------------

    def choose_cut(self, choose: instructions.ChooseCut) -> JobSteps:
        """Look up the newest batch of each query, in the order of the instruction.

        Whether a query is first asked for the batch that it has begun or whether it has stopped does not matter: it is
        asked again once all cuts are chosen, and a cut that it will not reach aborts the checkpoint.
        """
        try:
            yield from self._take_place(choose)
        except FencedError as error:
            self.failed(choose.checkpoint, Reason.FENCED, error)
            return
        except (OSError, ChandyError) as error:
            self.failed(choose.checkpoint, Reason.IO_EXCEPTION, error)
            return
        if self._is_over(choose.checkpoint):
            # It was aborted meanwhile, and cleaned up perhaps before its place was claimed.
            given_up = instructions.DiscardAborted(choose.checkpoint, choose.root, choose.is_savepoint)
            yield from self.discard_aborted(given_up)
            return
        self._recording.look()
        yield None
        for query in choose.queries:
            begun = self._progress.begun(query)
            yield None
            current_batch = self._progress.current_batch(query)
            yield None
            self._protocol.handle(events.CutChosen(choose.checkpoint, query, begun, current_batch))
            yield None
        self._protocol.handle(events.PlanningDone(choose.checkpoint))
        for query in choose.queries:
            yield None
            # A query that was stopped since its cut was chosen never commits what it had planned.
            if (batch := self._progress.current_batch(query)) is not None:
                yield None
                self._protocol.handle(events.QueryStopped(query, batch))

    def _take_place(self, choose: instructions.ChooseCut) -> JobSteps:
        """Take an id and a folder that no other checkpoint of any life has."""
        kind = CheckpointKind.SAVEPOINT.value if choose.is_savepoint else "checkpoint"
        # A successor's ids are its own.
        looked_at = self._clock()
        self._watch.check_now()
        yield None
        # Before anything else: no later life uses the id again, whatever becomes of this one.
        note = f"{kind} of {self._owner(choose.checkpoint)}"
        self._store.create(trigger_key(choose.checkpoint), note.encode())
        yield None
        if self._clock() - looked_at > _TAKEN_SECONDS:
            # It may have come so late that a successor has had the id, and has dropped its checkpoint by now.
            self._watch.check_now()
            yield None
        if choose.is_savepoint:
            self._store.create(savepoint_key(choose.checkpoint), choose.root.encode())
            yield None
            target = self._store_of(choose.checkpoint, choose.root)
            claim_savepoint(target, self._owner(choose.checkpoint))
            yield None

    def _owner(self, checkpoint: CheckpointId) -> str:
        return f"{self._store.uri}, generation {self._protocol.generation}, checkpoint {checkpoint}"

    def _store_of(self, checkpoint: CheckpointId, root: str) -> Store:
        """The store of a checkpoint. Nothing is retried on it after the checkpoint's deadline."""
        deadline = self._protocol.deadline_of(checkpoint)
        left = 0.0 if deadline is None else deadline - self._clock()
        return self._open_store(root).within(max(0.0, left))

    # --- progress -------------------------------------------------------------------------------------------

    def _is_over(self, checkpoint: CheckpointId) -> bool:
        """Whether a checkpoint has ended: nothing is to be written for it any more, nor any sink to be asked."""
        return not self._protocol.is_pending(checkpoint)

    def store_progress(self, order: instructions.StoreProgress) -> JobSteps:
        """Store what the progress of a query is, with what its sinks have to publish."""
        if self._is_over(order.checkpoint):
            return
        yield None
        try:
            store = self._store_of(order.checkpoint, order.root)
            outputs, staged_bytes = yield from self._pre_commit(order, store)
            yield None
            writer = SnapshotWriter(store, pack_key(order.checkpoint, f"driver-{order.query}"))
            with self._progress.hold(order.query, order.cut) as files:
                yield None
                writer.add(order.query, files, order.base)
                stored = writer.finish()[order.query]
                yield None
        except (OSError, ChandyError) as error:
            self.failed(order.checkpoint, Reason.IO_EXCEPTION, error)
            return
        yield from self._forget_late(order.checkpoint, order.root, [stored.handle])
        record = QueryRecord(order.query, order.cut, stored.handle, outputs)
        self._protocol.handle(
            events.ProgressStored(order.checkpoint, record, stored.new_bytes + staged_bytes)
        )

    def _forget_late(self, checkpoint: CheckpointId, root: str, handles: Iterable[Handle]) -> JobSteps:
        """Delete the packs that were written for a savepoint which was aborted meanwhile.

        Their names are nobody else's. Shared files stay: a new savepoint in the same folder may use them by now.
        """
        if root == self._store.uri or not self._is_over(checkpoint):
            return
        packs = {file.key for handle in handles for file in handle.files if not is_shared(file.key)}
        try:
            self._open_store(root).delete_all(sorted(packs))
        except (OSError, ChandyError) as error:
            log.warning("cannot delete what an aborted savepoint left", error=str(error))
        yield None

    def _pre_commit(
        self, order: instructions.StoreProgress, store: Store
    ) -> Generator[None, None, tuple[tuple[OutputRecord, ...], int]]:
        """Ask a query's sinks what the manifest must say, and keep what it names; return how many bytes that wrote."""
        asked = 0
        while True:
            outputs = self._progress.pre_commit(order.query, order.checkpoint)
            asked += 1
            yield None
            try:
                staged_bytes = yield from self._keep_staged(outputs, store)
            except ObjectMissingError:
                # It was published meanwhile, and retention has deleted it.
                if asked == _PRE_COMMITS:
                    raise
            else:
                return outputs, staged_bytes

    def _keep_staged(self, outputs: Iterable[OutputRecord], store: Store) -> Generator[None, None, int]:
        """See to it that a checkpoint's store has what is to be published; return how many bytes that wrote."""
        if store.uri == self._store.uri:
            return 0
        # Several sinks publish the same files.
        files = {file.key: file for one in outputs for epoch in one.epochs for file in epoch.staged.files}
        for file in files.values():
            store.write(file.key, read_file(self._store, file))
            yield None
        return sum(file.size for file in files.values())

    def copy_shards(self, order: instructions.CopyShards) -> JobSteps:
        """Copy the files of shards that no host has into the store of the checkpoint."""
        if self._is_over(order.checkpoint):
            return
        yield None
        try:
            with scratch_directory("copy") as folder:
                pack = pack_key(order.checkpoint, f"driver-{order.query}-shards")
                writer = SnapshotWriter(self._store_of(order.checkpoint, order.root), pack)
                for number, (_, source) in enumerate(order.sources):
                    scratch = folder / str(number)
                    copy_snapshot(self._open_store(source.root), source.handle, writer, str(number), scratch)
                    yield None
                stored = writer.finish()
                yield None
        except (OSError, ChandyError) as error:
            self.failed(order.checkpoint, Reason.IO_EXCEPTION, error)
            return
        handles = {shard: stored[str(number)].handle for number, (shard, _) in enumerate(order.sources)}
        yield from self._forget_late(order.checkpoint, order.root, handles.values())
        new_bytes = sum(snapshot.new_bytes for snapshot in stored.values())
        self._protocol.handle(events.ShardsCopied(order.checkpoint, order.query, handles, new_bytes))

    def read_back(self, order: instructions.ReadBack) -> JobSteps:
        """Read what nobody has read since the restore, and tell whether it is whole."""
        files = [(source.root, file) for source in order.sources for file in source.handle.files]
        log.info("reading what nobody has read of the restored checkpoint", files=len(files))
        whole = False
        try:
            for root, file in files:
                yield None
                if self._is_closed():
                    return
                check(self._open_store(root), file)
            whole = True
        except (OSError, ChandyError) as error:
            log.warning("cannot verify the restored checkpoint", error=str(error))
            if isinstance(error, ChandyError) and self._is_needed(error):
                self._reports.shards_not_opened(order.query_id, str(error), error.code)
        finally:
            self._protocol.handle(events.SourcesReadBack(order.query_id, whole))

    def _is_needed(self, error: ChandyError) -> bool:
        """Return whether an error matters: retention may have deleted what checkpoints have ceased to need."""
        if not isinstance(error, ObjectMissingError):
            return True
        return self._protocol.is_retained(error.key)

    # --- its manifest ---------------------------------------------------------------------------------------

    def finalize(self, order: instructions.Finalize) -> JobSteps:
        """Write the manifest."""
        manifest = self._protocol.manifest_of(order.checkpoint, self._clock())
        if manifest is None:
            return
        manifest = self._with_channels(manifest)
        not_finalized = partial(events.NotFinalized, manifest, Reason.FINALIZE_CHECKPOINT_FAILURE)
        yield None
        try:
            if doomed := self._protocol.doomed(manifest):
                self._protocol.handle(
                    events.NotFinalized(manifest, Reason.OBJECTS_DROPPED, f"{min(doomed)} may be gone")
                )
                return
            yield None
            if (
                yield from commit_steps(
                    manifest, order.root, self._catalog, self._open_store, self._is_closed
                )
            ):
                self._repeated.add(manifest.id)
            yield None
        except FencedError as error:
            self._protocol.handle(events.NotFinalized(manifest, Reason.FENCED, str(error)))
            self._watch.fence(error)
        except (OSError, ChandyError) as error:
            self._protocol.handle(
                not_finalized(str(error), is_known=not isinstance(error, OutcomeUnknownError))
            )
        except Exception as error:
            log.exception("a manifest could not be written", checkpoint=order.checkpoint)
            self._protocol.handle(not_finalized(repr(error), is_known=False))
        else:
            self._tell_of(manifest, order.root)
            yield None
            self._protocol.handle(events.Finalized(manifest))
            seconds = manifest.completed_at - manifest.triggered_at
            log.info(
                "checkpoint completed", id=manifest.id, kind=manifest.kind.value, seconds=rounded(seconds)
            )

    def _tell_of(self, manifest: Manifest, root: str) -> None:
        try:
            self._reports.checkpoint_completed(manifest, root)
        except Exception:
            # The checkpoint is complete, whatever becomes of the news.
            log.exception("what was to be done after a checkpoint has failed", checkpoint=manifest.id)

    def _with_channels(self, manifest: Manifest) -> Manifest:
        try:
            return attrs.evolve(manifest, channels=self._progress.channels(manifest))
        except Exception as error:  # noqa: BLE001 (a restore does not need them)
            log.warning("cannot tell what is between the queries", error=str(error) or repr(error))
            return manifest

    # --- what is not needed any more ------------------------------------------------------------------------

    def discard(self, order: instructions.Discard) -> JobSteps:
        """Delete what dropped checkpoints alone have, unless a reader needs them."""
        remaining, ids = order.dropped, tuple(manifest.id for manifest in order.dropped)
        yield None
        try:
            needed = partial(self._protocol.there_besides, ids)
            deleted = yield from discard(
                self._store, order.dropped, needed, self._watch.proof, self._repeated
            )
            remaining = deleted.remaining
            self._repeated.difference_update({*ids}.difference(one.id for one in remaining))
            yield None
            if deleted.failed:
                raise NotDeletedError.of(self._store.uri, deleted.failed)
        except (OSError, ChandyError) as error:
            log.warning("cannot delete old checkpoints; `chandy gc` can", error=str(error))
        finally:
            # No checkpoint begins while too many deletions are counted as under way.
            self._protocol.handle(events.Discarded(ids, remaining))

    def discard_aborted(self, order: instructions.DiscardAborted) -> JobSteps:
        """Delete what was stored for an aborted checkpoint."""
        yield None
        try:
            if order.is_savepoint:
                owner = self._owner(order.checkpoint)
                discard_savepoint(self._open_store(order.root), owner, self._watch.proof)
            else:
                discard_aborted(self._store, order.checkpoint, self._watch.proof)
        except (OSError, ChandyError) as error:
            log.warning("cannot delete what an aborted checkpoint left", error=str(error))

    # --- commits --------------------------------------------------------------------------------------------

    def notice_commits(self) -> JobSteps:
        """Look once, on the driver's disk, which may not answer, for the commits of cuts that are waited for."""
        for query, cut in self._protocol.waiting_for_commits().items():
            if self._is_committed(query, cut):
                yield None
                self._protocol.handle(events.BatchCommitted(query, cut))
            yield None

    def _is_committed(self, query: str, batch: BatchId) -> bool:
        try:
            return self._progress.is_committed(query, batch)
        except (OSError, ChandyError) as error:
            log.warning("cannot look for a commit", query=query, batch=batch, error=str(error))
            return False
        except KeyError:
            # The query could not be started after all; its checkpoints are being aborted.
            return False
