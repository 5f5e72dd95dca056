"""Takes a pipeline over, at once or as a standby whose turn has come: earlier coordinators are fenced from then on."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import ExitStack, suppress
from functools import partial
from typing import Final

import attrs

from ...state.local.processes import Process
from ...storage import runtime
from ...storage.backends.open import open_store
from ...storage.checkpoints.catalog import Catalog
from ...storage.checkpoints.fencing import Claim, Generation
from ...storage.checkpoints.journal import Journal, JournalEntry
from ...storage.checkpoints.manifest import Manifest
from ...storage.checkpoints.proof import FenceProof
from ...storage.checkpoints.savepoint_claim import claim_restored, drop_claimed
from ...storage.errors import ChandyError, FencedError, StoreFailedError
from ...storage.ids import CheckpointId
from ...storage.logs import logger
from ..config import CheckpointConfig
from ..errors import PredecessorRunsError
from ..execution.successor_watch import SuccessorWatch
from ..leadership.election import Silence
from ..leadership.heir import Inheritance
from ..leadership.leadership import Leadership, await_predecessors, claimant
from ..leadership.waiting_driver import WaitingDriver, Won
from ..permit import Permit, Permits
from ..recovery.runs import Runs
from ..restore import restore_point
from ..restore.restore_point import RestorePoint

log = logger(__name__)

_SHORTEST_LEASE_SECONDS: Final = 1.0
"""A lease is renewed ten times in its time. It must not be renewed all the time."""


class StartRecord:
    """The start record of this life, to which a user's choices are added before anything is done about them."""

    def __init__(self, catalog: Catalog, generation: Generation, proof: FenceProof) -> None:
        """Take the record as it was created."""
        self._catalog = catalog
        self._generation = generation
        self._proof = proof
        self._writing = runtime.lock()

    def chose(self, restored: str) -> None:
        """Add what a user has chosen to restore: the id of a checkpoint or savepoint, or its URI."""
        with self._writing:
            self._amend(attrs.evolve(self._generation, restored=restored))

    def permitted(self, lines: Sequence[str]) -> None:
        """Add what a user has permitted, and is done now."""
        with self._writing:
            known = self._generation.permitted
            self._amend(attrs.evolve(self._generation, permitted=tuple(dict.fromkeys([*known, *lines]))))

    def _amend(self, generation: Generation) -> None:
        if generation != self._generation:
            self._proof.check_now()
            self._catalog.amend(generation)
            self._generation = generation


@attrs.frozen
class TakenPipeline:
    """A pipeline that this process has taken over: every earlier coordinator on it is fenced."""

    name: str
    catalog: Catalog
    claim: Claim
    generation: Generation
    point: RestorePoint | None
    """The checkpoint to begin from; None: from the beginning."""
    may_resume: bool
    """Whether queries may go on behind the checkpoint or, if there is none, replace what they wrote into sinks."""
    completed: tuple[Manifest, ...]
    """The completed checkpoints that can be read, ascending."""
    leadership: Leadership
    """Given up once the pipeline's queries have ended."""
    watch: SuccessorWatch
    """Proves that there is no successor."""
    record: StartRecord
    permits: Permits
    chosen: str = ""
    """The checkpoint or savepoint that a user has named; empty: none."""

    def keep_chosen(self) -> None:
        """Record what a user has named, so that the next life goes on from there until a checkpoint has completed."""
        if self.chosen:
            self.record.chose(self.chosen)

    @property
    def base(self) -> CheckpointId | None:
        """The checkpoint of the pipeline's own chain that its state grows from."""
        return self.point.manifest.id if self.point and not self.point.is_savepoint else None

    def drop_claimed(self, ended: int) -> None:
        """Delete savepoints of this pipeline's own that nothing needs once the generations up to ``ended`` are over."""
        in_use = [self.point.root] if self.point and ended < self.generation.generation else []
        try:
            drop_claimed(self.catalog, open_store, ended, self.watch.proof, in_use)
        except (OSError, ChandyError) as error:
            log.warning("cannot delete a claimed savepoint; the next coordinator will", error=str(error))


