"""Transactional sinks against whatever can happen to them: targets, drivers and stores that fail at any moment.

The sinks of a query (``TransactionalSink``, its ``EpochLog``, ``Publisher`` and records on disk), the protocol
(``CheckpointStateMachine``), the commit of a manifest, the steps back, the catalog with its fencing, retention and
deletion are the real ones. Around them is a small model that takes one step when it is told to: Spark's batches of one
query, the threads of the driver, and two targets, each of which is atomic but may be away, lose its answer, or do what
it was asked after its caller has given up.

A row is a record of the input and the attempt that wrote it. A checkpoint keeps the rows that it contains. So what a
reader may see is known: whole epochs, in order, of the rows of the newest complete checkpoint, and no others.
"""

from __future__ import annotations

import contextlib
import hashlib
import itertools
import json
import logging
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, ClassVar

import attrs
import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule, run_state_machine_as_test

from chandy.coordinator.connectors.files.rewinds import Rewinds
from chandy.coordinator.errors import CheckpointError
from chandy.coordinator.execution.dispatch import Dispatcher
from chandy.coordinator.protocol import events as on
from chandy.coordinator.protocol import instructions as do
from chandy.coordinator.protocol.checkpoints import Checkpoints
from chandy.coordinator.protocol.pending import PendingCheckpoint
from chandy.coordinator.protocol.reasons import Reason
from chandy.coordinator.recovery import rollback
from chandy.coordinator.restore import resume
from chandy.coordinator.restore.restore_point import RestorePoint, base_point, choose
from chandy.coordinator.restore.run_record import base_of
from chandy.coordinator.sinks.owner import SinkOwner
from chandy.coordinator.sinks.sink import StartPoint
from chandy.coordinator.sinks.two_phase import epochs, query_sink, staged, staging, takeover
from chandy.coordinator.sinks.two_phase.contract import (
    Committer,
    Epoch,
    Fence,
    Position,
    Staged,
    TwoPhaseSink,
    WriteContext,
)
from chandy.coordinator.sinks.two_phase.epochs import ClosedEpoch, EpochLog
from chandy.coordinator.sinks.two_phase.errors import (
    BatchInterruptedError,
    OutputAheadError,
    OutputLostError,
    RewindError,
    TargetUnavailableError,
)
from chandy.coordinator.sinks.two_phase.publisher import Publisher
from chandy.coordinator.sinks.two_phase.query_sink import TransactionalSink
from chandy.coordinator.sinks.two_phase.staged import StagedRows, StagedSink
from chandy.coordinator.spark.seeding import seed
from chandy.state.shards import ResumePoint
from chandy.storage.checkpoints import collect, locate
from chandy.storage.checkpoints.catalog import Catalog
from chandy.storage.checkpoints.layout import MANIFEST
from chandy.storage.checkpoints.manifest import (
    ChannelRecord,
    CheckpointKind,
    FileRef,
    Manifest,
    OutputRecord,
)
from chandy.storage.checkpoints.proof import Unshared
from chandy.storage.checkpoints.savepoint import read_savepoint
from chandy.storage.errors import ChandyError, FencedError
from chandy.storage.store import Store

from ....effort import always_kept, sampled, until_found
from ....mutation import mutate
from ....troubled_store import TROUBLES, TroubledStore
from ...limits import limits_of
from ...stepped_executor import SteppedExecutor, SteppedRollback
from ...strict_machine import StrictStateMachine
from .stepped_publisher import SteppedPublisher

STEPS = 40
ROOT = "memory://pipeline"
QUERY = "copy"
SINKS = ("a", "b")
LIMITS = limits_of(
    interval="10 s",
    initial_delay=10.0,
    retained=2,
    max_concurrent=3,
    tolerable_failures=10**6,
    timeout="30 s",
    savepoint_timeout="60 s",
    max_queued=20,
    max_unpublished=2,
)
Row = tuple[int, int]
"""A record of the input, and the attempt at a batch that wrote it."""

_unique = itertools.count(1)


# --- targets ------------------------------------------------------------------------------------------------


@attrs.frozen
class Published:
    """An epoch that a reader of a target sees."""

    epoch: int
    rows: tuple[Row, ...]
    identity: str


@attrs.define(eq=False)
class Target:
    """A database: an epoch and its writer's position appear together, or not at all."""

    can_rewind: bool
    epochs: list[Published] = attrs.field(factory=list)
    removed: list[Published] = attrs.field(factory=list)
    """What was taken back, until something else is published."""
    position: Position | None = None
    away: int = 0
    """How many calls find it away."""
    answers_lost: int = 0
    """How many commits are done without their callers hearing of it."""
    delayed: int = 0
    """How many commits are done later, if at all, and their callers do not hear of it."""
    crashes: str = ""
    """The driver dies at the next commit: "before" or "after" it is done."""
    on_its_way: list[tuple[Fence, Published]] = attrs.field(factory=list)
    lands: bool = False
    """Whether what is on its way lands when another connection is made; after that it cannot."""
    version: int = 0
    rewinds: Rewinds = attrs.field(factory=Rewinds)

    @property
    def rows(self) -> list[Row]:
        return [row for epoch in self.epochs for row in epoch.rows]

    def reach(self) -> None:
        if self.away:
            self.away -= 1
            raise TargetUnavailableError("the target", "it is away", is_understood=True)

    def recover(self, fence: Fence) -> int | None:
        self.reach()
        if self.lands:
            self.land()
        self.on_its_way.clear()
        self.position = self.position.taken_by(fence) if self.position else Position.first(fence)
        return self.position.epoch

    def commit(self, fence: Fence, epoch: Published) -> None:
        self.reach()
        if self.crashes == "before":
            raise DriverKilled
        if self.delayed:
            self.delayed -= 1
            self.on_its_way.append((fence, epoch))
            raise TargetUnavailableError("the target", "it has not answered", is_understood=True)
        self.put(fence, epoch)
        if self.crashes == "after":
            raise DriverKilled
        if self.answers_lost:
            self.answers_lost -= 1
            raise TargetUnavailableError("the target", "it has not answered", is_understood=True)

    def put(self, fence: Fence, epoch: Published) -> None:
        assert self.position is not None, "nobody publishes without having connected"
        self.position = attrs.evolve(self.position.taken_by(fence), epoch=epoch.epoch)
        self.epochs.append(epoch)
        self.removed.clear()
        self.version += 1

    def land(self) -> None:
        while self.on_its_way:
            fence, epoch = self.on_its_way.pop(0)
            with contextlib.suppress(FencedError):
                self.put(fence, epoch)

    def check_rewind(self, to: int | None) -> None:
        assert self.position is not None
        if not self.can_rewind or not self.rewinds.can_go_back(to, {one.epoch for one in self.epochs}):
            raise RewindError(self.position.epoch, to)

    def rewind(self, to: int | None) -> int | None:
        self.check_rewind(to)
        assert self.position is not None
        if self.position.epoch is not None:
            self.rewinds = self.rewinds.rewound(to, self.position.epoch)
        gone = [one for one in self.epochs if to is None or one.epoch > to]
        self.epochs, self.removed = [one for one in self.epochs if one not in gone], gone + self.removed
        self.position = attrs.evolve(self.position, epoch=to)
        self.version += 1
        return to

    def brought_back(self, to: int) -> Rewinds:
        assert self.position is not None
        has = {one.epoch for one in self.removed}
        found = self.rewinds.restored_to(self.position.epoch, to, has) if self.can_rewind else None
        if found is None:
            raise RewindError(self.position.epoch, to)
        return found

    def bring_back(self, to: int) -> int:
        self.rewinds = self.brought_back(to)
        again = [one for one in self.removed if one.epoch <= to]
        self.epochs, self.removed = self.epochs + again, [one for one in self.removed if one not in again]
        assert self.position is not None
        self.position = attrs.evolve(self.position, epoch=to)
        self.version += 1
        return to

    def recognised(self, epochs: Sequence[Epoch]) -> list[int]:
        if not self.can_rewind:
            return []
        assert self.position is not None
        there = self.epochs + (self.removed if self.rewinds.is_last(self.position.epoch) else [])
        has = {(one.epoch, one.identity) for one in there}
        return [one.id for one in epochs if (one.id, one.identity) in has]


