"""What ``CheckpointExecutor`` does with threads, one step at a time: it carries out what a state machine instructs."""

from __future__ import annotations

import abc
from collections import deque
from collections.abc import Callable, Iterator, Mapping, MutableSequence, Sequence
from typing import Any, ClassVar

from chandy.coordinator.errors import CheckpointError
from chandy.coordinator.execution import commit
from chandy.coordinator.protocol import events as on
from chandy.coordinator.protocol import instructions as do
from chandy.coordinator.protocol.reasons import Reason
from chandy.coordinator.protocol.requests import Request
from chandy.coordinator.protocol.state_machine import CheckpointStateMachine
from chandy.coordinator.restore.restore_point import RestorePoint
from chandy.storage.checkpoints.catalog import Catalog
from chandy.storage.checkpoints.layout import savepoint_key, trigger_key
from chandy.storage.checkpoints.manifest import Manifest
from chandy.storage.checkpoints.savepoint import claim_savepoint
from chandy.storage.errors import ChandyError, FencedError, OutcomeUnknownError
from chandy.storage.store import Store

Work = Iterator[None]
"""Something that a thread of the driver does. It yields wherever another thread may come in between."""


class SteppedExecutor(abc.ABC):
    """The life of a coordinator, as far as checkpoints go. A subclass has the machine, the catalog and the queries."""

    machine: CheckpointStateMachine
    catalog: Catalog
    root: str
    """URI of the pipeline's own store."""
    is_over: bool = False
    apart: ClassVar[bool] = False
    """Whether manifests of the pipeline's own are written by a thread of their own, one after the other."""

    def __init__(self) -> None:
        self.instructions: deque[do.Instruction] = deque()
        self.works: MutableSequence[Work] = []
        self.manifests: MutableSequence[Work] = []
        self._in_order: list[Work] = []
        """What writes manifests of the pipeline's own and is among the ``works``, in the order of its instructions."""
        self.outcomes: dict[Request, Manifest | CheckpointError] = {}

    # --- what a subclass knows ------------------------------------------------------------------------------

    @abc.abstractmethod
    def tick(self) -> float:
        """Return the time, which goes on."""

    @abc.abstractmethod
    def open(self, uri: str) -> Store:
        """Open a store."""

    @abc.abstractmethod
    def planned(self, query: str) -> int:
        """Return the newest batch that a query has planned."""

    @abc.abstractmethod
    def is_committed(self, query: str, batch: int) -> bool:
        """Return whether a batch has committed."""

    @abc.abstractmethod
    def close_epoch(self, order: do.StoreProgress) -> None:
        """Close off a query's output at a cut."""

    @abc.abstractmethod
    def store_progress(self, order: do.StoreProgress) -> Work:
        """Store what restores a query."""

    @abc.abstractmethod
    def publish_checkpoint(self, order: do.Publish) -> None:
        """Begin to publish what a checkpoint has."""

    @abc.abstractmethod
    def discard(self, order: do.Discard) -> Work:
        """Delete what retention has dropped."""

    def there_besides(self, order: do.Discard) -> Callable[[], tuple[Manifest, ...]]:
        """Return what says which checkpoints stay beside dropped ones."""
        ids = tuple(manifest.id for manifest in order.dropped)
        return lambda: self.machine.checkpoints.retained.there_besides(ids)

    def discard_aborted(self, order: do.DiscardAborted) -> Work:
        """Delete what an aborted checkpoint has left; nothing unless a subclass does."""
        yield from ()

    def about_to_complete(self, manifest: Manifest, root: str) -> Manifest:
        """Look at a manifest before it is written; return it with what is added then."""
        return manifest

    def resolved(self, manifest: Manifest) -> None:  # noqa: B027 (most have nothing to check)
        """Check what must be so once a checkpoint's future is resolved."""

    def owner(self, checkpoint: int) -> str:
        """Name the life in the claim of a savepoint's folder."""
        return f"{self.machine.generation}, {checkpoint}"

    # --- steps ----------------------------------------------------------------------------------------------

    def handle(self, event: on.Event[on.Answer]) -> on.Answer:
        """Let the machine handle an event; its instructions wait."""
        outcome = self.machine.handle(event, self.tick())
        self.instructions.extend(outcome.instructions)
        return outcome.answer

    def dispatch(self) -> None:
        """Hand the next instruction on, as ``CheckpointExecutor._hand_on``."""
        if not self.instructions:
            return
        match instruction := self.instructions.popleft():
            case do.Finalize(checkpoint, root) if root == self.root and self.apart:
                self.manifests.append(self.finalize(checkpoint, root))
            case do.Finalize(checkpoint, root):
                # One thread writes them, one after the other.
                earlier = [work for work in self._in_order if work in self.works] if root == self.root else []
                self.works.append(self.finalize(checkpoint, root, earlier))
                self._in_order = [*earlier, self.works[-1]] if root == self.root else self._in_order
            case do.StoreProgress():
                self.close_epoch(instruction)
                self.works.append(self.store_progress(instruction))
            case do.ChooseCut():
                self.works.append(self.choose_cut(instruction))
            case do.Publish():
                self.publish_checkpoint(instruction)
            case do.Discard():
                self.works.append(self.discard(instruction))
            case do.DiscardAborted():
                self.works.append(self.discard_aborted(instruction))
            case do.Resolve(request, manifest):
                assert request not in self.outcomes
                self.outcomes[request] = manifest
                self.resolved(manifest)
            case do.Reject(request, error):
                assert request not in self.outcomes
                self.outcomes[request] = error

    def work(self, works: MutableSequence[Work], number: int) -> None:
        """Let one thing that the driver does take its next step."""
        work = works[number]
        if next(work, self) is self:
            works.remove(work)

    def notice_commits(self) -> None:
        """Tell the machine of cuts that have committed."""
        for query, cut in self.machine.waiting_for_commits().items():
            if self.is_committed(query, cut):
                self.handle(on.BatchCommitted(query, cut))

    def choose_cut(self, choose: do.ChooseCut) -> Work:
        """Give a checkpoint its id, and choose the cut of each query."""
        store = self.open(self.root)
        try:
            self.catalog.check_not_fenced(self.machine.generation)
            store.create(trigger_key(choose.checkpoint), b"checkpoint")
            if choose.is_savepoint:
                store.create(savepoint_key(choose.checkpoint), choose.root.encode())
                claim_savepoint(self.open(choose.root), self.owner(choose.checkpoint))
        except ChandyError as error:
            self.handle(on.InstructionFailed(choose.checkpoint, Reason.IO_EXCEPTION, str(error)))
            return
        for query in choose.queries:
            # Batches go on between the queries' cuts.
            yield
            if choose.checkpoint not in self.machine.checkpoints.pending:
                return
            self.handle(on.CutChosen(choose.checkpoint, query, self.planned(query)))
        self.handle(on.PlanningDone(choose.checkpoint))

    def finalize(self, checkpoint: int, root: str, earlier: Sequence[Work] = ()) -> Work:
        """Write a checkpoint's manifest, after what is written earlier."""
        yield
        while any(work in self.works for work in earlier):
            yield
        manifest = self.machine.manifest(checkpoint, self.tick())
        if manifest is None:
            return
        manifest = self.about_to_complete(manifest, root)
        try:
            yield from commit.commit_steps(manifest, root, self.catalog, self.open)
        except FencedError as error:
            self.handle(on.NotFinalized(manifest, Reason.FENCED, str(error)))
            self.is_over = True
        except ChandyError as error:
            is_known = not isinstance(error, OutcomeUnknownError)
            reason = Reason.FINALIZE_CHECKPOINT_FAILURE
            self.handle(on.NotFinalized(manifest, reason, str(error), is_known))
        else:
            self.handle(on.Finalized(manifest))


class SteppedRollback:
    """The steps back of one life, as ``PipelineRollback`` takes them, where there are neither processes nor records."""

    life: SteppedExecutor

    def check_not_fenced(self) -> None:
        """Raise if there is a successor."""
        self.life.catalog.check_not_fenced(self.life.machine.generation)

    def stop_runs(self) -> None:
        """Nothing runs by itself."""

    def suspend_checkpoints(self) -> None:
        """Abort the checkpoints in progress."""
        self.life.handle(on.Suspended("state lost"))

    def find_resumable(self, point: RestorePoint | None) -> Mapping[str, Any]:
        """Return no run: all go back."""
        return {}

    def forget_resumable(self) -> None:
        """There are no records."""

    def release_runs(self) -> None:
        """No state host has the runs that are over."""

    def resume_checkpoints(self, point: RestorePoint | None) -> None:
        """Let checkpoints begin again."""
        self.life.handle(on.PipelineRestored(point.manifest.id if point else None))

    def start_runs(self) -> None:
        """Nothing runs by itself."""

    def clean_up(self) -> None:
        """Nothing is left."""
