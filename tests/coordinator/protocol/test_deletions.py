"""Whatever is deleted at the same moment, checkpoints that count, are pinned or are being taken keep what they need.

The state machine, retention, its deletions, pins, the catalog and the garbage collection are the real ones, on a store
in memory. A deletion takes one call to the store at a time, and between any two of them checkpoints complete, readers
pin and release, other deletions go on, single objects cannot be deleted, or the driver is killed.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Generator, Iterable, Iterator
from contextlib import suppress
from functools import partial

import attrs
import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, rule, run_state_machine_as_test
from typing_extensions import override

from chandy.coordinator.protocol import events as on
from chandy.coordinator.protocol import instructions as do
from chandy.coordinator.protocol.pending import CheckpointPhase, PendingCheckpoint
from chandy.coordinator.protocol.retained import RetainedCheckpoints
from chandy.state.rpc.messages import Ack, ShardSnapshot
from chandy.state.rpc.orders import SnapshotOrder
from chandy.storage.checkpoints import collect, pins
from chandy.storage.checkpoints.catalog import Catalog
from chandy.storage.checkpoints.layout import MANIFEST, SAVEPOINTS, manifest_key
from chandy.storage.checkpoints.manifest import Manifest, QueryRecord
from chandy.storage.checkpoints.pins import Pins
from chandy.storage.checkpoints.proof import Unshared
from chandy.storage.errors import ChandyError, ObjectMissingError, StoreFailedError

from ...builders import AskingProof, MemoryStore, pack, shared
from ...effort import always_kept
from .bench import ROOT, Bench, handle

STEPS = 30
READERS = ("one", "two")
CONTENTS = "abcd"
"""What a shard may hold: a checkpoint has files that others have had, too."""
TIMES = st.lists(st.integers(0, 3), min_size=3, max_size=3)
"""How many steps others take before each call of somebody to the store."""


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
class World:
    """A pipeline's store, its driver, and the readers of its changes."""

    retained: int
    store: RefusingStore = attrs.field(factory=RefusingStore)
    held: dict[str, dict[int, Manifest]] = attrs.field(factory=lambda: {reader: {} for reader in READERS})
    count: set[int] = attrs.field(factory=set)
    """The checkpoints that have completed and that no driver has dropped."""
    jobs: list[Job] = attrs.field(factory=list)
    late: list[Manifest] = attrs.field(factory=list)
    """Manifests that may appear although nobody knows of it."""
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

    def begin(self, behind: int = 0) -> None:
        """Begin a life of the driver, from the newest checkpoint or from one behind it."""
        self.jobs.clear()
        self.late.clear()
        started = self.catalog.take_over("driver", 0.0)
        self.proof = AskingProof(self.store, started.generation)
        completed = self.catalog.completed()
        base = completed[-1 - behind % len(completed)].id if completed else None
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
            self.bench(on.ProgressStored(pending.id, record, 1))

    def finalize(self, checkpoint: int, outcome: str) -> Job:
        """Write a manifest, as ``CheckpointJobs.finalize``."""
        manifest = self.bench.machine.manifest(checkpoint, self.bench.now)
        assert manifest is not None
        if self.bench.machine.checkpoints.doomed(manifest):
            self.bench.not_finalized(checkpoint)
            return
        if outcome != "late":
            self.catalog.commit(manifest)
            yield
        if outcome == "":
            self.bench(on.Finalized(manifest))
            self.count.add(checkpoint)
        else:
            self.late += [manifest] if outcome == "late" else []
            self.bench.not_finalized(checkpoint, is_known=False)
        self.take_orders()

    def take_orders(self) -> None:
        for order in self.bench.of(do.Discard):
            self.bench.seen.remove(order)
            self.count -= {manifest.id for manifest in order.dropped}
            self.jobs.append(self.discard(order))

    def discard(self, order: do.Discard) -> Job:
        """As ``CheckpointJobs.discard``."""
        ids, remaining = tuple(manifest.id for manifest in order.dropped), order.dropped
        needed = partial(self.bench.machine.checkpoints.retained.there_besides, ids)
        with suppress(ChandyError):
            deleted = yield from collect.discard(self.store, order.dropped, needed, self.proof)
            remaining = deleted.remaining
        self.bench(on.Discarded(ids, remaining))

    # --- promises

    def check(self) -> None:
        there = set(self.store.list())
        found = {checkpoint: self.catalog.read(checkpoint) for checkpoint in self.catalog.list_ids()}
        assert self.count <= found.keys(), "a checkpoint is gone that counts"
        for manifest in [*found.values(), *(one for held in self.held.values() for one in held.values())]:
            assert manifest.id in found, f"{manifest.id} is pinned and gone"
            assert manifest.keys() <= there, f"{manifest.id} lacks {sorted(manifest.keys() - there)}"
        assert len([key for key in there if key.startswith(f"{SAVEPOINTS}/kept/")]) == 3