class DriverKilled(BaseException):
    """The driver dies in the middle of what it does."""


@attrs.frozen(eq=False)
class ModelSink(StagedSink):
    """Stages rows as JSON, and publishes them in a target of the model."""

    target: ClassVar[str] = "a model"
    place: Target
    uid: str

    def write(self, batches: Iterator[Any], context: WriteContext) -> Staged:
        rows = [row for batch in batches for row in batch]
        if not rows:
            return Staged(0)
        data = json.dumps(rows).encode()
        key = f"{context.folder}{context.batch}-{context.partition}-{next(_unique)}"
        world().open(context.store).write(key, data)
        return Staged(len(rows), (FileRef(key, key, len(data), hashlib.sha256(data).hexdigest()),))

    def pre_commit(self, epoch: int, staged: Iterable[Staged]) -> str:
        return f"{self.uid} {epoch} {sum(one.rows for one in staged)}"

    def recover(self, fence: Fence) -> ModelCommitter:
        return ModelCommitter(self, fence, self.place.recover(fence))


@attrs.define(eq=False)
class ModelCommitter(Committer):
    sink: ModelSink
    fence: Fence
    at: int | None
    is_open: bool = True

    @property
    def position(self) -> int | None:
        return self.at

    def commit(self, epoch: Epoch) -> None:
        if not self.is_open:
            raise TargetUnavailableError("the target", "the connection is closed", is_understood=True)
        assert self.at is None or epoch.id > self.at, "an epoch comes out of order"
        files = StagedRows(epoch).files()
        rows = tuple((record, attempt) for data in files for record, attempt in json.loads(data))
        assert epoch.record.note == f"{self.sink.uid} {epoch.id} {len(rows)}", "the note is another epoch's"
        world().meanwhile()
        try:
            self.sink.place.commit(self.fence, Published(epoch.id, rows, epoch.identity))
        except TargetUnavailableError:
            self.is_open = False
            raise
        self.at = epoch.id

    def recognised(self, epochs: Sequence[Epoch]) -> list[int]:
        return self.sink.place.recognised(epochs)

    def check_rewind(self, epoch: int | None) -> None:
        self.sink.place.check_rewind(epoch)

    def rewind(self, epoch: int | None) -> None:
        self.at = self.sink.place.rewind(epoch)

    def check_bring_back(self, epoch: int) -> None:
        self.sink.place.brought_back(epoch)

    def bring_back(self, epoch: int) -> None:
        self.at = self.sink.place.bring_back(epoch)

    def close(self) -> None:
        self.is_open = False


# --- the driver ---------------------------------------------------------------------------------------------


@attrs.define
class Run:
    """One life of the query under Spark, with its working directory."""

    query_id: str
    directory: Path
    ends: dict[int, int]
    """By batch the record at which it ends: the offset log."""
    committed: int
    rows: dict[int, tuple[Row, ...]]
    """What the last attempt at each batch has written, from the query's first batch on."""
    cuts: set[int]
    """The batches after which an epoch ends."""
    resumed_at: int | None = None

    @property
    def planned(self) -> int:
        return max(self.ends)

    def content(self, cut: int) -> bytes:
        rows = [(batch, self.rows[batch]) for batch in sorted(self.rows) if batch <= cut]
        cuts = sorted(one for one in self.cuts if one <= cut)
        return json.dumps({"end": self.ends[cut], "rows": rows, "cuts": cuts}).encode()


@attrs.frozen
class Content:
    """What a checkpoint contains."""

    end: int
    rows: dict[int, tuple[Row, ...]]
    cuts: frozenset[int]

    @classmethod
    def of(cls, data: bytes) -> Content:
        found = json.loads(data)
        rows = {batch: tuple((record, attempt) for record, attempt in some) for batch, some in found["rows"]}
        return cls(found["end"], rows, frozenset(found["cuts"]))

    def shows(self, visible: list[Row]) -> bool:
        """Whether rows are those of whole epochs from the beginning on."""
        seen: list[Row] = []
        if not visible:
            return True
        for batch in sorted(self.rows):
            seen += self.rows[batch]
            if batch in self.cuts and len(seen) >= len(visible):
                return seen == visible
        return False


