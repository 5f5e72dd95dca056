"""Whatever is deleted at the same moment, checkpoints that count, are pinned or are being taken keep what they need.

The state machine, retention, its deletions, pins, the catalog and the garbage collection are the real ones, on a store
in memory. A deletion takes one call to the store at a time, and between two of them checkpoints complete, readers pin,
other deletions go on, or single objects cannot be deleted. Here are the moments at which something was lost once; the
simulator tries any.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Generator, Iterable, Iterator
from contextlib import suppress
from functools import partial

import attrs
import pytest
from typing_extensions import override

from chandy.coordinator.protocol import events, instructions
from chandy.coordinator.protocol.pending import CheckpointPhase, PendingCheckpoint
from chandy.coordinator.protocol.retained import RetainedCheckpoints
from chandy.state.rpc.messages import Ack, ShardSnapshot
from chandy.state.rpc.orders import SnapshotOrder
from chandy.storage.checkpoints import collect, pins
from chandy.storage.checkpoints.catalog import Catalog
from chandy.storage.checkpoints.layout import MANIFEST, SAVEPOINTS, manifest_key
from chandy.storage.checkpoints.manifest import Manifest, QueryRecord
from chandy.storage.checkpoints.pins import Pins
from chandy.storage.errors import ChandyError, ObjectMissingError, StoreFailedError

from ...builders import AskingProof, MemoryStore, pack, shared
from .bench import ROOT, Bench, handle


class RefusingStore(MemoryStore):
    """Some deletions fail once."""

    def __init__(self) -> None:
        super().__init__(ROOT)
        self.refused: set[str] = set()

    @override
    def delete(self, key: str) -> None:
        if key in self.refused:
            self.refused.discard(key)
            raise StoreFailedError(self.uri, key, "delete", "denied for a moment")
        super().delete(key)


class Interleaved(MemoryStore):
    """The store as one caller uses it: something else happens before each call."""

    def __init__(self, store: MemoryStore, meanwhile: Iterator[Callable[[], object]]) -> None:
        super().__init__(store.uri)
        self.objects, self.written, self._meanwhile = store.objects, store.written, meanwhile

    def _wait(self) -> None:
        next(self._meanwhile, int)()

    @override
    def read(self, key: str, offset: int = 0, length: int | None = None) -> bytes:
        self._wait()
        return super().read(key, offset, length)

    @override
    def write(self, key: str, data: bytes) -> None:
        self._wait()
        super().write(key, data)

    @override
    def list(self, prefix: str = "") -> list[str]:
        self._wait()
        return super().list(prefix)

    @override
    def delete(self, key: str) -> None:
        self._wait()
        super().delete(key)


Job = Generator[None, None, None]


@attrs.define
class DeletionWorld:
    """A pipeline's store, its driver, and the readers of its changes."""

    retained: int
    store: RefusingStore = attrs.field(factory=RefusingStore)
    held: dict[int, Manifest] = attrs.field(factory=dict)
    count: set[int] = attrs.field(factory=set)
    """The checkpoints that have completed and that no driver has dropped."""
    jobs: list[Job] = attrs.field(factory=list)
    bench: Bench = attrs.field(init=False)
    proof: AskingProof = attrs.field(init=False)

    def __attrs_post_init__(self) -> None:
        for key in ("claim", MANIFEST, shared("a")):
            self.store.write(f"{SAVEPOINTS}/kept/{key}", b"x")
        self.begin()

    @property
    def catalog(self) -> Catalog:
        return Catalog(self.store)

    @property
    def pending(self) -> list[PendingCheckpoint]:
        return list(self.bench.machine.checkpoints.pending.values())

    @property
    def finalizing(self) -> list[PendingCheckpoint]:
        return [one for one in self.pending if one.phase is CheckpointPhase.FINALIZING]

    def begin(self) -> None:
        """Begin a life of the driver."""
        self.jobs.clear()
        started = self.catalog.take_over("driver", 0.0)
        self.proof = AskingProof(self.store, started.generation)
        completed = self.catalog.completed()
        base = completed[-1].id if completed else None
        self.count = {manifest.id for manifest in completed}
        self.bench = Bench(
            retained=self.retained,
            generation=started.generation,
            next_id=started.next_id,
            completed=tuple(completed),
            base=base,
            max_concurrent=2,
            tolerable_failures=10**6,
        )

    def step(self, which: int) -> None:
        """Let one thing that the driver does take its next step."""
        if self.jobs:
            job = self.jobs[which % len(self.jobs)]
            if next(job, self) is self:
                self.jobs.remove(job)

    # --- checkpoints

    def upload(self, pending: PendingCheckpoint, contents: str) -> None:
        """Have the hosts store what a checkpoint has of the shards, but for files that its base has."""
        base = self.bench.machine.checkpoints.retained.find(pending.base)
        has = base.keys() if base else ()
        files = iter(contents)
        for host, order in self.bench.orders(SnapshotOrder):
            if order.checkpoint == pending.id:
                key = shared(next(files))
                if key not in has:
                    self.store.write(key, b"sst")
                taken = [ShardSnapshot(s, handle(key), 3, 0.0, 0.0, 0.0, entries=1) for s in order.shards]
                self.bench.ack(Ack(host, pending.id, order.query_id, tuple(taken)))
        for query in ("up", "down"):
            self.store.write(pack(pending.id, query), b"pack")
            record = QueryRecord(query, 4, handle(pack(pending.id, query)))
            self.bench(events.ProgressStored(pending.id, record, 1))

    def finalize(self, checkpoint: int) -> Job:
        """Write a manifest, as ``CheckpointJobs.finalize``."""
        manifest = self.bench.machine.manifest(checkpoint, self.bench.now)
        assert manifest is not None
        if self.bench.machine.checkpoints.doomed(manifest):
            self.bench.not_finalized(checkpoint)
            return
        self.catalog.commit(manifest)
        yield
        self.bench(events.Finalized(manifest))
        self.count.add(checkpoint)
        self.take_orders()

    def take_orders(self) -> None:
        for order in self.bench.of(instructions.Discard):
            self.bench.seen.remove(order)
            self.count -= {manifest.id for manifest in order.dropped}
            self.jobs.append(self.discard(order))

    def discard(self, order: instructions.Discard) -> Job:
        """As ``CheckpointJobs.discard``."""
        ids, remaining = tuple(manifest.id for manifest in order.dropped), order.dropped
        needed = partial(self.bench.machine.checkpoints.retained.there_besides, ids)
        with suppress(ChandyError):
            deleted = yield from collect.discard(self.store, order.dropped, needed, self.proof)
            remaining = deleted.remaining
        self.bench(events.Discarded(ids, remaining))

    def pin(self, store: MemoryStore, checkpoint: int) -> None:
        self.held[checkpoint] = Pins(store, "reader").hold(checkpoint, 0.0)

    # --- promises

    def check(self) -> None:
        there = set(self.store.list())
        found = {checkpoint: self.catalog.read(checkpoint) for checkpoint in self.catalog.list_ids()}
        assert self.count <= found.keys(), "a checkpoint is gone that counts"
        for manifest in [*found.values(), *self.held.values()]:
            assert manifest.id in found, f"{manifest.id} is pinned and gone"
            assert manifest.keys() <= there, f"{manifest.id} lacks {sorted(manifest.keys() - there)}"
        assert len([key for key in there if key.startswith(f"{SAVEPOINTS}/kept/")]) == 3


