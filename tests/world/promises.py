"""What must hold of a world, looked at after each step that may break it."""

from __future__ import annotations

import hashlib
import json
import tempfile
from collections import Counter
from collections.abc import Mapping
from concurrent.futures import Future
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from chandy.coordinator.protocol import events
from chandy.coordinator.protocol.decisions import HostLost
from chandy.coordinator.protocol.event_log import replay
from chandy.coordinator.protocol.instructions import Decided, Instruction, ReplaceHost
from chandy.coordinator.restore.restore_point import LATEST, WORKING
from chandy.state.host.memory import Memory
from chandy.state.host.rocksdb import RocksDatabases
from chandy.state.host.shard import Shard
from chandy.state.rpc.orders import SnapshotOrder
from chandy.state.shards import ShardId
from chandy.storage.checkpoints.catalog import Catalog
from chandy.storage.checkpoints.fencing import voided_by
from chandy.storage.checkpoints.layout import MANIFEST, checkpoint_of, dropped_key, manifest_key
from chandy.storage.checkpoints.manifest import CheckpointKind, Handle, Manifest
from chandy.storage.checkpoints.savepoint import read_savepoint
from chandy.storage.errors import ChandyError, DamagedCheckpointError, DamagedError

from ..builders import MemoryStore
from .memory_databases import MemoryDatabases
from .records import KEYS, SHARDS, State, end_of, records_of
from .store import Bucket, StoreAct

if TYPE_CHECKING:
    from chandy.coordinator.checkpoint import Checkpoint
    from chandy.coordinator.restore.restore_point import RestorePoint

    from .driver import Driver
    from .world import World

MEMORY = Path("/dev/shm") if Path("/dev/shm").is_dir() else None
"""Where there are very many small files."""
TRUSTED_SECONDS: Final = 20.0
"""A driver that has looked for a successor knows so long ago at most, and a little more, whether there is one."""


PUBLISHED_SECONDS: Final = 25.0
"""Within which a checkpoint that was asked for is announced after its rows have been published, and not before."""


class BrokenPromiseError(AssertionError):
    """The product has done what it must not do."""


def seen(bucket: Bucket) -> MemoryStore:
    """Return a store as it is now, for the world to look at: no call takes any time."""
    store = MemoryStore(bucket.uri)
    store.objects = bucket.objects
    return store