class Life(SteppedExecutor):
    """One life of a coordinator, with its query and that query's sinks."""

    def __init__(self, world: World, restore: str, left: Life | None, resumes: bool) -> None:
        self.world = world
        catalog = Catalog(world.open(ROOT))
        found = choose(catalog, restore)
        first = found.manifest.id + 1 if found and restore != "latest" else 1
        started = catalog.take_over("driver", world.tick(), first)
        self.initial = self.point = choose(catalog, restore)
        point, root = (self.point.manifest, self.point.root) if self.point else (None, ROOT)
        self.keep_chosen: Callable[[], None] = lambda: None
        if restore != "latest":
            self.keep_chosen = partial(catalog.amend, attrs.evolve(started, restored=restore))
        machine = StrictStateMachine(
            pipeline="pipeline",
            generation=started.generation,
            root=ROOT,
            limits=LIMITS,
            next_id=started.next_id,
            completed=tuple(catalog.completed()),
            base=point.id if point and root == ROOT else None,
        )
        super().__init__(machine, catalog)
        fence = Fence("pipeline", QUERY, "", ROOT, started.generation)
        self.sink = TransactionalSink(
            [ModelSink(world.targets[uid], uid) for uid in SINKS],
            fence,
            # It may be frozen right after any look: the targets' own fence has to hold by itself.
            Unshared(),
            max_unpublished=LIMITS.max_unpublished,
            first_epoch=started.next_id,
            on_published=lambda checkpoint: self.handle(on.Published(checkpoint, QUERY)),
            on_failure=self.fail,
        )
        self.base = base_of(self.point)
        self.run: Run | None = None
        may_resume = left is not None and resumes and restore == "latest" and left.base == self.base
        resumable = left.resumable(self.sink, self.point, leftover=True) if left and may_resume else None
        self.restore(self.point, resumable)
        self.handle(on.PipelineRestored(point.id if point else None))

    @property
    def publishers(self) -> list[SteppedPublisher]:
        return [one for one in self.sink._publishers.values() if isinstance(one, SteppedPublisher)]

    def fail(self, error: ChandyError) -> None:
        """The pipeline must fail."""
        # A successor may have deleted what it has published already.
        assert isinstance(error, FencedError) or self is not self.world.life, (
            f"a pipeline has failed: {error}"
        )
        self.is_over = True

    # --- events and instructions ----------------------------------------------------------------------------

    def tick(self) -> float:
        return self.world.tick()

    def open(self, uri: str) -> Store:
        return self.world.open(uri)

    def begun(self, query: str) -> int:
        assert self.run is not None
        return self.run.planned

    def is_committed(self, query: str, batch: int) -> bool:
        assert self.run is not None
        return self.run.committed >= batch

    def close_epoch(self, query: str, checkpoint: int, cut: int) -> None:
        assert self.run is not None
        self.sink.close_epoch(checkpoint, cut)
        self.run.cuts.add(cut)

    def pre_commit(self, query: str, checkpoint: int) -> tuple[OutputRecord, ...]:
        return self.sink.pre_commit(checkpoint)

    @contextlib.contextmanager
    def hold(self, query: str, batch: int) -> Iterator[Mapping[str, Path]]:
        run = self.run
        if run is None or batch not in run.ends:
            raise OSError("the query has gone back")
        held = self.world.folder / f"held-{next(_unique)}"
        held.write_bytes(run.content(batch))
        yield {"content": held}

    def channels(self, manifest: Manifest) -> tuple[ChannelRecord, ...]:
        # Noted before retention can delete it.
        self.world.content(manifest, self.machine.checkpoints.pending[manifest.id].root)
        return ()

    def commit(self, query: str, checkpoint: int) -> None:
        self.sink.commit(checkpoint)

    def resolve(self, order: do.Resolve) -> None:
        super().resolve(order)
        self.world.check_published(self, order.manifest)

    def quiet(self, hold: str = "") -> None:
        """Let everything that is on its way happen, but for one kind of thing."""
        while not self.is_over:
            self.notice_commits()
            if "dispatcher" in hold and self.works:
                # The threads of jobs are faster than the one that hands instructions on.
                self.work(self.works, 0)
            elif self.instructions and "instructions" not in hold:
                self.dispatch()
            elif self.works and "works" not in hold:
                self.work(self.works, 0)
            elif self.manifests and "manifests" not in hold:
                self.work(self.manifests, 0)
            else:
                break
        if "publishers" not in hold and not self.is_over:
            before = self.instructions
            for one in self.publishers:
                one.step()
            if self.instructions > before and not self.is_over:
                self.quiet(hold)

    # --- the query ------------------------------------------------------------------------------------------

    def batch(self, size: int, *, commits: bool = True) -> None:
        """Run a batch, or run the one again that has not committed."""
        run = self.run
        if run is None or self.is_over or self.sink.is_full:
            return
        if run.planned == run.committed:
            run.ends[run.planned + 1] = run.ends[run.planned] + size
        batch, attempt = run.planned, next(_unique)
        rows = tuple((record, attempt) for record in range(run.ends[batch - 1], run.ends[batch]))
        try:
            self.sink.take(rows, batch)  # type: ignore[arg-type]
        except BatchInterruptedError:
            assert self.run is not run or self.is_over
            return
        run.rows[batch] = rows
        if commits:
            run.committed = batch

    def resumable(
        self, sink: TransactionalSink, point: RestorePoint | None, *, leftover: bool = False
    ) -> tuple[Any, Run] | None:
        """As ``LocalRecovery``: where the query can go on behind a checkpoint."""
        run = self.run
        if run is None:
            return None
        restored = point.batch(QUERY) if point else -1
        candidate = resume.Candidate(
            run.query_id,
            restored=restored,
            committed=run.committed,
            obstacle=sink.obstacle(run.directory, restored, run.committed),
            resumed_at=None if leftover else run.resumed_at,
        )
        found = resume.resume_point(candidate)
        return (found, run) if isinstance(found, ResumePoint) else None

    def restore(self, point: RestorePoint | None, resumed: tuple[Any, Run] | None) -> None:
        """As ``Launcher.restore``."""
        directory = self.world.folder / str(next(_unique))
        batch = point.batch(QUERY) if point else -1
        beginning = StartPoint(
            SinkOwner(ROOT, "pipeline"),
            Unshared(),
            None,
            directory=directory,
            checkpoint=point.manifest.id if point else None,
            batch=batch,
            root=point.root if point else "",
            outputs=point.outputs(QUERY) if point else (),
            keep_chosen=self.keep_chosen,
        )
        content = self.world.content(point.manifest, point.root) if point else Content(0, {}, frozenset())
        if resumed is not None:
            where, before = resumed
            query_id = seed(before.directory, directory)
            self.sink.resume(QUERY, beginning, where.batch)
            ends, rows = dict(before.ends), dict(before.rows)
            run = Run(query_id, directory, ends, where.batch, rows, set(content.cuts), where.batch)
        else:
            query_id = f"{QUERY}-{next(_unique)}"
            self.sink.begin(QUERY, beginning)
            self.keep_chosen()
            rows, ends = dict(content.rows), {batch: content.end}
            run = Run(query_id, directory, ends, batch, rows, set(content.cuts))
        self.run = run
        self.handle(on.QueryAdded(QUERY, query_id, batch=run.committed, operators=(), sources={}))

    def go_back(self, *, resumes: bool) -> None:
        try:
            rollback.go_back(Steps(self), resume=resumes)
        except FencedError:
            self.is_over = True


