"""Local recovery: resume queries from what killed processes have left on this machine.

Each shard has a changelog on its machine (``state.local.changelog``): what every batch has changed since the latest
completed checkpoint, written when the task stages it, never forced to the disk. It outlives processes, not machines.
A driver that is killed also leaves the working directories of its queries, each with a record of its run
(``run_record``). Together with the checkpoint that the state grew from, they suffice to go on with the next batch:
each query gets a copy of its directory, and each shard is restored from the checkpoint and replays its changelog up
to the newest committed batch. Three rules keep this right:

* What does not fit in every point is not used, because going back to the checkpoint is always right: another
  generation in between, another checkpoint below, another start of the machine, a JVM that still lives, other
  operators or outputs, a missing batch of a shard, a byte that is not as it was written, a file sink that is ahead of
  the commit log.
* All queries resume, or none (``resume``). Before a sink is put back, the records of its runs are gone.
* A shard that no host has opened yet is more than what it was restored from. Checkpoints wait until hosts have
  claimed all shards, so shards are opened ahead even if no batch comes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Final, Protocol

import attrs

from ...state.local.changelog import admit, gap, remove, shard_folder, sweep
from ...state.shards import NotResumable, ResumePoint
from ...storage.disk.locks import FileLock, try_acquire
from ...storage.disk.owners import remove_owned
from ...storage.disk.workspace import ALIVE
from ...storage.errors import UnsafeDirectoryError
from ...storage.ids import NO_BATCH
from ...storage.logs import logger
from ..query import Definition
from ..spark.progress import SOURCES, newest_committed
from .adoptions import Adoptions
from .restore_point import RestorePoint
from .resume import Candidate, ResumableRun, resume_point, resume_points
from .run_record import (
    RunRecord,
    base_of,
    boot_id,
    erase_record,
    grew_from,
    may_be_alive,
    misfit,
    read_records,
    same_operators,
)

log = logger(__name__)

_NO_CHANGELOGS: Final = NotResumable(
    "has no changelogs here: they are off, or those of a cluster, where hosts open lost shards"
)


class WorkingRun(Protocol):
    """What local recovery needs to know of a run of this life."""

    @property
    def definition(self) -> Definition:
        """The query."""

    @property
    def query_id(self) -> str:
        """Spark's id of the query."""

    @property
    def directory(self) -> Path:
        """The working checkpoint directory, or what mirrors it on this machine."""

    @property
    def resumed(self) -> ResumableRun | None:
        """The run that this one resumes. None if it comes from a checkpoint or begins empty."""


@attrs.frozen
class LeftoverRuns:
    """What a killed driver has left, held by this process."""

    runs: Mapping[str, tuple[RunRecord, Path]] = attrs.field(factory=dict)
    """By query the record and the working directory of its run."""
    known: frozenset[str] = frozenset()
    """All queries that were there, also those without a run here."""
    read: Mapping[str, tuple[Path, ...]] = attrs.field(factory=dict)
    """By query the working directories of runs that have gone on from the checkpoint, resumed or not."""
    places: tuple[tuple[Path, FileLock], ...] = ()
    """The directories that all of it is in."""


def tell_refusal(query: str, refusal: NotResumable) -> None:
    """Log why a query goes back to the checkpoint although there is something of a run that it might resume."""
    log.warning("a query does not resume where it stood", query=query, because=f"it {refusal.why}")


def find_leftovers(
    base: Path,
    changelogs: Path,
    refuse: Callable[[RunRecord], NotResumable | None],
    root: str,
    grew: Callable[[RunRecord], bool] = lambda record: False,
    own: Path | None = None,
) -> LeftoverRuns:
    """Find what earlier lives of a pipeline have left on this machine, and delete what cannot be resumed.

    Args:
        base: where coordinators have their directories.
        changelogs: the folder of all changelogs.
        refuse: returns why this life cannot resume a run; None if it can.
        root: URI of the pipeline's own store.
        grew: whether a run has gone on from the checkpoint that this life restores, so that its sources' logs count.
        own: the directory of this process, which may have led the pipeline before; None: it has none.
    """
    sweep(changelogs)
    runs: list[tuple[RunRecord, Path]] = []
    read: dict[str, tuple[Path, ...]] = {}
    places: list[tuple[Path, FileLock]] = []
    for place in base.iterdir() if base.is_dir() else ():
        if place == own:
            continue
        found = [one for one in read_records(place) if one[0].root == root]
        lock = try_acquire(place / ALIVE) if found else None
        if lock is None:
            # Another pipeline's, or a living driver's.
            for record, _ in found:
                tell_refusal(record.query, NotResumable(f"still belongs to a driver that lives, in {place}"))
            continue
        here, is_read = [], False
        for record, directory in found:
            if grew(record) and (directory / SOURCES).is_dir():
                read[record.query] = (*read.get(record.query, ()), directory)
                is_read = True
            if (refusal := refuse(record)) is None:
                here.append((record, directory))
                continue
            tell_refusal(record.query, refusal)
            remove(changelogs, record.query_id)
        if here or is_read:
            runs += here
            places.append((place, lock))
        else:
            remove_owned(place, ALIVE)
            lock.release()
    newest = max((record.round for record, _ in runs), default=0)
    for record, _ in runs:
        if record.round != newest:
            tell_refusal(record.query, NotResumable("stood at another cut: its driver was just going back"))
            remove(changelogs, record.query_id)
    known = frozenset(name for record, _ in runs for name in (record.query, *record.known))
    by_query = {one[0].query: one for one in runs if one[0].round == newest}
    return LeftoverRuns(by_query, known, read, tuple(places))