class Promises:
    """Looks at a world.

    Args:
        world: the world.
    """

    def __init__(self, world: World) -> None:
        self.world = world
        self.met: Counter[str] = Counter()
        """What drivers have decided: instructions and orders to hosts, by their classes."""
        self.announced: dict[int, int] = {}
        """By checkpoint that was announced as completed the generation that did it."""
        self.savepoints: dict[str, Manifest] = {}
        """By folder."""
        self.cut_by: dict[int, int] = {}
        """By checkpoint whose cut was chosen the generation that did it."""
        self.cuts: dict[tuple[int, str], int] = {}
        """By checkpoint and run of a query the cut."""
        self.epoch_ends: dict[int, int] = {}
        """By epoch that was closed the end of its records."""
        self.owned: dict[tuple[str, ShardId, int], str] = {}
        """By run, shard and term its one owner."""
        self.pinned: dict[str, Manifest] = {}
        """By reader the checkpoint that it keeps."""
        self.given_up: set[int] = set()
        """Checkpoints whose cut was chosen before their driver went back, and that had not completed then."""
        self.counted: set[int] = set()
        """Checkpoints that a driver's start has found to count."""
        self.chosen = 0, 0
        """The latest generation whose user has named where it begins, and that checkpoint or savepoint."""
        self.restored: set[tuple[str, int, int]] = set()
        self._memory = Memory(1 << 20, RocksDatabases if world.has_rocksdb else MemoryDatabases)
        self._needed: tuple[object, frozenset[str]] = (None, frozenset())

    def check(self, holds: bool, what: str) -> None:
        """End the run unless something holds, also if what calls this catches every error."""
        if not holds:
            error = BrokenPromiseError(what)
            if (thread := self.world.scheduler.current) is not None:
                self.world.scheduler.failures.append((thread, error))
            raise error

    # --- what a driver decides and says ---------------------------------------------------------------------

    def decided(
        self, driver: Driver, event: events.Event[Any], instructions: tuple[Instruction, ...]
    ) -> None:
        """Look at a driver's state machine after an event. It is under the lock of the driver."""
        generation = driver.state.generation
        if isinstance(event, events.CutChosen):
            first = self.cut_by.setdefault(event.checkpoint, generation)
            self.check(first == generation, "two drivers take a checkpoint with the same id")
        if isinstance(event, events.HostLeft) and event.hello.host in driver.emptied:
            # Shards that a standby does not take over are lost at once, or wait for a disk that is gone.
            lost = [
                one
                for one in instructions
                if (isinstance(one, Decided) and isinstance(one.noticed, HostLost))
                or (isinstance(one, ReplaceHost) and one.reopened)
            ]
            self.check(not lost, f"{event.hello.machine} was drained, and state is lost with it")
        for instruction in instructions:
            order = getattr(instruction, "order", None)
            self.met[type(instruction if order is None else order).__name__] += 1
            if isinstance(order, SnapshotOrder):
                cut = self.cuts.setdefault((order.checkpoint, order.query_id), order.cut)
                self.check(cut == order.cut, "two shards have different cuts")
        for query in driver.state.queries.values():
            owners = query.assignment._owners
            for shard, owned in owners.items():
                first_owner = self.owned.setdefault((query.query_id, shard, owned.term), owned.host)
                self.check(first_owner == owned.host, "a term of a shard has two owners")
            for pending in driver.state.checkpoints.pending.values():
                if (part := pending.parts.get(query.name)) is None or part.wanted is None:
                    continue
                ordered = [shard for order in part.orders.values() for shard in order.shards]
                self.check(len(ordered) == len(set(ordered)), "a checkpoint takes a shard twice")
                for host, order in part.orders.items():
                    for shard in part.wanted & set(order.shards) & owners.keys():
                        self.check(
                            owners[shard].host == host, "a checkpoint does not take a shard where it is"
                        )

    def chose(self, driver: Driver) -> None:
        """Take in that what a user has named is written down: the pipeline stands there from now on."""
        assert driver.begins_at is not None
        self.chosen = max(self.chosen, (driver.generation, driver.begins_at.manifest.id))

    def starts(self, driver: Driver, point: RestorePoint | None, chosen: tuple[int, int]) -> None:
        """Look at where a driver begins: where a user has gone back to before, unless something has completed since."""
        since, checkpoint = chosen
        if driver.restore == LATEST and since:
            later = [one.id for one in self.world.catalog().readable() if one.generation >= since]
            expected, found = max(later, default=checkpoint), point.manifest.id if point else 0
            self.check(
                found == expected, f"a driver begins at {found}, and the pipeline stands at {expected}"
            )

    def refused(self, driver: Driver, error: ChandyError) -> None:
        """Look at a start that is refused. What a user names may be gone, or not fit the targets; the newest does."""
        if isinstance(error, DamagedError):
            self.found_damage(error)
            return
        latest = self.world.catalog().latest()
        newest = latest.id if latest else 0
        # An earlier query of a pipeline may begin where a user has gone back to, and a later one be refused there.
        stands_at = self.chosen[1] if driver.restore == LATEST and self.chosen[0] else driver.restore
        self.check(
            stands_at not in (LATEST, newest), f"a start from the newest checkpoint is refused: {error}"
        )
        self.world.named = newest

    def found_damage(self, error: DamagedError) -> None:
        """Look at what a user is told of damage, who then goes on from the intact checkpoint, if there is one."""
        world = self.world
        damaged = {key for bucket in world.buckets.values() for key in bucket.damaged}
        # A later checkpoint may have stored the same bytes again.
        still_damaged = {key for bucket in world.buckets.values() for key in bucket.still_damaged()}
        self.met["DamageFound"] += 1
        self.check(world.is_healed or error.key in damaged, f"{error.key} is said to be damaged")
        intact = error.intact if isinstance(error, DamagedCheckpointError) else None
        for manifest in world.catalog().readable():
            is_intact = still_damaged.isdisjoint(manifest.keys())
            self.check(is_intact or manifest.id != intact, f"{manifest.id} is said to be intact")
        world.named = intact or 0
        world.start_again()

    def restoring(self, driver: Driver, point: RestorePoint | None) -> None:
        """Look at where a query of a driver is about to begin or to go back to."""
        own = [id for id, generation in self.announced.items() if generation == driver.generation]
        found = point.manifest.id if point else 0
        newest = max(own, default=0)
        self.check(found >= newest, f"a query goes back to {found}, and checkpoint {newest} has completed")
        # What a savepoint has that was cut before that checkpoint is not given up.
        cut = {id for id, generation in self.cut_by.items() if generation == driver.generation and id > found}
        self.given_up |= cut.difference(self.announced)

    def completed(self, driver: Driver, manifest: Manifest, root: str) -> None:
        """Look at a checkpoint that a driver is about to announce."""
        world = self.world
        self.check(
            manifest.id not in self.given_up, f"checkpoint {manifest.id} is of state that was given up"
        )
        if manifest.kind is CheckpointKind.SAVEPOINT:
            self.check(
                read_savepoint(seen(world.buckets[root])) == manifest, "announced before it was durable"
            )
            self.savepoints[root] = manifest
        else:
            catalog = world.catalog()
            there = manifest_key(manifest.id) in world.buckets[root].objects
            if not there and manifest.id in self.counted:
                # The driver was frozen after its last look, and a successor has found the checkpoint and dropped it.
                return
            self.check(there and catalog.read(manifest.id) == manifest, "announced before it was durable")
            self.check(manifest.id not in self.announced, "an id was used twice")
            void = voided_by(manifest.generation, manifest.id, catalog.generations())
            self.check(void is None, f"checkpoint {manifest.id} completes although {void} has taken over")
            self.announced[manifest.id] = manifest.generation
            for other in catalog.completed():
                self.has_all(other, root)
        self.restores(manifest, root)

    def answered(self, driver: Driver, asked: float, future: Future[Checkpoint]) -> None:
        """Look at the answer to a user who has asked for a checkpoint: its rows can be read, if that took no longer.

        Of a driver that is closed, the next one publishes what is complete.
        """
        is_late = self.world.scheduler.now - asked > PUBLISHED_SECONDS
        if self.chosen[0] > driver.generation:
            # Its successor has taken back what it has published.
            return
        if is_late or driver.fenced_by is not None or future.exception() is not None:
            return
        end = self.epoch_ends.get(future.result().id, 0)
        for target in self.world.targets.values():
            self.check(len(target.rows) >= end, f"target {target.name} lacks what was said to be there")

    # --- what tasks find ------------------------------------------------------------------------------------

    def staged(self, query: str, start: int, found: Mapping[tuple[int, bytes], bytes | None]) -> None:
        """Look at what a task has read, whose changes are staged."""
        before = {shard: records_of(query, shard, 0, start) for shard in {shard for shard, _ in found}}
        for (shard, key), value in found.items():
            expected = before[shard].get(int(key), [])
            read = json.loads(value) if value else []
            self.check(
                read == expected,
                f"{query}/{shard}: a task has read {read} for {key!r}, and {expected} is before its batch",
            )

    def begins(self, driver: Driver, was_late: bool) -> None:
        """Look at a batch that may begin."""
        self.check(
            not was_late, f"a batch of driver {driver.number} begins, and its successor has long begun"
        )

    def is_late(self, driver: Driver) -> bool:
        """Return whether a driver has had a successor for so long that no look of its own can count any more."""
        then = self.world.scheduler.now - TRUSTED_SECONDS
        later = [one for one in self.world.drivers if one.has_begun and one.generation > driver.generation]
        return any(one.begun_at < then for one in later)

    def replays(self, driver: Driver) -> None:
        """The same events lead to the same outcomes and to the same state, in any life of the state machine."""
        machine = driver.new_machine()
        self.check(replay(machine, driver.told) == driver.outcomes, "an event has another outcome")
        self.check(machine == driver.state, "the same events lead to another state")

    # --- what a store has -----------------------------------------------------------------------------------

    def changing(self, root: str, act: StoreAct) -> None:
        """Look at a change of a store that is about to be made."""
        if act.operation == "delete":
            if act.key in self.needed(root) and not self._is_late_deletion(root, act):
                self.check(False, f"{act.process} deletes {act.key}, which is needed")
        elif act.key in self.world.buckets[root].objects and act.operation == "create":
            self.check(False, f"{act.key} is created twice")

    def _is_late_deletion(self, root: str, act: StoreAct) -> bool:
        """Return whether a driver that was overtaken deletes the manifest of a checkpoint that it had dropped.

        The request was on its way when the successor began, which has found the manifest. Nobody can take it back. The
        mark beside the manifest says that it was dropped, and the driver deletes nothing else of the checkpoint.
        """
        leader, checkpoint = self.world.newest_begun(), checkpoint_of(act.key)
        return (
            root == self.world.root
            and leader is not None
            and act.process != leader.process.name
            and checkpoint is not None
            and act.key == manifest_key(checkpoint)
            and dropped_key(checkpoint) in self.world.buckets[root].objects
        )

    def needed(self, root: str) -> frozenset[str]:
        """Return the objects of a store that may not be deleted."""
        world = self.world
        if root != world.root:
            manifest = self.savepoints.get(root)
            return frozenset() if manifest is None else frozenset({*manifest.keys(), MANIFEST})
        leader = world.newest_begun()
        retained = () if leader is None else leader.state.checkpoints.retained.manifests
        catalog = world.catalog()
        state = (
            tuple(manifest.id for manifest in retained),
            tuple(key for key in catalog.store.list("generations/")),
            tuple(self.announced),
            tuple(self.pinned),
        )
        if state != self._needed[0]:
            latest = catalog.latest()
            manifests = {manifest.id: manifest for manifest in (*retained, *([latest] if latest else []))}
            keys = {key for manifest in manifests.values() for key in manifest.keys()}  # noqa: SIM118
            keys |= {manifest_key(id) for id in manifests}
            for manifest in self.pinned.values():
                keys |= {*manifest.keys(), manifest_key(manifest.id)}
            self._needed = state, frozenset(keys)
        return self._needed[1]

    def whole(self) -> None:
        """Look at everything that can be restored."""
        world = self.world
        catalog = world.catalog()
        latest = catalog.latest()
        newest = max(self.announced, default=0)
        self.check((latest.id if latest else 0) >= newest, "a completed checkpoint is not the latest")
        leader = world.newest_begun()
        retained = () if leader is None else leader.state.checkpoints.retained.manifests
        for manifest in (*retained, *([latest] if latest else [])):
            self.restores(manifest, world.root)
        for manifest in (*catalog.completed(), *self.pinned.values()):
            self.restores(manifest, world.root)
        for root, manifest in self.savepoints.items():
            self.restores(manifest, root)

    def restores(self, manifest: Manifest, root: str) -> None:
        """A checkpoint restores, to exactly the effect of what lies before its cut."""
        self.has_all(manifest, root)
        objects = self.world.buckets[root].objects
        identity = root, manifest.generation, manifest.id
        # What is damaged can be restored once somebody has put it back.
        if identity in self.restored or manifest.keys() & self.world.buckets[root].damaged.keys():
            return
        ends = {}
        for query in manifest.queries:
            log = files_of(objects, query.files).get(f"{WORKING}/offsets/{query.batch}")
            self.check((log is None) == (query.batch < 0), "a checkpoint has another batch than its cut")
            ends[query.name] = end_of(log.decode()) if log else 0
        self.check(set(ends) == set(SHARDS), "a checkpoint lacks a query")
        self.check(ends["totals"] <= ends["orders"], "a query has read what its producer has not written")
        for operator in manifest.operators:
            for number, handle in enumerate(operator.shards):
                found = self.state(files_of(objects, handle)) if handle else {}
                expected = records_of(operator.query, number, 0, ends[operator.query])
                self.check(
                    found == expected,
                    f"checkpoint {manifest.id}: {operator.uid}/{number} is {found}, and {expected} is before the cut",
                )
        # Last: what ends before has not been looked at.
        self.restored.add(identity)

    def has_all(self, manifest: Manifest, root: str) -> None:
        """What a checkpoint references is there."""
        gone = sorted(manifest.keys() - self.world.buckets[root].objects.keys())
        self.check(not gone, f"checkpoint {manifest.id} references objects that are gone: {gone}")

    def state(self, files: dict[str, bytes]) -> State:
        """Return what a shard holds that has these files."""
        with tempfile.TemporaryDirectory(dir=MEMORY) as folder:
            for name, content in files.items():
                Path(folder, name).write_bytes(content)
            shard = Shard("looked at", Path(folder), self._memory)
            values = shard.fetch([str(key).encode() for key in range(KEYS)])
            shard.close()
        return {key: json.loads(value) for key, value in enumerate(values) if value is not None}


def files_of(objects: dict[str, bytes], handle: Handle) -> dict[str, bytes]:
    """Return the files of a snapshot by their names."""
    found = {file.name: objects[file.key][file.offset : file.offset + file.size] for file in handle.files}
    for file in handle.files:
        if hashlib.sha256(found[file.name]).hexdigest() != file.sha256:
            raise BrokenPromiseError(f"{file.key} is not what a manifest says")
    return found


def catalog_of(bucket: Bucket) -> Catalog:
    """Return the catalog of a store as it is now."""
    return Catalog(seen(bucket))