@attrs.define
class Steps(SteppedRollback):
    """The steps back of one life."""

    life: Life

    def settle_manifests(self) -> None:
        life = self.life
        while life.instructions:
            life.dispatch()
        while life.manifests:
            life.work(life.manifests, 0)
        if life.is_over:
            raise FencedError(ROOT, life.machine.generation, 0, "a successor")

    def choose_restore_point(self) -> RestorePoint | None:
        life = self.life
        life.point = base_point(life.machine) or life.initial
        life.base = base_of(life.point)
        return life.point

    def find_resumable(self, point: RestorePoint | None) -> Mapping[str, Any]:
        found = self.life.resumable(self.life.sink, point)
        return {QUERY: found} if found else {}

    def queries(self) -> tuple[str, ...]:
        return (QUERY,)

    def restore(self, query: str, point: RestorePoint | None, resumed: Any) -> None:
        self.life.restore(point, resumed)


# --- the world ----------------------------------------------------------------------------------------------


class World:
    """Stores, targets, and lives of the coordinator; all lives but the newest are zombies."""

    current: ClassVar[World]
    parent: ClassVar[Path]

    def __init__(self, can_rewind: bool) -> None:
        World.current = self
        self.stores: dict[str, TroubledStore] = {}
        self.targets = {uid: Target(can_rewind) for uid in SINKS}
        self.now = 1000.0
        self.folder = Path(tempfile.mkdtemp(dir=self.parent))
        self.during: list[Callable[[], None]] = []
        """What happens while a batch is written or an epoch is committed."""
        self.chosen: Content | None = None
        """What the checkpoint or savepoint has that was last chosen."""
        self.checked: object = None
        self.contents: dict[str, Content] = {}
        self.lives: list[Life] = []
        self.begin()

    def open(self, uri: str) -> TroubledStore:
        return self.stores.setdefault(uri, TroubledStore(uri))

    def tick(self) -> float:
        self.now += 0.001
        return self.now

    def meanwhile(self) -> None:
        if self.during:
            self.during.pop()()

    @property
    def life(self) -> Life:
        return self.lives[-1]

    @property
    def savepoints(self) -> list[str]:
        return [uri for uri, store in self.stores.items() if uri != ROOT and MANIFEST in store.objects]

    def content(self, manifest: Manifest, root: str) -> Content:
        (file,) = manifest.queries[0].files.files
        key = f"{root} {file.key}"
        if key not in self.contents:
            self.contents[key] = Content.of(self.open(root).read(file.key))
        return self.contents[key]

    def begin(self, restore: str = "latest", *, zombie: bool = False, resumes: bool = True) -> bool:
        """Another coordinator takes the pipeline over; return whether it could begin.

        What the checkpoint has and readers have seen stays as it is.
        """
        before = self.lives[-1] if self.lives else None
        left = before if before is not None and not zombie else None
        if not zombie:
            self.lives.clear()
        self.lives = [life for life in self.lives if not life.is_over][-1:]
        before_that = self.chosen
        if restore != "latest" and (found := choose(Catalog(self.open(ROOT)), restore)):
            self.chosen = self.content(found.manifest, found.root)
        seen = {uid: list(target.epochs) for uid, target in self.targets.items()}
        try:
            self.lives.append(Life(self, restore, left, resumes))
        except (OutputAheadError, OutputLostError) as error:
            # Wherever the pipeline stands, it goes on from there.
            assert restore != "latest", f"a start was refused: {error}"
            self.chosen = before_that
            return False
        if point := self.life.initial:
            has = {row for rows in self.content(point.manifest, point.root).rows.values() for row in rows}
            for uid, target in self.targets.items():
                there = {id(one) for one in target.epochs}
                gone = [one for one in seen[uid] if id(one) not in there and has & set(one.rows)]
                assert not gone, f"target {uid} has taken back what checkpoint {restore} has: {gone}"
        return True

    def begin_somehow(self, restore: str, *, zombie: bool, resumes: bool) -> None:
        """Begin from what is wanted, or from what the targets have."""
        if not self.begin(restore, zombie=zombie, resumes=resumes):
            self.begin(zombie=zombie, resumes=resumes)

    # --- promises -------------------------------------------------------------------------------------------

    def check_published(self, life: Life, manifest: Manifest) -> None:
        """Whoever has asked for a checkpoint is told once all targets have its rows, or its time is over."""
        is_late = self.now >= manifest.triggered_at + life.machine.limits.timeout
        if life is not self.life or is_late or manifest.kind is CheckpointKind.SAVEPOINT:
            return
        content = self.content(manifest, ROOT)
        expected = [row for batch in sorted(content.rows) for row in content.rows[batch]]
        for uid, target in self.targets.items():
            assert target.rows[: len(expected)] == expected, f"target {uid} lacks what was said to be there"

    def check(self) -> None:
        at = [store.version for store in self.stores.values()], [t.version for t in self.targets.values()]
        if at == self.checked:
            return
        self.checked = at
        catalog = Catalog(self.open(ROOT))
        completed = catalog.completed()
        points = [(manifest, ROOT) for manifest in completed]
        points += [(read_savepoint(self.open(uri)), uri) for uri in self.savepoints]
        for manifest, root in points:
            gone = manifest.keys() - self.open(root).objects.keys()
            assert not gone, f"checkpoint {manifest.id} needs what is gone: {sorted(gone)}"
        allowed = [self.content(completed[-1], ROOT)] if completed else [Content(0, {}, frozenset())]
        if self.chosen is not None:
            allowed.append(self.chosen)
        for uid, target in self.targets.items():
            assert any(content.shows(target.rows) for content in allowed), (
                f"target {uid} shows {target.epochs}, which are no whole epochs of {allowed}"
            )