class LocalRecovery:
    """What a pipeline can resume on this machine, after its driver or one of its state hosts was killed.

    Either all of its queries resume or none, because they must be at one cut.
    """

    def __init__(
        self,
        *,
        root: str,
        generation: int,
        workspace: Path,
        changelogs: Path,
        enabled: bool,
        boot: str,
        leftovers: LeftoverRuns,
        java: int = 0,
        adoptions: Adoptions | None = None,
    ) -> None:
        """Make it for one life of a pipeline.

        Args:
            root: URI of the pipeline's own store.
            generation: the life.
            workspace: the coordinator's own directory, which exists as long as this life.
            changelogs: the folder of all changelogs.
            enabled: whether this life keeps changelogs.
            boot: this machine, as ``boot_id`` names it.
            leftovers: what the life before has left.
            java: process id of the JVM that Spark runs in.
            adoptions: where adopted queries begin; None if no query was adopted.
        """
        self._java = java
        self._adoptions = adoptions or Adoptions()
        self._root = root
        self._generation = generation
        self._workspace = workspace
        self._changelogs = changelogs
        self.enabled = enabled
        self._boot = boot
        self._leftovers = leftovers
        self._waiting = dict(leftovers.runs)
        self._known = set(leftovers.known)

    @classmethod
    def begin(
        cls,
        base: Path,
        changelogs: Path,
        *,
        root: str,
        generation: int,
        workspace: Path,
        point: RestorePoint | None,
        enabled: bool,
        resume: bool,
        java: int,
        adoptions: Adoptions | None = None,
    ) -> LocalRecovery:
        """Look for what the life before has left, and delete it if this one may not resume it.

        Args:
            base: where coordinators have their directories.
            changelogs, root, generation, workspace, enabled, java, adoptions: as for the constructor.
            point: the checkpoint that this life restores.
            resume: whether it may go on behind that checkpoint.
        """
        boot = boot_id()

        def refuse(record: RunRecord) -> NotResumable | None:
            if not enabled:
                return _NO_CHANGELOGS
            if not resume:
                return NotResumable("is to go on from the checkpoint that the user has chosen")
            if record.java != java and may_be_alive(record.java):
                return NotResumable(f"may still be run by the JVM {record.java}")
            return misfit(record, generation=generation, point=point, boot=boot)

        def grew(record: RunRecord) -> bool:
            begins_anew = point is None and not resume
            return not begins_anew and grew_from(record, point)

        return cls(
            root=root,
            generation=generation,
            workspace=workspace,
            changelogs=changelogs,
            enabled=enabled,
            boot=boot,
            leftovers=find_leftovers(base, changelogs, refuse, root, grew, workspace),
            java=java,
            adoptions=adoptions,
        )

    # --- what a killed driver has left ----------------------------------------------------------------------

    def leftover(self, definition: Definition, point: RestorePoint | None) -> ResumableRun | None:
        """Return the run of a killed driver that a query can resume; None if it cannot."""
        record, directory = self._waiting.get(definition.name, (None, None))
        if record is None or directory is None:
            return None
        found = self._changed(definition, record, point) or resume_point(
            self._candidate(definition, record.query_id, directory, point)
        )
        if isinstance(found, NotResumable):
            tell_refusal(definition.name, found)
            return None
        return ResumableRun(found, directory)

    def _changed(
        self, definition: Definition, record: RunRecord, point: RestorePoint | None
    ) -> NotResumable | None:
        """Return what of a query has changed since its run, None if it is the same."""
        if record.output != (output := _text(definition.sink.location)):
            return NotResumable(f"has written to {record.output}, and is to write to {output}")
        has_checkpoint = point is not None and point.has(definition.name)
        if not has_checkpoint and record.adopted != self._adoptions.name(definition.name):
            return NotResumable("was adopted from another checkpoint of plain Spark")
        if not same_operators(record.operators, definition.operators):
            return NotResumable("has other operators, keys or states than its run had")
        return None

    def left(self, query: str) -> tuple[Path, ...]:
        """Return the working directories that say what a query has read since the checkpoint, in earlier lives."""
        return self._leftovers.read.get(query, ())

    def blocks_others(self, query: str, point: RestorePoint | None) -> bool:
        """Return whether a query that cannot resume keeps the others from resuming: it was at the same cut."""
        return bool(self._waiting) and (query in self._known or (point is not None and point.has(query)))

    def forget_leftovers(self) -> None:
        """Resume nothing of what was left: the queries that are still to come begin at the checkpoint."""
        for query in self._waiting:
            tell_refusal(query, NotResumable("stood at one cut with a query that goes back"))
        self._waiting.clear()

    # --- what a killed state host has left ------------------------------------------------------------------

    def resumable(self, runs: Iterable[WorkingRun], point: RestorePoint | None) -> dict[str, ResumableRun]:
        """Return by query the run that it resumes after a state host was killed; none if one query cannot."""
        by_query = {run.definition.name: run for run in runs}
        if not self.enabled:
            for query in by_query:
                tell_refusal(query, _NO_CHANGELOGS)
            return {}
        found = resume_points(
            {
                query: attrs.evolve(
                    self._candidate(run.definition, run.query_id, run.directory, point),
                    resumed_at=run.resumed.point.batch if run.resumed else None,
                )
                for query, run in by_query.items()
            }
        )
        resumed = {}
        for query, where in found.items():
            if isinstance(where, ResumePoint):
                resumed[query] = ResumableRun(where, by_query[query].directory)
            else:
                tell_refusal(query, where)
        return resumed

    # --- records and changelogs of this life ----------------------------------------------------------------

    def record(self, run: WorkingRun, round: int, point: RestorePoint | None) -> None:
        """Write the record of a run that is about to begin, and let its shards have changelogs."""
        if not self.enabled:
            return
        self._known.add(run.definition.name)
        try:
            admit(self._changelogs, run.query_id, self._workspace)
            RunRecord(
                root=self._root,
                generation=self._generation,
                round=round,
                base=base_of(point),
                boot=self._boot,
                query=run.definition.name,
                query_id=run.query_id,
                operators=run.definition.operators,
                output=_text(run.definition.sink.location),
                known=tuple(sorted(self._known)),
                java=self._java,
                adopted=self._adoptions.name(run.definition.name),
            ).write(run.directory.parent)
        except (OSError, UnsafeDirectoryError) as error:
            log.warning("no later life can resume this run", query=run.definition.name, error=str(error))

    def erase_records(self, runs: Iterable[WorkingRun]) -> None:
        """Let no later life resume runs: what their sinks hold is about to be put back."""
        for run in runs:
            erase_record(run.directory)

    def delete_changelogs(self, query_ids: Iterable[str]) -> None:
        """Delete the changelogs of runs that nobody resumes any more."""
        for query_id in query_ids:
            remove(self._changelogs, query_id)

    def close(self) -> None:
        """Delete what the life before has left."""
        self.delete_changelogs(record.query_id for record, _ in self._leftovers.runs.values())
        for place, lock in self._leftovers.places:
            remove_owned(place, ALIVE)
            lock.release()

    def _candidate(
        self, definition: Definition, query_id: str, directory: Path, point: RestorePoint | None
    ) -> Candidate:
        """Look at what the disk has of a run; Spark is not running in its directory."""
        base = self._adoptions.base(definition.name, point)
        restored = base.batch(definition.name) if base else NO_BATCH
        committed = newest_committed(directory)
        obstacle = definition.sink.obstacle(directory, restored, committed)
        shards = [(one.uid, number) for one in definition.operators for number in range(len(one.shards))]
        for uid, number in shards if obstacle is None else ():
            if found := gap(shard_folder(self._changelogs, query_id, uid, number), restored, committed):
                obstacle = NotResumable(f"has a shard, {number} of operator {uid!r}, that {found.why}")
                break
        return Candidate(query_id, restored, committed, obstacle)


def _text(location: Path | None) -> str | None:
    return None if location is None else str(location)
