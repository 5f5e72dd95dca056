"""Targets of transactional sinks: each is atomic, may be away, lose its answer, or act when nobody waits for it."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar, Final

import attrs
import pytest
from typing_extensions import override

from chandy.coordinator.connectors.files.rewinds import Rewinds
from chandy.coordinator.protocol import events
from chandy.coordinator.sinks.two_phase import query_sink, staged, staging, takeover
from chandy.coordinator.sinks.two_phase.contract import (
    Committer,
    Epoch,
    Fence,
    Position,
    Staged,
    TwoPhaseSink,
    WriteContext,
)
from chandy.coordinator.sinks.two_phase.errors import RewindError, TargetUnavailableError
from chandy.coordinator.sinks.two_phase.query_sink import TransactionalSink
from chandy.coordinator.sinks.two_phase.staged import StagedRows, StagedSink
from chandy.storage import runtime
from chandy.storage.checkpoints import locate
from chandy.storage.checkpoints.layout import manifest_key
from chandy.storage.checkpoints.manifest import FileRef
from chandy.storage.errors import FencedError
from chandy.storage.ids import CheckpointId

from .scheduler import Scheduler

if TYPE_CHECKING:
    from .driver import Driver
    from .world import World

QUERY: Final = "totals"
"""The query whose rows are published."""
NAMES: Final = ("x", "y")
"""Of its targets."""


@attrs.frozen
class Published:
    """An epoch that a reader sees."""

    epoch: int
    rows: tuple[int, ...]
    """Records of the input."""
    identity: str


@attrs.define(eq=False)
class Target:
    """A database: an epoch and its writer's position appear together, or not at all."""

    world: World = attrs.field(repr=False)
    name: str
    can_rewind: bool
    epochs: list[Published] = attrs.field(factory=list)
    removed: list[Published] = attrs.field(factory=list)
    """What was taken back, until something else is published."""
    position: Position | None = None
    away_until: float = 0.0
    """Seconds since the run began."""
    lost: int = 0
    """How many commits are done without their callers hearing of it."""
    late: int = 0
    """How many commits are done later, if at all, and their callers do not hear of it."""
    rewinds: Rewinds = attrs.field(factory=Rewinds)
    on_its_way: list[tuple[Fence, Published]] = attrs.field(factory=list)

    @property
    def rows(self) -> list[int]:
        """What a reader sees."""
        return [row for epoch in self.epochs for row in epoch.rows]

    @property
    def scheduler(self) -> Scheduler:
        """Of the threads."""
        return self.world.scheduler

    def travel(self) -> None:
        """Take the time of half a call."""
        self.scheduler.sleep(0.05 * self.scheduler.choices.stream("targets").random(), f"target {self.name}")

    def reach(self) -> None:
        """Begin a call."""
        self.travel()
        if self.scheduler.now < self.away_until:
            raise TargetUnavailableError("the target", "it is away", is_understood=True)

    def recover(self, fence: Fence) -> int | None:
        """Shut out whoever has connected before."""
        self.reach()
        # It has committed what it was given, or never will.
        while self.on_its_way and self.scheduler.choices.stream("targets").random() < 0.5:
            self.land()
        self.on_its_way.clear()
        self.position = self.position.taken_by(fence) if self.position else Position.first(fence)
        self.travel()
        return self.position.epoch

    def commit(self, fence: Fence, epoch: Published) -> None:
        """Publish an epoch."""
        self.reach()
        if self.late:
            self.late -= 1
            self.on_its_way.append((fence, epoch))
            raise TargetUnavailableError("the target", "it has not answered", is_understood=True)
        self.put(fence, epoch)
        self.travel()
        if self.lost:
            self.lost -= 1
            raise TargetUnavailableError("the target", "it has not answered", is_understood=True)

    def put(self, fence: Fence, epoch: Published) -> None:
        """Have an epoch appear."""
        assert self.position is not None, "nobody publishes without having connected"
        position = attrs.evolve(self.position.taken_by(fence), epoch=epoch.epoch)
        world = self.world
        ids = [
            id
            for id in world.promises.epoch_ends
            if manifest_key(CheckpointId(id)) in world.buckets[world.root].objects
        ]
        self.check(
            any(id >= epoch.epoch for id in ids), f"epoch {epoch.epoch} is published before its checkpoint"
        )
        self.position = position
        self.epochs.append(epoch)
        self.removed.clear()
        end = world.promises.epoch_ends[epoch.epoch]
        self.check(self.rows == list(range(end)), f"{self.rows} is there with epoch {epoch.epoch}, not {end}")

    def land(self) -> None:
        """Have what is on its way arrive."""
        if self.on_its_way:
            with suppress(FencedError):
                self.put(*self.on_its_way.pop(0))

    def check_rewind(self, to: int | None) -> None:
        """See ``Committer``."""
        assert self.position is not None
        if not self.can_rewind or not self.rewinds.can_go_back(to, {one.epoch for one in self.epochs}):
            raise RewindError(self.position.epoch, to)

    def rewind(self, to: int | None, fence: Fence) -> int | None:
        """See ``Committer``."""
        self.reach()
        self.check_rewind(to)
        assert self.position is not None
        if self.position.epoch is not None:
            self.rewinds = self.rewinds.rewound(to, self.position.epoch)
        gone = [one for one in self.epochs if to is None or one.epoch > to]
        [driver] = (one for one in self.world.drivers if one.generation == fence.generation)
        if driver.begins_at is not None:
            restored = driver.begins_at.manifest.id
            kept = [one.epoch for one in gone if one.epoch <= restored and one.rows]
            self.check(not kept, f"epochs {kept} are taken back, which checkpoint {restored} has")
        self.epochs, self.removed = [one for one in self.epochs if one not in gone], gone + self.removed
        self.position = attrs.evolve(self.position, epoch=to)
        self.travel()
        return to

    def brought_back(self, to: int) -> Rewinds:
        """See ``Committer.check_bring_back``."""
        assert self.position is not None
        has = {one.epoch for one in self.removed}
        found = self.rewinds.restored_to(self.position.epoch, to, has) if self.can_rewind else None
        if found is None:
            raise RewindError(self.position.epoch, to)
        return found

    def bring_back(self, to: int) -> int:
        """See ``Committer``."""
        self.reach()
        self.rewinds = self.brought_back(to)
        again = [one for one in self.removed if one.epoch <= to]
        self.epochs, self.removed = self.epochs + again, [one for one in self.removed if one not in again]
        assert self.position is not None
        self.position = attrs.evolve(self.position, epoch=to)
        return to

    def recognised(self, epochs: Sequence[Epoch]) -> list[int]:
        """See ``Committer``."""
        self.reach()
        if not self.can_rewind:
            return []
        assert self.position is not None
        there = self.epochs + (self.removed if self.rewinds.is_last(self.position.epoch) else [])
        has = {(one.epoch, one.identity) for one in there}
        return [one.id for one in epochs if (one.id, one.identity) in has]

    def check(self, holds: bool, what: str) -> None:
        """End the run unless something holds."""
        self.world.promises.check(holds, f"target {self.name}: {what}")