def world() -> World:
    return World.current


def write_batch(
    rows: Any, sink: TwoPhaseSink, store: str, folder: str, batch: int, attempt: object
) -> tuple[Staged, ...]:
    """As ``staging.write_batch``, with two partitions and without Spark."""
    halves = rows[: len(rows) // 2], rows[len(rows) // 2 :]
    found = [
        sink.write(iter([half]), WriteContext(store, folder, batch, number))
        for number, half in enumerate(halves)
    ]
    world().meanwhile()
    return tuple(one for one in found if one.rows or one.note)


# --- the machine --------------------------------------------------------------------------------------------

SMALL = st.integers(0, 7)
HOLD = st.sampled_from(["", "", "publishers", "dispatcher publishers", "manifests", "works", "instructions"])


class Machine(RuleBasedStateMachine):
    """Whatever can happen, in any order."""

    @initialize(can_rewind=st.booleans())
    def start(self, can_rewind: bool) -> None:
        self.world = World(can_rewind)

    def life(self, number: int) -> Life:
        """Mostly the newest life; now and then the one before it, which goes on as if nothing had happened."""
        lives = self.world.lives
        return lives[-2] if number < 2 and len(lives) > 1 else lives[-1]

    @contextlib.contextmanager
    def alive(self) -> Iterator[None]:
        """The driver may be killed in what is done inside of the ``with``."""
        try:
            yield
        except DriverKilled:
            for target in self.world.targets.values():
                target.crashes = ""
            self.begin("latest", zombie=False, resumes=True)

    def begin(self, restore: str, *, zombie: bool, resumes: bool) -> None:
        # A killed driver does nothing more, and a new one does not fail for a target that is away for a moment.
        self.world.during.clear()
        for target in self.world.targets.values():
            target.crashes = ""
        self.world.begin_somehow(restore, zombie=zombie, resumes=resumes)

    # --- batches

    @rule(which=SMALL, sizes=st.lists(st.integers(0, 3), min_size=1, max_size=3))
    def batches_run(self, which: int, sizes: list[int]) -> None:
        life = self.life(which)
        for size in sizes:
            life.batch(size)

    @rule(which=SMALL, size=st.integers(1, 3))
    def a_batch_is_written_and_does_not_commit(self, which: int, size: int) -> None:
        self.life(which).batch(size, commits=False)

    @rule(size=st.integers(1, 3), resumes=st.booleans(), chance=SMALL)
    def the_pipeline_goes_back_while_a_batch_is_written(self, size: int, resumes: bool, chance: int) -> None:
        life = self.world.life
        if chance < 6 and not life.is_over and not life.sink.is_full:
            self.world.during = [lambda: life.go_back(resumes=resumes)]
            life.batch(size)
            self.world.during.clear()

    # --- checkpoints

    @rule(which=SMALL, hold=HOLD, sizes=st.lists(st.integers(0, 3), max_size=2))
    def a_checkpoint_is_asked_for(self, which: int, hold: str, sizes: list[int]) -> None:
        life = self.life(which)
        for size in sizes:
            life.batch(size)
        life.handle(on.CheckpointRequested(CheckpointKind.MANUAL))
        with self.alive():
            life.quiet(hold)

    @rule(sizes=st.lists(st.integers(0, 2), min_size=2, max_size=4), hold=HOLD, fails=st.booleans())
    def checkpoints_overlap(self, sizes: list[int], hold: str, fails: bool) -> None:
        """Several are pending at once, and the first may fail."""
        life = self.world.life
        for size in sizes:
            life.batch(size)
            life.handle(on.CheckpointRequested(CheckpointKind.MANUAL))
            with self.alive():
                life.quiet("manifests publishers")
            if life is not self.world.life:
                return
        if fails and life.machine.checkpoints.pending:
            oldest = min(life.machine.checkpoints.pending)
            life.handle(on.InstructionFailed(oldest, Reason.IO_EXCEPTION, "disk full"))
        with self.alive():
            life.quiet(hold)

    @rule(hold=HOLD, chance=SMALL)
    def a_savepoint_is_asked_for(self, hold: str, chance: int) -> None:
        life = self.world.life
        if chance < 5:
            target = f"memory://savepoint/{next(_unique)}"
            life.handle(on.CheckpointRequested(CheckpointKind.SAVEPOINT, target))
            with self.alive():
                life.quiet(hold)

    @rule(which=SMALL, what=st.sampled_from(["instructions", "works", "manifests"]), steps=st.integers(1, 4))
    def the_driver_works(self, which: int, what: str, steps: int) -> None:
        life = self.life(which)
        for _ in range(steps):
            if life.is_over:
                return
            if what == "instructions":
                life.dispatch()
            elif works := (life.works if what == "works" else life.manifests):
                life.work(works, which)

    @rule(which=SMALL, number=st.integers(0, 1), meanwhile=HOLD, busy=st.booleans())
    def a_publisher_works(self, which: int, number: int, meanwhile: str, busy: bool) -> None:
        """While it commits, the driver may go on."""
        life = self.life(which)
        if life.is_over:
            return
        if busy:
            self.world.during = [lambda: life.quiet(meanwhile), lambda: life.batch(1)]
        with self.alive():
            life.publishers[number].step()
        self.world.during.clear()

    @rule(which=SMALL, hold=HOLD)
    def everything_happens(self, which: int, hold: str) -> None:
        with self.alive():
            self.life(which).quiet(hold)

    @rule(seconds=st.sampled_from([1.0, 11.0, 31.0, 61.0]))
    def time_passes(self, seconds: float) -> None:
        self.world.now += seconds
        for life in self.world.lives:
            if not life.is_over:
                life.handle(on.Tick())

    # --- failures

    @rule(number=st.integers(0, 1), calls=st.integers(1, 3))
    def a_target_goes_away(self, number: int, calls: int) -> None:
        self.world.targets[SINKS[number]].away = calls

    @rule(number=st.integers(0, 1), sizes=st.lists(st.integers(0, 2), max_size=2))
    def a_target_loses_its_answer(self, number: int, sizes: list[int]) -> None:
        self.world.targets[SINKS[number]].answers_lost = 1
        self.a_checkpoint_is_asked_for(7, "", sizes)

    @rule(number=st.integers(0, 1), size=st.integers(1, 3), lands=st.booleans(), asked=st.booleans())
    def a_target_is_late(self, number: int, size: int, lands: bool, asked: bool) -> None:
        target = self.world.targets[SINKS[number]]
        target.delayed, target.lands = 1, lands
        if asked:
            self.a_checkpoint_is_asked_for(7, "", [size])

    @rule(number=st.integers(0, 1))
    def what_was_late_lands(self, number: int) -> None:
        self.world.targets[SINKS[number]].land()

    @rule(trouble=st.sampled_from(TROUBLES))
    def the_store_fails_at_the_next_manifest(self, trouble: str) -> None:
        self.world.open(ROOT).trouble = trouble

    @rule(resumes=st.booleans(), hold=HOLD, chance=SMALL)
    def the_pipeline_goes_back(self, resumes: bool, hold: str, chance: int) -> None:
        life = self.world.life
        if chance < 6 and not life.is_over:
            with self.alive():
                life.quiet(hold)
            if life is self.world.life and not life.is_over:
                life.go_back(resumes=resumes)

    @rule(number=st.integers(0, 1), when=st.sampled_from(["before", "after"]), size=st.integers(1, 3))
    def the_driver_is_killed_while_it_publishes(self, number: int, when: str, size: int) -> None:
        self.world.targets[SINKS[number]].crashes = when
        self.a_checkpoint_is_asked_for(7, "", [size])

    @rule(resumes=st.booleans(), hold=HOLD, chance=SMALL)
    def the_driver_is_killed(self, resumes: bool, hold: str, chance: int) -> None:
        if chance < 5:
            with self.alive():
                self.world.life.quiet(hold)
            self.begin("latest", zombie=False, resumes=resumes)

    @rule(size=st.integers(0, 3), hold=HOLD, goes_on=st.booleans(), chance=SMALL)
    def another_coordinator_takes_over(self, size: int, hold: str, goes_on: bool, chance: int) -> None:
        if chance > 4:
            return
        zombie = self.world.life
        with self.alive():
            zombie.batch(size)
            zombie.handle(on.CheckpointRequested(CheckpointKind.MANUAL))
            zombie.quiet(hold)
        if zombie is self.world.life:
            self.begin("latest", zombie=True, resumes=False)
            if goes_on:
                zombie.quiet()

    @rule(number=SMALL, zombie=st.booleans(), chance=SMALL)
    def a_savepoint_is_restored(self, number: int, zombie: bool, chance: int) -> None:
        found = self.world.savepoints
        if found and chance < 5:
            self.begin(found[number % len(found)], zombie=zombie, resumes=False)

    @rule(number=SMALL, dies=st.booleans(), chance=SMALL)
    def an_older_checkpoint_is_restored(self, number: int, dies: bool, chance: int) -> None:
        """The driver may die before it has a checkpoint of its own."""
        ids = [manifest.id for manifest in Catalog(self.world.open(ROOT)).completed()]
        if ids and chance < 3:
            self.begin(str(ids[number % len(ids)]), zombie=False, resumes=False)
            if dies:
                self.begin("latest", zombie=False, resumes=False)

    # --- promises

    @invariant()
    def the_promises_are_kept(self) -> None:
        self.world.check()

    def teardown(self) -> None:
        """Whatever has happened, the next checkpoint completes, and then each row is seen once."""
        if not hasattr(self, "world"):
            return
        world = self.world
        world.open(ROOT).trouble = None
        world.open(ROOT).land()
        world.during.clear()
        for target in world.targets.values():
            target.away = target.answers_lost = target.delayed = 0
            target.crashes = ""
            target.land()
        world.check()
        if world.life.is_over:
            self.begin("latest", zombie=False, resumes=True)
        life = world.life
        for _ in range(4):
            life.quiet()
            world.now += 100.0
            life.handle(on.Tick())
        life.quiet()
        life.batch(2)
        outcome = self.outcome(life)
        while isinstance(outcome, CheckpointError) and outcome.reason is Reason.IO_EXCEPTION:
            # A zombie had used the id already; it does nothing more.
            outcome = self.outcome(life)
        assert isinstance(outcome, Manifest), outcome
        world.check()
        content = world.content(outcome, ROOT)
        rows = [row for batch in sorted(content.rows) for row in content.rows[batch]]
        assert [record for record, _ in rows] == list(range(content.end)), "the model is wrong"
        for uid, target in world.targets.items():
            assert target.rows == rows, f"target {uid} does not show what the last checkpoint has"

    @staticmethod
    def outcome(life: Life) -> Manifest | CheckpointError:
        request = life.handle(on.CheckpointRequested(CheckpointKind.MANUAL))
        life.quiet()
        assert request in life.outcomes, "a request has no answer although nothing is in its way"
        return life.outcomes[request]


@pytest.fixture(autouse=True)
def without_spark(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    # What targets and stores refuse is told so often that it would cost more than the rest.
    monkeypatch.setattr(logging.root.manager, "disable", logging.CRITICAL)
    monkeypatch.setattr(World, "parent", tmp_path, raising=False)
    monkeypatch.setattr(query_sink, "Publisher", SteppedPublisher)
    monkeypatch.setattr(query_sink, "open_store", lambda uri: world().open(uri))
    monkeypatch.setattr(staged, "open_store", lambda uri: world().open(uri))
    monkeypatch.setattr(locate, "open_store", lambda uri: world().open(uri))
    monkeypatch.setattr(staging, "write_batch", write_batch)


def test_every_row_is_seen_once_whatever_happens() -> None:
    run_state_machine_as_test(Machine, settings=always_kept(20, STEPS))


# --- does it find anything? ---------------------------------------------------------------------------------


def publish_before_the_manifest_is_durable(patch: pytest.MonkeyPatch) -> None:
    right = Checkpoints._finish_if_complete

    def finish(checkpoints: Checkpoints, pending: PendingCheckpoint, now: float) -> None:
        before = len(checkpoints._out)
        right(checkpoints, pending, now)
        if len(checkpoints._out) > before and not pending.is_savepoint:
            checkpoints._out.append(do.Publish(pending.id, (QUERY,)))

    patch.setattr(Checkpoints, "_finish_if_complete", finish)


def publish_a_savepoint(patch: pytest.MonkeyPatch) -> None:
    right = Checkpoints.finalized

    def finalized(checkpoints: Checkpoints, manifest: Manifest, now: float) -> None:
        right(checkpoints, manifest, now)
        if manifest.kind is CheckpointKind.SAVEPOINT:
            checkpoints._out.append(do.Publish(manifest.id, (QUERY,)))

    patch.setattr(Checkpoints, "finalized", finalized)


def publish_what_was_undone(patch: pytest.MonkeyPatch) -> None:
    """The log of epochs does not go back with the query."""
    patch.setattr(EpochLog, "go_back", lambda log, checkpoint: [])


def add_up_what_the_attempts_at_a_batch_have_written(patch: pytest.MonkeyPatch) -> None:
    def stage(log: EpochLog, batch: int, staged: tuple[Staged, ...]) -> tuple[Staged, ...]:
        log._open[batch] = (*log._open.get(batch, ()), *staged)
        return ()

    patch.setattr(EpochLog, "stage", stage)


def close_what_has_not_committed(patch: pytest.MonkeyPatch) -> None:
    """An epoch has all that is staged, also of a batch behind the cut."""
    right = EpochLog.close
    patch.setattr(EpochLog, "close", lambda log, checkpoint, cut: right(log, checkpoint, 10**9))


def lose_the_epochs_of_checkpoints_that_failed(patch: pytest.MonkeyPatch) -> None:
    right = EpochLog.unpublished

    def unpublished(log: EpochLog, sink: str, checkpoint: int) -> list[ClosedEpoch]:
        return [one for one in right(log, sink, checkpoint) if one.id == checkpoint]

    patch.setattr(EpochLog, "unpublished", unpublished)


def close_an_epoch_after_its_job_has_begun(patch: pytest.MonkeyPatch) -> None:
    close = "self._progress.close_epoch(instruction.query, instruction.checkpoint, instruction.cut)"
    submit = "submit(JobLane.IO, instruction.root, Job(jobs.store_progress, instruction))"
    between = "\n            yield None\n            "
    mutate(patch, Dispatcher, "hand_on", f"{close}{between}{submit}", f"{submit}{between}{close}")


def publish_the_newest_epoch_first(patch: pytest.MonkeyPatch) -> None:
    right = EpochLog.unpublished
    patch.setattr(EpochLog, "unpublished", lambda log, *which: right(log, *which)[::-1])


def take_one_sink_for_all(patch: pytest.MonkeyPatch) -> None:
    """An epoch is done when the first of the sinks has published it."""

    def published(log: EpochLog, sink: str, epoch: int | None) -> None:
        log._published[sink] = epoch
        log._closed = [one for one in log._closed if epoch is None or one.id > epoch]

    patch.setattr(EpochLog, "published", published)


def take_a_lost_answer_for_a_yes(patch: pytest.MonkeyPatch) -> None:
    right = Publisher._patiently

    def patiently(publisher: Publisher, act: Callable[[Committer], Any], seconds: float | None) -> Any:
        if seconds is not None:
            return right(publisher, act, seconds)
        try:
            return act(publisher._connected())
        except TargetUnavailableError:
            publisher._disconnect()
            return True

    patch.setattr(Publisher, "_patiently", patiently)


def take_the_position_from_memory(patch: pytest.MonkeyPatch) -> None:
    """A new connection goes on where the driver believes that the target is."""
    right = Publisher._connected

    def connected(publisher: Publisher) -> Committer:
        is_new = publisher._committer is None
        committer = right(publisher)
        if is_new and publisher._known is not None and isinstance(committer, ModelCommitter):
            committer.at = publisher._known
        return committer

    patch.setattr(Publisher, "_connected", connected)


def let_an_earlier_life_publish(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Position, "taken_by", lambda position, fence: position)


def resume_without_what_was_staged(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(
        TransactionalSink, "resume", lambda sink, query, beginning, last: sink.begin(query, beginning)
    )


def resume_although_a_record_is_missing(patch: pytest.MonkeyPatch) -> None:
    """A checkpoint drops the records of all batches, also of those behind its cut."""
    right = staging.read_records

    def read(directory: Path, after: int, last: int) -> dict[int, tuple[Staged, ...]]:
        found = {batch: right(directory, batch - 1, batch) for batch in range(after + 1, last + 1)}
        return {batch: one[batch] for batch, one in found.items() if one}

    drop = staging.drop_records
    patch.setattr(staging, "read_records", read)
    patch.setattr(staging, "drop_records", lambda directory, up_to: drop(directory, 10**9))


def delete_what_a_manifest_may_name(patch: pytest.MonkeyPatch) -> None:
    """Going back deletes the rows of closed epochs, too."""
    right = EpochLog.go_back

    def go_back(log: EpochLog, checkpoint: int | None) -> list[Staged]:
        after = [one for one in log._closed if checkpoint is None or one.id > checkpoint]
        return [*right(log, checkpoint), *(part for one in after for part in one.staged)]

    patch.setattr(EpochLog, "go_back", go_back)


def delete_what_others_have_to_publish(patch: pytest.MonkeyPatch) -> None:
    """Retention does not know that a later checkpoint has the rows of an earlier one to publish, too."""
    right = collect.deletable
    patch.setattr(collect, "deletable", lambda dropped, kept: right(dropped, ()))


def believe_a_position_that_the_checkpoint_does_not_have(patch: pytest.MonkeyPatch) -> None:
    """Rows that went another way since a savepoint are taken for those of the checkpoint."""

    def where(
        record: OutputRecord | None, checkpoint: int | None, position: int | None, *_: object
    ) -> epochs.EpochsToPublish | epochs.Ahead | epochs.LostOutput:
        if position is not None and (checkpoint is None or position > checkpoint):
            return epochs.Ahead(position, checkpoint)
        left = record.epochs if record else ()
        return epochs.EpochsToPublish(tuple(one for one in left if position is None or one.id > position))

    patch.setattr(takeover, "where_to_begin", where)


def begin_behind_what_is_published(patch: pytest.MonkeyPatch) -> None:
    """What a target has from after the checkpoint is not looked at."""
    right = epochs.where_to_begin

    def where(*given: Any) -> epochs.EpochsToPublish | epochs.Ahead | epochs.LostOutput:
        found = right(*given)
        return epochs.EpochsToPublish(()) if isinstance(found, epochs.Ahead) else found

    patch.setattr(takeover, "where_to_begin", where)


BUGS = [
    publish_before_the_manifest_is_durable,
    add_up_what_the_attempts_at_a_batch_have_written,
    lose_the_epochs_of_checkpoints_that_failed,
    publish_the_newest_epoch_first,
    take_one_sink_for_all,
    take_a_lost_answer_for_a_yes,
    take_the_position_from_memory,
    let_an_earlier_life_publish,
    delete_what_others_have_to_publish,
]


@pytest.mark.parametrize("bug", sampled(BUGS, 4), ids=lambda bug: bug.__name__)
def test_the_machine_finds(
    bug: Callable[[pytest.MonkeyPatch], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    bug(monkeypatch)
    with pytest.raises(AssertionError):
        run_state_machine_as_test(Machine, settings=until_found(STEPS))


# --- bugs that random schedules seldom meet: each has a schedule of its own ----------------------------------


def a_savepoint_alone(machine: Machine) -> None:
    machine.batches_run(NEWEST, [2])
    machine.a_savepoint_is_asked_for("", 0)


def a_checkpoint_fails_and_the_pipeline_goes_back(machine: Machine) -> None:
    machine.a_checkpoint_is_asked_for(NEWEST, "", [1])
    machine.the_store_fails_at_the_next_manifest("refused")
    machine.a_checkpoint_is_asked_for(NEWEST, "", [2])
    machine.the_pipeline_goes_back(False, "", 0)
    machine.a_checkpoint_is_asked_for(NEWEST, "", [2])


def a_batch_runs_between_the_cut_and_its_epoch(machine: Machine) -> None:
    machine.a_batch_is_written_and_does_not_commit(NEWEST, 1)
    machine.a_checkpoint_is_asked_for(NEWEST, "", [])
    # The first of these batches is the one at the cut.
    machine.batches_run(NEWEST, [0, 2])
    machine.everything_happens(NEWEST, "")


def a_query_resumes_behind_a_batch(machine: Machine) -> None:
    machine.a_checkpoint_is_asked_for(NEWEST, "", [1])
    machine.batches_run(NEWEST, [2])
    machine.the_pipeline_goes_back(True, "", 0)
    machine.a_checkpoint_is_asked_for(NEWEST, "", [1])


def a_query_resumes_behind_a_batch_that_ran_during_a_checkpoint(machine: Machine) -> None:
    machine.a_checkpoint_is_asked_for(NEWEST, "manifests", [1])
    machine.batches_run(NEWEST, [2])
    machine.everything_happens(NEWEST, "")
    machine.the_pipeline_goes_back(True, "", 0)
    machine.a_checkpoint_is_asked_for(NEWEST, "", [1])


def a_manifest_is_there_and_nobody_knows(machine: Machine) -> None:
    machine.a_checkpoint_is_asked_for(NEWEST, "", [1])
    machine.the_store_fails_at_the_next_manifest("broken, there")
    machine.a_checkpoint_is_asked_for(NEWEST, "manifests", [2])
    machine.the_driver_works(NEWEST, "manifests", 4)
    machine.the_pipeline_goes_back(False, "manifests", 0)


def a_savepoint_is_published_beside_a_checkpoint_of_other_rows(machine: Machine) -> None:
    machine.a_checkpoint_is_asked_for(NEWEST, "", [1])
    machine.batches_run(NEWEST, [2])
    machine.a_savepoint_is_asked_for("", 0)
    machine.the_pipeline_goes_back(False, "", 0)
    for number in range(len(SINKS)):
        machine.a_target_goes_away(number, 1000)
    machine.a_checkpoint_is_asked_for(NEWEST, "", [2, 1])
    for number in range(len(SINKS)):
        machine.a_target_goes_away(number, 0)
    machine.a_savepoint_is_restored(0, False, 0)
    machine.an_older_checkpoint_is_restored(1, False, 0)


def jobs_are_faster_than_the_dispatcher_and_the_driver_is_killed(machine: Machine) -> None:
    machine.a_checkpoint_is_asked_for(NEWEST, "dispatcher publishers", [2])
    machine.the_driver_is_killed(False, "publishers", 0)


def an_older_savepoint_is_restored(machine: Machine) -> None:
    machine.batches_run(NEWEST, [2])
    machine.a_savepoint_is_asked_for("", 0)
    machine.a_checkpoint_is_asked_for(NEWEST, "", [2])
    machine.a_savepoint_is_restored(0, False, 0)
    machine.a_checkpoint_is_asked_for(NEWEST, "", [1])


NEWEST = 7
"""Lets the newest life do what a rule says."""
RARE: list[tuple[Callable[[pytest.MonkeyPatch], None], Callable[[Machine], None]]] = [
    (publish_a_savepoint, a_savepoint_alone),
    (publish_what_was_undone, a_checkpoint_fails_and_the_pipeline_goes_back),
    (close_what_has_not_committed, a_batch_runs_between_the_cut_and_its_epoch),
    (resume_without_what_was_staged, a_query_resumes_behind_a_batch),
    (
        resume_although_a_record_is_missing,
        a_query_resumes_behind_a_batch_that_ran_during_a_checkpoint,
    ),
    (delete_what_a_manifest_may_name, a_manifest_is_there_and_nobody_knows),
    (
        believe_a_position_that_the_checkpoint_does_not_have,
        a_savepoint_is_published_beside_a_checkpoint_of_other_rows,
    ),
    (begin_behind_what_is_published, an_older_savepoint_is_restored),
    (close_an_epoch_after_its_job_has_begun, jobs_are_faster_than_the_dispatcher_and_the_driver_is_killed),
]


@pytest.mark.parametrize("schedule", [schedule for _, schedule in RARE], ids=lambda one: one.__name__)
def test_a_schedule_keeps_the_promises(schedule: Callable[[Machine], None]) -> None:
    run_schedule(schedule)


@pytest.mark.parametrize(("bug", "schedule"), RARE, ids=lambda one: one.__name__)
def test_a_schedule_finds(
    bug: Callable[[pytest.MonkeyPatch], None],
    schedule: Callable[[Machine], None],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    bug(monkeypatch)
    with pytest.raises(AssertionError):
        run_schedule(schedule)


def run_schedule(schedule: Callable[[Machine], None]) -> None:
    """Take the steps of a schedule on targets that take nothing back."""
    machine = Machine()
    machine.start(can_rewind=False)
    schedule(machine)
    machine.the_promises_are_kept()
    machine.teardown()