class Deletions(RuleBasedStateMachine):
    """Whatever can happen, in any order."""

    @initialize(retained=st.integers(1, 2))
    def start(self, retained: int) -> None:
        self.world = World(retained)

    @rule(
        contents=st.text(CONTENTS, min_size=3, max_size=3),
        outcome=st.sampled_from(["", "", "", "", "late", "unknown"]),
        steps=st.integers(0, 9),
    )
    def a_checkpoint_is_taken(self, contents: str, outcome: str, steps: int) -> None:
        self.a_checkpoint_begins()
        self.hosts_upload(contents)
        for _ in range(steps):
            self.world.step(0)
        self.a_manifest_is_written(outcome)

    @rule()
    def a_checkpoint_begins(self) -> None:
        self.world.bench.request()
        for pending in self.world.pending:
            if pending.phase is CheckpointPhase.PLANNING:
                self.world.bench.plan(pending.id)

    def hosts_upload(self, contents: str) -> None:
        for pending in self.world.pending:
            if pending.phase is CheckpointPhase.COLLECTING:
                self.world.upload(pending, contents)

    def a_manifest_is_written(self, outcome: str) -> None:
        # They are written one at a time.
        for pending in self.world.finalizing[:1]:
            for _ in self.world.finalize(pending.id, outcome):
                self.world.check()
        self.world.check()

    @rule(steps=st.integers(1, 6), which=st.integers(0, 3))
    def the_driver_deletes(self, steps: int, which: int) -> None:
        for _ in range(steps):
            self.world.step(which)
            self.world.check()

    @rule(which=st.integers(0, 30))
    def an_object_is_not_deleted_next_time(self, which: int) -> None:
        keys = [key for key in self.world.store.list("checkpoints/") if not key.endswith("trigger")]
        if keys:
            self.world.store.refused.add(keys[which % len(keys)])

    @rule(reader=st.sampled_from(READERS), which=st.integers(0, 2), times=TIMES)
    def a_reader_pins_a_checkpoint(self, reader: str, which: int, times: list[int]) -> None:
        world = self.world
        ids = world.catalog.list_ids()
        if not ids:
            return
        chosen = ids[which % len(ids)]

        def deletions(number: int) -> None:
            for _ in range(number):
                world.step(0)

        store = Interleaved(world.store, iter([partial(deletions, number) for number in times]))
        # It is not pinned as long as it is not known to be there, and never let go of otherwise.
        with suppress(ObjectMissingError):
            world.held[reader][chosen] = Pins(store, reader).hold(chosen, 0.0)
        world.check()

    @rule(reader=st.sampled_from(READERS), behind=st.integers(0, 2))
    def a_reader_releases_what_it_has_read(self, reader: str, behind: int) -> None:
        held = self.world.held[reader]
        if held:
            least = sorted(held)[-1 - behind % len(held)]
            for older in [one for one in held if one < least]:
                del held[older]
            with suppress(ChandyError):
                Pins(self.world.store, reader).release_before(least, Unshared())

    @rule(behind=st.sampled_from([0, 0, 0, 1, 2]), lands=st.booleans())
    def the_driver_is_killed(self, behind: int, lands: bool) -> None:
        for manifest in self.world.late if lands else ():
            self.world.catalog.commit(manifest)
        self.world.begin(behind)
        self.world.check()

    @rule(reader=st.sampled_from(READERS), contents=st.text(CONTENTS, min_size=3, max_size=3))
    def a_successor_comes_before_a_manifest(self, reader: str, contents: str) -> None:
        """The checkpoint of the driver before is void, and a reader has found it."""
        world = self.world
        self.a_checkpoint_begins()
        self.hosts_upload(contents)
        for pending in world.finalizing[:1]:
            manifest = world.bench.machine.manifest(pending.id, world.bench.now)
            if manifest is not None and not world.bench.machine.checkpoints.doomed(manifest):
                world.begin()
                world.catalog.commit(manifest)
                world.held[reader][manifest.id] = Pins(world.store, reader).hold(manifest.id, 0.0)
                world.check()

    @rule(reader=st.sampled_from(READERS), at=st.integers(0, 12), dry=st.booleans())
    def garbage_is_collected(self, reader: str, at: int, dry: bool) -> None:
        """Nothing may be young: so no checkpoint is being taken. A reader pins something meanwhile."""
        world = self.world
        if world.pending or world.late:
            return

        def pin() -> None:
            for checkpoint in world.catalog.list_ids()[-1:]:
                with suppress(ObjectMissingError):
                    world.held[reader][checkpoint] = Pins(world.store, reader).hold(checkpoint, 0.0)

        meanwhile: list[Callable[[], object]] = [int] * at
        store = Interleaved(world.store, iter([*meanwhile, pin]))
        collect.collect_garbage(Catalog(store), now=1e12, older_than=0.0, dry_run=dry)
        world.check()