@attrs.frozen(eq=False)
class WorldSink(StagedSink):
    """Stages records as JSON, and publishes them in a target of the world."""

    target: ClassVar[str] = "a target of the world"
    place_of_rows: Target
    uid: str

    @override
    def write(self, batches: Iterator[Any], context: WriteContext) -> Staged:
        rows = [row for batch in batches for row in batch]
        if not rows:
            return Staged(0)
        data = json.dumps([runtime.token(), rows]).encode()
        name = context.new_name(".json")
        self.place_of_rows.world.open(context.store).write(f"{context.folder}{name}", data)
        return Staged(
            len(rows),
            (FileRef(name, f"{context.folder}{name}", len(data), hashlib.sha256(data).hexdigest()),),
        )

    @override
    def pre_commit(self, epoch: int, staged: Sequence[Staged]) -> str:
        return f"{self.uid} {epoch} {sum(one.rows for one in staged)}"

    @override
    def recover(self, fence: Fence) -> WorldCommitter:
        return WorldCommitter(self.place_of_rows, fence, self.place_of_rows.recover(fence))


@attrs.define(eq=False)
class WorldCommitter(Committer):
    """A connection of one driver."""

    place: Target
    fence: Fence
    at: int | None
    is_open: bool = True

    @property
    @override
    def position(self) -> int | None:
        return self.at

    @override
    def commit(self, epoch: Epoch) -> None:
        if not self.is_open:
            raise TargetUnavailableError("the target", "the connection is closed", is_understood=True)
        rows = tuple(sorted(row for data in StagedRows(epoch).files() for row in json.loads(data)[1]))
        self.place.check(
            epoch.record.note == f"{self.place.name} {epoch.id} {len(rows)}", "the note is another epoch's"
        )
        try:
            self.place.commit(self.fence, Published(epoch.id, rows, epoch.identity))
        except TargetUnavailableError:
            self.is_open = False
            raise
        self.at = epoch.id

    @override
    def recognised(self, epochs: Sequence[Epoch]) -> list[int]:
        return self.place.recognised(epochs)

    @override
    def check_rewind(self, epoch: int | None) -> None:
        self.place.check_rewind(epoch)

    @override
    def rewind(self, epoch: int | None) -> None:
        self.at = self.place.rewind(epoch, self.fence)

    @override
    def check_bring_back(self, epoch: int) -> None:
        self.place.brought_back(epoch)

    @override
    def bring_back(self, epoch: int) -> None:
        self.at = self.place.bring_back(epoch)

    @override
    def close(self) -> None:
        self.is_open = False