class Deletions:
    """What happens in a schedule."""

    def __init__(self) -> None:
        self.world = DeletionWorld(retained=1)

    def a_checkpoint_is_taken(self, contents: str) -> None:
        self.a_checkpoint_begins()
        self.hosts_upload(contents)
        self.a_manifest_is_written()

    def a_checkpoint_begins(self) -> None:
        self.world.bench.request()
        for pending in self.world.pending:
            if pending.phase is CheckpointPhase.PLANNING:
                self.world.bench.plan(pending.id)

    def hosts_upload(self, contents: str) -> None:
        for pending in self.world.pending:
            if pending.phase is CheckpointPhase.COLLECTING:
                self.world.upload(pending, contents)

    def a_manifest_is_written(self) -> None:
        for pending in self.world.finalizing:
            for _ in self.world.finalize(pending.id):
                self.world.check()
        self.world.check()

    def the_driver_deletes(self, steps: int, which: int = 0) -> None:
        for _ in range(steps):
            self.world.step(which)
            self.world.check()

    def a_reader_pins_the_oldest(self) -> None:
        # It is not pinned as long as it is not known to be there.
        with suppress(ObjectMissingError):
            self.world.pin(self.world.store, self.world.catalog.list_ids()[0])
        self.world.check()

    def a_successor_comes_before_a_manifest(self, contents: str) -> Manifest:
        """The checkpoint of the driver before is void."""
        world = self.world
        self.a_checkpoint_begins()
        self.hosts_upload(contents)
        (pending,) = world.finalizing
        manifest = world.bench.machine.manifest(pending.id, world.bench.now)
        assert manifest is not None
        world.begin()
        world.catalog.commit(manifest)
        return manifest