@pytest.fixture(autouse=True)
def quiet(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(logging.root.manager, "disable", logging.CRITICAL)


def test_nothing_that_counts_or_is_pinned_loses_what_it_needs() -> None:
    run_state_machine_as_test(Deletions, settings=always_kept(15, STEPS))


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

    def drop(retained: RetainedCheckpoints, bases: Collection[int]) -> do.Discard | None:
        order = right(retained, bases)
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
    machine.a_checkpoint_is_taken("aaa", "", 0)
    machine.a_reader_pins_a_checkpoint("one", 0, [])
    machine.a_checkpoint_is_taken("aaa", "", 0)
    machine.a_checkpoint_is_taken("bbb", "", 0)
    machine.the_driver_deletes(20, which)


def a_manifest_is_refused_once(machine: Deletions) -> None:
    machine.a_checkpoint_is_taken("aaa", "", 0)
    machine.a_checkpoint_is_taken("aaa", "", 0)
    machine.world.store.refused.add(manifest_key(1))
    machine.a_checkpoint_is_taken("bbb", "", 0)
    machine.the_driver_deletes(20, 0)


def a_reader_needs_a_void_one(machine: Deletions) -> None:
    machine.a_checkpoint_is_taken("aaa", "", 0)
    machine.a_successor_comes_before_a_manifest("one", "aaa")
    machine.a_checkpoint_is_taken("bbb", "", 0)
    machine.the_driver_deletes(20, 0)


def a_reader_pins_after(steps: int, machine: Deletions) -> None:
    machine.a_checkpoint_is_taken("aaa", "", 0)
    machine.a_checkpoint_is_taken("bbb", "", 0)
    machine.the_driver_deletes(steps, 0)
    machine.a_reader_pins_a_checkpoint("one", 0, [])
    machine.the_driver_deletes(20, 0)


def a_checkpoint_uploads_again_what_is_being_deleted(machine: Deletions) -> None:
    machine.a_checkpoint_is_taken("aaa", "", 0)
    machine.a_checkpoint_is_taken("bbb", "", 0)
    machine.a_checkpoint_begins()
    machine.hosts_upload("aaa")
    machine.the_driver_deletes(20, 0)
    machine.a_manifest_is_written("")


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
        machine = Deletions()
        machine.start(1)
        schedule(machine)

    run()
    bug(monkeypatch)
    with pytest.raises(AssertionError):
        run()