def transactional_sink(driver: Driver) -> TransactionalSink:
    """Return what publishes the rows of a driver's query."""
    world = driver.world
    return TransactionalSink(
        [WorldSink(target, name) for name, target in world.targets.items()],
        Fence("pipeline", QUERY, "", world.root, driver.generation),
        driver.watch.proof,
        max_unpublished=driver.state.limits.max_unpublished,
        first_epoch=driver.state.checkpoints.next_id,
        on_published=lambda checkpoint: driver.executor.protocol.handle(events.Published(checkpoint, QUERY)),
        on_failure=lambda error: driver.supervisor.output_failed(error),
    )


def write_batch(
    rows: Any, sink: TwoPhaseSink, store: str, folder: str, batch: int, attempt: Any
) -> tuple[Staged, ...]:
    """As ``staging.write_batch``: with two tasks, of which one may run twice, and without Spark."""
    random = chance("sinks")
    found = []
    for number, half in enumerate((rows[: len(rows) // 2], rows[len(rows) // 2 :])):
        for _ in range(2 if random() < 0.1 else 1):
            runtime.sleep(0.05 * random())
            written = sink.write(iter([half]), WriteContext(store, folder, batch, number))
        found.append(written)
    return tuple(one for one in found if one.rows or one.note)


def chance(concern: str) -> Any:
    """Return what draws numbers for a concern of the world that runs."""
    current: Any = runtime._runtime
    return current.scheduler.choices.stream(concern).random


@contextmanager
def published(world: World) -> Iterator[None]:
    """Have the product's sinks stage into the world's stores inside of the ``with``."""
    with pytest.MonkeyPatch.context() as patch:
        for module in (query_sink, staged, takeover, locate):
            patch.setattr(module, "open_store", partial(_open, world))
        patch.setattr(staging, "write_batch", write_batch)
        yield


def _open(world: World, uri: str) -> Any:
    return world.open(uri)