@pytest.fixture(autouse=True)
def quiet(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(logging.root.manager, "disable", logging.CRITICAL)


@pytest.mark.parametrize("at", range(13))
def test_what_a_reader_pins_while_garbage_is_collected_stays(at: int) -> None:
    machine = Deletions()
    machine.a_checkpoint_is_taken("aaa")
    void, world = machine.a_successor_comes_before_a_manifest("bbb"), machine.world

    def pin() -> None:
        # It is not pinned as long as it is not known to be there.
        with suppress(ObjectMissingError):
            world.pin(world.store, void.id)

    store = Interleaved(world.store, iter([*[int] * at, pin]))
    # Nothing may be young.
    collect.collect_garbage(Catalog(store), now=1e12, older_than=0.0)
    world.check()


# --- does it find anything? ---------------------------------------------------------------------------------

Bug = Callable[[pytest.MonkeyPatch], None]


def take_what_is_being_deleted_for_gone(patch: pytest.MonkeyPatch) -> None:
    """It is no part of what a deletion must leave alone."""
    patch.setattr(RetainedCheckpoints, "there_besides", lambda retained, ids: retained._kept())
    know_nothing_but_what_the_driver_has(patch)


def decide_what_stays_when_others_are_dropped(patch: pytest.MonkeyPatch) -> None:
    """It is not looked up when they are deleted."""
    decided: dict[tuple[int, ...], tuple[Manifest, ...]] = {}
    right = RetainedCheckpoints.drop

    def drop(
        retained: RetainedCheckpoints, bases: Collection[int], acknowledged: Collection[str]
    ) -> instructions.Discard | None:
        order = right(retained, bases, acknowledged)
        decided[tuple(one.id for one in order.dropped) if order else ()] = retained._kept()
        return order

    patch.setattr(RetainedCheckpoints, "drop", drop)
    patch.setattr(RetainedCheckpoints, "there_besides", lambda retained, ids: decided[ids])
    know_nothing_but_what_the_driver_has(patch)


def know_nothing_but_what_the_driver_has(patch: pytest.MonkeyPatch) -> None:
    def none(store: MemoryStore, known: object) -> Generator[None, None, list[Manifest]]:
        yield
        return []

    patch.setattr(collect, "_others", none)


def look_for_pins_once(patch: pytest.MonkeyPatch) -> None:
    def give_up(
        store: MemoryStore, ids: Iterable[int], proof: object
    ) -> Generator[None, None, frozenset[int]]:
        found = frozenset(ids) - pins.pinned(store)
        yield
        return found

    patch.setattr(collect, "give_up", give_up)


def pin_without_a_look_at_the_mark(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(pins, "_is_marked", lambda store, checkpoint: False)


def forget_what_is_being_deleted(patch: pytest.MonkeyPatch) -> None:
    """A checkpoint takes what retention deletes while it is taken for its own."""
    patch.setattr(RetainedCheckpoints, "being_deleted", lambda retained: frozenset())


def take_what_is_refused_for_deleted(patch: pytest.MonkeyPatch) -> None:
    right = collect._delete
    patch.setattr(collect, "_delete", lambda store, keys: dict.fromkeys(right(store, keys), None) and {})


def another_is_dropped_while_a_pinned_one_is_deleted(which: int, machine: Deletions) -> None:
    machine.a_checkpoint_is_taken("aaa")
    machine.a_reader_pins_the_oldest()
    machine.a_checkpoint_is_taken("aaa")
    machine.a_checkpoint_is_taken("bbb")
    machine.the_driver_deletes(20, which)


def a_manifest_is_refused_once(machine: Deletions) -> None:
    machine.a_checkpoint_is_taken("aaa")
    machine.a_checkpoint_is_taken("aaa")
    machine.world.store.refused.add(manifest_key(1))
    machine.a_checkpoint_is_taken("bbb")
    machine.the_driver_deletes(20)


def a_reader_needs_a_void_one(machine: Deletions) -> None:
    machine.a_checkpoint_is_taken("aaa")
    void = machine.a_successor_comes_before_a_manifest("aaa")
    machine.world.pin(machine.world.store, void.id)
    machine.a_checkpoint_is_taken("bbb")
    machine.the_driver_deletes(20)


def a_reader_pins_after(steps: int, machine: Deletions) -> None:
    machine.a_checkpoint_is_taken("aaa")
    machine.a_checkpoint_is_taken("bbb")
    machine.the_driver_deletes(steps)
    machine.a_reader_pins_the_oldest()
    machine.the_driver_deletes(20)


def a_checkpoint_uploads_again_what_is_being_deleted(machine: Deletions) -> None:
    machine.a_checkpoint_is_taken("aaa")
    machine.a_checkpoint_is_taken("bbb")
    machine.a_checkpoint_begins()
    machine.hosts_upload("aaa")
    machine.the_driver_deletes(20)
    machine.a_manifest_is_written()


SCHEDULES: list[tuple[Bug, Callable[[Deletions], None]]] = [
    (decide_what_stays_when_others_are_dropped, partial(another_is_dropped_while_a_pinned_one_is_deleted, 0)),
    (decide_what_stays_when_others_are_dropped, a_manifest_is_refused_once),
    (take_what_is_being_deleted_for_gone, partial(another_is_dropped_while_a_pinned_one_is_deleted, 1)),
    (take_what_is_refused_for_deleted, a_manifest_is_refused_once),
    (know_nothing_but_what_the_driver_has, a_reader_needs_a_void_one),
    (look_for_pins_once, partial(a_reader_pins_after, 1)),
    (pin_without_a_look_at_the_mark, partial(a_reader_pins_after, 3)),
    (forget_what_is_being_deleted, a_checkpoint_uploads_again_what_is_being_deleted),
]


@pytest.mark.parametrize(("bug", "schedule"), SCHEDULES, ids=lambda one: getattr(one, "__name__", "pins"))
def test_a_schedule_keeps_the_promise_and_finds(
    bug: Bug, schedule: Callable[[Deletions], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    def run() -> None:
        schedule(Deletions())

    run()
    bug(monkeypatch)
    with pytest.raises(AssertionError):
        run()