@attrs.frozen
class FoundPipeline:
    """What a storage has."""

    ids: list[CheckpointId]
    point: RestorePoint | None
    """The checkpoint to restore."""
    completed: tuple[Manifest, ...]


def look(catalog: Catalog, restore: str | int | RestorePoint) -> FoundPipeline:
    """Choose the checkpoint to restore, and read what else there is."""
    ids = catalog.list_ids()
    point = restore_point.choose(catalog, restore)
    is_newest = restore == restore_point.LATEST and not catalog.chosen()
    chosen = None if is_newest or restore == restore_point.NONE else point
    return FoundPipeline(ids, point, restore_point.known(catalog, chosen))


def is_chosen(restore: str | int | RestorePoint) -> bool:
    """Return whether a user has named the checkpoint or savepoint to restore."""
    return restore not in (restore_point.LATEST, restore_point.NONE)


def _text(chosen: str | int | RestorePoint) -> str:
    return chosen.root if isinstance(chosen, RestorePoint) else str(chosen)


@attrs.frozen
class PipelineTakeover:
    """How this process takes a pipeline over."""

    name: str
    catalog: Catalog
    config: CheckpointConfig
    restore: str | int | RestorePoint
    """As for ``CheckpointCoordinator``, or a checkpoint of another storage."""
    clock: Callable[[], float]
    java: Process
    """The session's JVM."""
    permit: Permit
    runs: Runs
    within: FenceProof | None
    """The proof of the pipeline that this one is a part of: a driver that has lost that one takes over nothing. None:
    it is part of no other."""
    shadow: str = ""
    """As for ``Claim``."""

    def inherit(self, inherited: Inheritance, found: FoundPipeline, closing: ExitStack) -> TakenPipeline:
        """Take over what a leader has offered this process, a shadow until now.

        Args:
            inherited: the claim, and the state to go on with.
            found, closing: as for ``now``.
        """
        return self._claimed(inherited.claim, inherited.lease_seconds, found, closing, inherited=inherited)

    def in_turn(self, standby: WaitingDriver, found: FoundPipeline, closing: ExitStack) -> TakenPipeline:
        """Wait until this driver is needed, and take over; if another one is faster, wait again.

        Args:
            standby: tells when it is needed.
            found, closing: as for ``now``.
        """
        while True:
            won = standby.wait()
            with ExitStack() as attempt:
                try:
                    turn = attrs.evolve(self, restore=self._restored_in_turn(won))
                    now = found if turn.restore == self.restore else attrs.evolve(found, ids=[])
                    pipeline = turn.now(now, attempt, won)
                except FencedError as error:
                    log.info("another driver has taken over; the standby goes on waiting", error=str(error))
                    continue
                except StoreFailedError as error:
                    log.warning(
                        "the storage has failed in a take-over; the standby tries again", error=str(error)
                    )
                    continue
                closing.push(attempt.pop_all())
                return pipeline

    def now(self, found: FoundPipeline, closing: ExitStack, won: Won | None = None) -> TakenPipeline:
        """Claim the next generation, wait until no predecessor writes into the sinks any more, and begin.

        Args:
            found: what the storage had a moment ago.
            closing: ends what was made, in the reverse order.
            won: the claim of a standby, which keeps a lease from now on; None: claim now.
        """
        if self.within is not None:
            self.within.check_now()
        if won is None:
            claim = self.catalog.claim(claimant(), self.clock(), self.shadow)
            return self._claimed(claim, None, found, closing)
        lease = max(self.config.takeover_timeout_seconds, _SHORTEST_LEASE_SECONDS)
        return self._claimed(won.claim, lease, found, closing, silence=won.silence)

    def _claimed(
        self,
        claim: Claim,
        lease: float | None,
        found: FoundPipeline,
        closing: ExitStack,
        *,
        silence: Silence | None = None,
        inherited: Inheritance | None = None,
    ) -> TakenPipeline:
        """Wait until no predecessor of a claimed generation writes into the sinks any more, and begin.

        Args:
            claim: of the generation.
            lease: the time of the lease to keep; None: none.
            found, closing: as for ``now``.
            silence: the predecessor whose lease has run out before the claim.
            inherited: what a shadow has computed; None: this was none.
        """
        catalog, patience = self.catalog, self.config.takeover_timeout_seconds
        closing.push(partial(self._write_down, claim))
        leadership = Leadership.take(catalog, claim, self.java, lease)
        closing.callback(leadership.step_down_after, self.runs.await_ends)
        self._await_predecessors(claim, silence, gives_up=inherited is None)
        # A savepoint's id may be above all of this pipeline's.
        chosen = found.point if is_chosen(self.restore) else None
        generation = catalog.start(claim, first_id=CheckpointId(chosen.manifest.id + 1 if chosen else 1))
        if inherited is not None:
            generation = self._graft(inherited, generation)
        # Only what is found after the take-over is sure to be the latest.
        if catalog.list_ids() != found.ids or generation.restored:
            found = look(catalog, self.restore)
        point = found.point
        watch = SuccessorWatch(
            catalog,
            generation.generation,
            trusts_look=patience / 2,
            hold_lease=leadership.hold_lease,
            within=self.within,
        )
        leadership.listen(watch.fence)
        closing.callback(watch.close)
        watch.begin()
        record = StartRecord(catalog, generation, watch.proof)
        permits = Permits(self.permit, record.permitted)
        claimed = self.permit.claim
        if claimed and point is not None and point.is_savepoint and open_store(claimed).uri == point.root:
            permits.use(Permit(claim=claimed))
            claim_restored(catalog, open_store(point.root), watch.proof)
        taken = TakenPipeline(
            self.name,
            catalog,
            claim,
            generation,
            point,
            may_resume=self.restore == restore_point.LATEST,
            completed=found.completed,
            leadership=leadership,
            watch=watch,
            record=record,
            permits=permits,
            chosen=_text(self.restore) if chosen else "",
        )
        taken.drop_claimed(generation.generation - 1)
        return taken

    def _await_predecessors(self, claim: Claim, silence: Silence | None, *, gives_up: bool) -> None:
        while True:
            try:
                await_predecessors(self.catalog, claim, self.config.takeover_timeout_seconds, silence)
            except PredecessorRunsError as error:
                # The leader has offered the pipeline and is fenced by now, so that nobody else would lead it.
                if gives_up:
                    raise
                log.warning("the driver before has not ended yet; waiting on", because=str(error))
            else:
                return

    def _graft(self, inherited: Inheritance, generation: Generation) -> Generation:
        """Commit a shadow's state as the pipeline's next checkpoint; return what is left of the generation."""
        made = inherited.grafted(self.catalog.latest(), generation.next_id)
        if made is None:
            return generation
        self.catalog.commit(attrs.evolve(made, completed_at=self.clock()))
        self.catalog.confirm(made)
        return attrs.evolve(generation, next_id=CheckpointId(made.id + 1))

    def _write_down(self, claim: Claim, _: object, error: BaseException | None, __: object) -> None:
        """Have the journal tell why a driver that has fenced the one before could not begin."""
        if not isinstance(error, ChandyError) or isinstance(error, FencedError | StoreFailedError):
            return
        entry = JournalEntry(at=self.clock(), what="start refused", says=str(error))
        with suppress(ChandyError, OSError):
            Journal(self.catalog.store, claim.generation).add(entry)

    def _restored_in_turn(self, won: Won) -> str | int | RestorePoint:
        """Return what a standby restores: what it was told to, unless those that it has followed have got further."""
        if won.followed is None:
            return self.restore
        latest = self.catalog.latest()
        if latest is None or latest.generation < won.followed:
            return self.restore
        return restore_point.LATEST
