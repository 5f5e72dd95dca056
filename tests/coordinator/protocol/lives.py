"""Lives of a pipeline: queries, hosts and a store in memory, moved on step by step, and what must hold of them.

The coordinator's decisions (``CheckpointStateMachine``, ``RecoveryStateMachine``), the steps of committing a manifest
and of going back, the decisions of state hosts (``ShardBatches``, ``SnapshotOrders``, ``SnapshotBases``), the catalog
with its fencing, retention and deletion are the real ones. Around them everything is a small model, which takes one
step when it is told to: Spark's batches of two queries, one of which reads the other's output; what shards hold, or the
real shards; orders and acknowledgements on their way; the threads of the driver.

A state's value is the list of the records that made it. So a state is right if it is exactly that of the
records before the query's offset at the cut, in their order.
"""

from __future__ import annotations

import contextlib
import hashlib
import itertools
import json
import tempfile
from collections import deque
from collections.abc import Callable, Iterator, Mapping, MutableSequence
from pathlib import Path
from typing import Any

import attrs
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from typing_extensions import override

from chandy.coordinator.errors import CheckpointError, QueryFailedError, StaleQueryError, StateLostError
from chandy.coordinator.execution.dispatch import Job, JobLane
from chandy.coordinator.protocol import events as on
from chandy.coordinator.protocol import instructions as do
from chandy.coordinator.protocol.event_log import LoggedEvent, replay
from chandy.coordinator.protocol.pending import CheckpointPhase as PendingPhase
from chandy.coordinator.protocol.reasons import Reason
from chandy.coordinator.protocol.requests import Request
from chandy.coordinator.protocol.state_machine import Outcome
from chandy.coordinator.recovery import decisions, rollback
from chandy.coordinator.recovery.recovery_state import RecoveryStateMachine
from chandy.coordinator.recovery.restart import FixedDelay
from chandy.coordinator.restore import resume
from chandy.coordinator.restore.restore_point import RestorePoint, base_point
from chandy.coordinator.restore.run_record import RunRecord, base_of, misfit
from chandy.state.errors import (
    CannotGoBackError,
    CoordinatorLostError,
    CopyGivenUpError,
    HostDismissedError,
    HostLostError,
    ShardMissingError,
    ShardMovingError,
    ShardRefusedError,
)
from chandy.state.host.batches import ShardBatches, StagedChanges, check_together
from chandy.state.host.forwarding import Forwarding
from chandy.state.host.shard_key import ShardKey
from chandy.state.host.snapshot_bases import SnapshotBases
from chandy.state.host.snapshot_orders import AcceptedOrder, SnapshotOrders
from chandy.state.rpc.messages import (
    Ack,
    AskBatch,
    BeginTask,
    ClaimShards,
    CopyReport,
    CopyStep,
    Decline,
    Forward,
    HostHello,
    Message,
    Reply,
    ShardSnapshot,
    ShardStandby,
)
from chandy.state.rpc.orders import (
    AbortOrder,
    CompleteOrder,
    EndStandby,
    OpenAhead,
    Order,
    Promote,
    ReleaseOrder,
    Reopen,
    Settle,
    SnapshotOrder,
    TakeOver,
)
from chandy.state.rpc.wire import HandedOver
from chandy.state.shards import NotResumable, RestoreSource, ResumePoint, ShardId
from chandy.storage.checkpoints.catalog import Catalog
from chandy.storage.checkpoints.fencing import voided_by
from chandy.storage.checkpoints.layout import (
    MANIFEST,
    manifest_key,
    pack_key,
    shared_key,
)
from chandy.storage.checkpoints.manifest import (
    ChannelRecord,
    CheckpointKind,
    FileRef,
    Handle,
    Manifest,
    OperatorRecord,
)
from chandy.storage.checkpoints.savepoint import read_savepoint
from chandy.storage.errors import (
    ChandyError,
    FencedError,
    ObjectMissingError,
)
from chandy.storage.store import Store

from ...troubled_store import TROUBLES, StoreDownError, TroubledStore
from ..life_events import FAILED
from ..limits import limits_of
from ..stepped_executor import SteppedExecutor, UnreadableError, Work
from ..strict_machine import StrictStateMachine

ROOT = "memory://pipeline"
MEMORY = Path("/dev/shm") if Path("/dev/shm").is_dir() else None
"""Where there are very many small files."""
KEYS = 5
SHARDS = {"orders": 3, "totals": 2}
"""Queries, upstream first, and the shards of the one operator of each."""

READS: dict[str, tuple[str, ...]] = {"orders": (), "totals": ("orders",)}

Files = dict[str, bytes]

State = dict[int, list[int]]


def uid_of(query: str) -> str:
    return f"{query}-operator"


def shards_of(query: str) -> tuple[ShardId, ...]:
    return tuple(ShardId(uid_of(query), number) for number in range(SHARDS[query]))


def records_of(query: str, shard: ShardId, start: int, end: int) -> State:
    """The records from ``start`` to before ``end`` that a shard gets, by key."""
    found: State = {}
    for record in range(start, end):
        key = (record + record // 3) % KEYS
        if key % SHARDS[query] == shard.shard:
            found.setdefault(key, []).append(record)
    return found


# --- the store ----------------------------------------------------------------------------------------------


_unique = itertools.count(1)


def put_files(
    store: Store,
    checkpoint: int,
    writer: str,
    groups: Mapping[str, Files],
    bases: Mapping[str, Handle | None],
) -> dict[str, Handle]:
    """Store files as ``SnapshotWriter`` does: tables under their hash unless the base has them, others packed."""
    pack_name = pack_key(checkpoint, f"{writer}-{next(_unique)}")
    pack = b""
    handles: dict[str, Handle] = {}
    for group, files in groups.items():
        base = bases.get(group)
        has = {file.sha256 for file in base.files} if base else set()
        refs = []
        for name, content in files.items():
            sha256 = hashlib.sha256(content).hexdigest()
            if name.endswith(".sst"):
                refs.append(FileRef(name, shared_key(sha256), len(content), sha256))
                if sha256 not in has:
                    store.write(shared_key(sha256), content)
            else:
                refs.append(FileRef(name, pack_name, len(content), sha256, len(pack)))
                pack += content
        handles[group] = Handle(tuple(refs))
    store.write(pack_name, pack)
    return handles


def get_files(objects: Mapping[str, bytes], handle: Handle) -> Files:
    """Take files out of the objects of a store."""
    return {file.name: objects[file.key][file.offset : file.offset + file.size] for file in handle.files}


def read_files(store: Store, handle: Handle) -> Files:
    """Read files as a restore does."""
    found = {file.name: store.read(file.key, file.offset, file.size) for file in handle.files}
    for file in handle.files:
        assert hashlib.sha256(found[file.name]).hexdigest() == file.sha256, f"{file.key} is damaged"
    return found


REPEATED = f"{0:09}.sst"
"""A table without state whose bytes are now these, now those."""


# --- shards -------------------------------------------------------------------------------------------------


@attrs.frozen
class ModelChanges:
    """What an attempt has changed, as ``Changes`` has it."""

    entries: State

    @property
    def columns(self) -> State:
        return self.entries

    def keep_table(self) -> None:
        """There is nothing else."""


class ModelShard:
    """The product's batches over a list of tables that are merged now and then."""

    term = 1
    in_order = contextlib.nullcontext()
    log: dict[int, State] | None = None
    """What its host keeps of it for others on the same machine."""

    def __init__(self, files: Files, position: int) -> None:
        self.tail: list[tuple[int, State]] | None = None
        self.tables = {name: content for name, content in files.items() if name.endswith(".sst")}
        self.tables.pop(REPEATED, None)
        self.batches: ShardBatches[State] = ShardBatches("shard", position, self.apply)
        self.standby: ShardStandby | None = None
        self.begin = self.batches.begin
        self.reached = self.batches.reached
        self.follow = self.batches.follow
        self.promote = self.batches.promote

    def stage(self, batch: int, changes: ModelChanges) -> int:
        self.batches.stage(batch, changes.entries)
        if self.log is not None:
            self.log[batch] = changes.entries
        return self.batches.position

    def reopen(self, batches: list[tuple[int, State]], staged: tuple[int, State] | None, begun: int) -> None:
        self.replay(batches)
        self.batches.reopen(None if staged is None else StagedChanges(*staged), begun)

    def end_standby(self, number: int) -> None:
        if self.standby is not None and self.standby.copy_id == number:
            self.standby = None

    def fetch(self, key: int) -> list[int]:
        return state_of(self.tables).get(key, [])

    def apply(self, batch: int, changes: State) -> None:
        if self.tail is not None:
            self.tail.append((batch, changes))
        if changes:
            self._write(changes)
        if len(self.tables) > 3:
            merged = state_of(self.tables)
            self.tables = {}
            self._write(merged)

    def replay(self, batches: list[tuple[int, State]]) -> None:
        for batch, changes in batches:
            self.batches.replay(batch, changes)

    def hand_over(self, after: int, cut: int | None, standby: ShardStandby | None = None) -> Any:
        if cut is not None:
            self.batches.seal(cut)
        if self.tail is None:
            raise ShardRefusedError("nothing was kept", "a tail", "none")
        batches = [one for one in self.tail if one[0] > after]
        if standby is None:
            return HandedOver(self.batches.position, batches)
        if self.standby is not None and standby.copy_id < self.standby.copy_id:
            raise ShardRefusedError("there is a newer one", "a newer standby", "an older one")
        self.standby, self.tail, staged = standby, None, self.batches.staged
        if staged is None:
            return HandedOver(self.batches.position, batches)
        return HandedOver(self.batches.position, [*batches, (staged.batch, staged.changes)], staged.batch)

    def take_over(self, batches: list[tuple[int, State]], position: int) -> None:
        self.replay(batches)
        self.batches.take_over(position)

    def join(self, found: Any) -> None:
        self.replay([one for one in found.batches if one[0] != found.staged])
        staged = (
            None if found.staged is None else StagedChanges(found.staged, dict(found.batches)[found.staged])
        )
        self.batches.join(found.position, staged)

    def checkpoint(self, cut: int, follow: bool = False) -> Files:
        self.batches.cut(cut)
        if follow:
            self.tail = []
        return {**self.tables, "MANIFEST-1": json.dumps(sorted(self.tables)).encode()}

    def close(self) -> None:
        pass

    def _write(self, changes: State) -> None:
        number = next(_unique)
        self.tables[f"{number:09}.sst"] = json.dumps({"number": number, "changes": changes}).encode()


def state_of(files: Files) -> State:
    """What a model shard that has these files holds."""
    state: State = {}
    for name in sorted(name for name in files if name.endswith(".sst")):
        state |= {int(key): value for key, value in json.loads(files[name])["changes"].items()}
    return state


# --- state hosts --------------------------------------------------------------------------------------------


@attrs.define(eq=False)
class Task:
    """An order that a host carries out, and what it has of it."""

    accepted: AcceptedOrder
    taken: dict[ShardKey, Files] = attrs.field(factory=dict)
    terms: dict[ShardKey, int] = attrs.field(factory=dict)
    error: ChandyError | None = None


class HeldError(Exception):
    """The next batch of a query waits for a shard that is being handed over."""


class Host:
    """The decisions of a state host, as the product makes them, without threads and network."""

    def __init__(self, life: Life, name: str) -> None:
        self.life, self.name = life, name
        self.mailbox: deque[Order] = deque()
        self.shards: dict[tuple[str, ShardId], Any] = {}
        self.aside: dict[tuple[str, ShardId], tuple[int, Any]] = {}
        """With the term in which each could be served."""
        self.arriving: dict[int, tuple[OpenAhead, Any, int]] = {}
        """By move the shard, and the last batch that it has."""
        self.standing: dict[int, tuple[OpenAhead, Any]] = {}
        """The standbys in sync."""
        self.given_up: set[int] = set()
        """Copies that have ended before they were shards."""
        self.forwarding: Any = Forwarding(name, self, self)  # type: ignore[arg-type]
        self.orders = SnapshotOrders()
        self.bases = SnapshotBases()
        self.tasks: dict[AcceptedOrder, Task] = {}
        self.answers: dict[str, tuple[int, tuple[SnapshotOrder, ...]]] = {}

    def begin(self, query_id: str, batch: int, shard: ShardId) -> Host:
        """Make a shard ready for a batch; return the host that has it."""
        orders = self.ask(query_id, batch)
        for order in orders:
            self.accept(order)
        if (query_id, shard) not in self.shards:
            elsewhere = self.claim(query_id, shard)
            if elsewhere is not None:
                return self.life.hosts[elsewhere].begin(query_id, batch, shard)
        self.ready(orders, batch, query_id, shard)
        return self

    def claim(self, query_id: str, shard: ShardId) -> str | None:
        """Make a shard this host's, or return who has it."""
        aside = self.aside.get((query_id, shard))
        terms = {} if aside is None else {shard.shard: aside[0]}
        answer = self.life.receive(ClaimShards(self.name, query_id, shard.uid, (shard.shard,), terms))
        if shard.shard in answer.elsewhere:
            return answer.elsewhere[shard.shard]
        if shard.shard in answer.kept:
            self.keep(query_id, shard)
        else:
            self.open(query_id, shard, answer.granted[shard.shard], answer.resume_point)
            self.shards[query_id, shard].term = answer.terms.get(shard.shard, 1)
        return None

    def keep(self, query_id: str, shard: ShardId) -> None:
        term, kept = self.aside.pop((query_id, shard))
        kept.term = term
        self.shards[query_id, shard] = kept

    # --- moves

    def hand_over(
        self, order: OpenAhead, after: int, cut: int | None, standby: ShardStandby | None = None
    ) -> HandedOver:
        """What another host gets that this host's shard moves to, or that gets its standby."""
        key = order.query_id, order.shard
        aside = self.aside.get(key)
        here = self.shards.get(key) or (aside[1] if aside else None)
        if here is None or here.term != order.owner_term:
            raise ShardMissingError(str(order.shard), self.name)
        found: HandedOver = here.hand_over(after, cut, standby)
        if cut is not None and key in self.shards:
            self.aside[key] = here.term, self.shards.pop(key)
        return found

    def open_ahead(self, order: OpenAhead) -> Iterator[None]:
        yield
        try:
            files = self.life.files(order.source.root, order.source.handle)
        except AssertionError:
            # Retention was faster.
            self.life.reports.append(CopyReport(self.name, order.copy_id, CopyStep.FAILED))
            return
        shard = self.logged(order.query_id, order.shard, files, order.source.batch)
        yield
        self.arriving[order.copy_id] = order, shard, order.source.batch
        if self.pull(order.copy_id, None) is None:
            return
        if order.standby_at is not None:
            yield
            if not self.join(order):
                return
        self.life.reports.append(CopyReport(self.name, order.copy_id, CopyStep.OPENED))

    def join(self, order: OpenAhead) -> bool:
        """Become a standby, unless that was given up."""
        if order.copy_id not in self.arriving:
            return False
        _, shard, after = self.arriving.pop(order.copy_id)
        try:
            owner = self.life.hosts[order.owner]
            shard.join(owner.hand_over(order, after, None, ShardStandby(order.copy_id, self.name)))
        except (KeyError, ChandyError) as error:
            self.life.reports.append(CopyReport(self.name, order.copy_id, CopyStep.FAILED, why=str(error)))
            return False
        self.standing[order.copy_id] = order, shard
        return True

    def pull(self, move: int, cut: int | None) -> int | None:
        order, shard, after = self.arriving[move]
        try:
            owner = self.life.hosts[order.owner]
            found = owner.hand_over(order, after, cut)
        except (KeyError, ChandyError) as error:
            self.life.reports.append(CopyReport(self.name, move, CopyStep.FAILED, why=str(error)))
            return None
        if cut is None:
            shard.replay(found.batches)
        else:
            shard.take_over(found.batches, found.position)
        self.arriving[move] = order, shard, max([after, *(batch for batch, _ in found.batches)])
        return found.position

    def take_over(self, order: TakeOver) -> Iterator[None]:
        yield
        if order.copy_id in self.arriving and self.pull(order.copy_id, order.cut) is not None:
            yield
            if order.copy_id in self.arriving:
                opened, shard, _ = self.arriving.pop(order.copy_id)
                self.aside[opened.query_id, opened.shard] = order.term, shard
                key = ShardKey(opened.query_id, opened.shard.uid, opened.shard.shard)
                self.bases.add_restored(key, opened.source)
                self.life.reports.append(CopyReport(self.name, order.copy_id, CopyStep.TAKEN, order.term))

    # --- standbys

    def forward(self, address: str, request: Forward, changes: Mapping[int, State]) -> None:
        """As ``Peers``: have a standby on another host follow."""
        other = self.life.process(address)
        if other is None or (self.name, address) in self.life.cut:
            raise HostLostError(address, "no answer")
        for number, one in request.shards.items():
            if one.copy_id not in other.standing:
                raise CopyGivenUpError(one.copy_id)
            other.standing[one.copy_id][1].follow(request.batch, one.position, changes.get(number, {}))

    def send(self, message: Message[Reply]) -> Reply:
        """As ``Control``."""
        if (self.name, "coordinator") in self.life.cut:
            raise CoordinatorLostError("coordinator", "no answer")
        return self.life.receive(message)

    def promote(self, order: Promote) -> Iterator[None]:
        yield
        if order.copy_id in self.standing:
            opened, shard = self.standing.pop(order.copy_id)
            shard.promote(order.cut)
            self.aside[opened.query_id, opened.shard] = order.term, shard
            self.bases.add_restored(
                ShardKey(opened.query_id, opened.shard.uid, opened.shard.shard), opened.source
            )
            self.life.reports.append(CopyReport(self.name, order.copy_id, CopyStep.TAKEN, order.term))

    def logged(self, query_id: str, shard: ShardId, files: Files, position: int) -> Any:
        """A shard whose changes this host keeps for others on the same machine."""
        opened = self.life.world.shard(files, position)
        opened.log = self.life.world.left[self.name, query_id, shard] = {}
        return opened

    def reopen(self, order: Reopen) -> Iterator[None]:
        """Open the shard of a lost host, once that has ended."""
        yield
        if order.lost in self.life.zombies:
            del self.life.zombies[order.lost]
            yield
        source = order.source
        log = self.life.world.left.get((order.lost, order.query_id, order.shard), {})
        wanted = range(order.after + 1, order.cut + 1)
        if not set(wanted) <= set(log):
            self.life.reports.append(CopyReport(self.name, order.copy_id, CopyStep.FAILED, why="no record"))
            return
        files = self.life.files(source.root, source.handle) if source else {}
        shard = self.logged(order.query_id, order.shard, files, source.batch if source else -1)
        newest = max(log, default=order.cut)
        staged = (newest, log[newest]) if newest > order.cut else None
        shard.reopen([(batch, log[batch]) for batch in wanted], staged, order.begun)
        shard.log |= log
        yield
        if order.copy_id in self.given_up:
            shard.close()
            return
        self.aside[order.query_id, order.shard] = order.term, shard
        if source is not None:
            self.bases.add_restored(ShardKey(order.query_id, order.shard.uid, order.shard.shard), source)
        self.life.reports.append(CopyReport(self.name, order.copy_id, CopyStep.TAKEN, order.term))

    def end_standby(self, order: EndStandby) -> None:
        self.given_up.add(order.copy_id)
        for known in (self.standing, self.arriving):
            if order.copy_id in known:
                known.pop(order.copy_id)[1].close()  # type: ignore[attr-defined]
                return
        here = self.shards.get((order.query_id, order.shard))
        _, aside = self.aside.get((order.query_id, order.shard), (0, None))
        if (here or aside) is not None:
            (here or aside).end_standby(order.copy_id)

    def settle(self, order: Settle) -> None:
        key = order.query_id, order.shard
        for move, (opened, shard, _) in list(self.arriving.items()):
            if (opened.query_id, opened.shard) == key:
                del self.arriving[move]
                shard.close()
        if key in self.aside:
            if (order.owner, order.term) == (self.name, self.aside[key][0]):
                self.keep(*key)
            else:
                self.aside.pop(key)[1].close()

    def ready(self, orders: tuple[SnapshotOrder, ...], batch: int, query_id: str, shard: ShardId) -> None:
        """First the snapshots ahead of the batch, then the batch."""
        opened = [found for (known, _), found in self.shards.items() if known == query_id]
        self.check_together(opened, batch - 1)
        for order in orders:
            self.take(self.accept(order), ShardKey(query_id, shard.uid, shard.shard))
        self.shards[query_id, shard].begin(batch)

    @staticmethod
    def check_together(shards: list[Any], upto: int) -> None:
        check_together({str(number): shard.reached(upto) for number, shard in enumerate(shards)}, upto)

    def ask(self, query_id: str, batch: int) -> tuple[SnapshotOrder, ...]:
        newest, known = self.answers.get(query_id, (-1, ()))
        if newest == batch:
            return known
        answer = self.life.ask(AskBatch(self.name, query_id, batch))
        if batch > newest:
            self.answers[query_id] = batch, answer
        return answer

    def open(
        self, query_id: str, shard: ShardId, source: RestoreSource | None, resume_point: ResumePoint | None
    ) -> None:
        files = self.life.files(source.root, source.handle) if source else {}
        if source is not None and not self.life.world.cached:
            self.life.handle(on.ShardsRead(query_id, (shard,)))
        opened = self.logged(query_id, shard, files, source.batch if source else -1)
        self.shards[query_id, shard] = opened
        changelogs = self.life.world.changelogs
        changelogs[query_id, shard] = {}
        if resume_point is not None:
            earlier = changelogs[resume_point.query_id, shard]
            opened.replay([(b, earlier[b]) for b in range(resume_point.after + 1, resume_point.batch + 1)])
            changelogs[query_id, shard] |= earlier
        if source is not None:
            self.bases.add_restored(ShardKey(query_id, shard.uid, shard.shard), source)

    def accept(self, order: SnapshotOrder) -> Task:
        accepted = self.orders.accept(order)
        return self.tasks.setdefault(accepted, Task(accepted))

    @property
    def open_tasks(self) -> list[Task]:
        return [task for task in self.tasks.values() if task.accepted.is_open]

    def take(self, task: Task, key: ShardKey) -> None:
        if not task.accepted.begin(key):
            return
        try:
            known = ShardId(key.uid, key.shard)
            _, aside = self.aside.get((key.query_id, known), (0, None))
            shard = self.shards.get((key.query_id, known), aside)
            if shard is None:
                raise ShardMissingError(str(key), self.name)
            cut = task.accepted.order.cut
            task.taken[key] = shard.checkpoint(cut, known in task.accepted.order.follow)
            if self.life.world.repeats:
                task.taken[key][REPEATED] = json.dumps({"number": cut % 3, "changes": {}}).encode()
            task.terms[key] = shard.term if shard is not aside else self.aside[key.query_id, known][0]
        except ChandyError as error:
            task.error = task.error or error

    def store(self, task: Task) -> None:
        """The asynchronous part: upload, then acknowledge or decline."""
        accepted, order = task.accepted, task.accepted.order
        for key in accepted.shards:
            self.take(task, key)
        if task.error is not None:
            if accepted.fail():
                message = Decline(self.name, order.checkpoint, order.query_id, str(task.error))
                self.life.messages.append(message)
            return
        stored = put_files(
            self.life.world.open(order.root),
            order.checkpoint,
            f"{self.name}-{order.query}",
            {str(key): files for key, files in task.taken.items()},
            {str(key): self.bases.base(key, order) for key in task.taken},
        )
        snapshots = tuple(
            ShardSnapshot(
                ShardId(key.uid, key.shard), stored[str(key)], 1, 0.0, 0.0, 0.0, task.terms[key], entries=1
            )
            for key in accepted.shards
        )
        if accepted.succeed():
            self.bases.add_stored(order, snapshots)
            self.life.messages.append(Ack(self.name, order.checkpoint, order.query_id, snapshots))

    def obey(self, order: Order) -> None:
        match order:
            case SnapshotOrder():
                self.accept(order)
            case AbortOrder(checkpoint):
                self.orders.abort(checkpoint)
                self.bases.abort(checkpoint)
            case CompleteOrder(checkpoint):
                self.bases.complete(checkpoint)
                for key, cut in self.orders.included(checkpoint):
                    shard = ShardId(key.uid, key.shard)
                    changelog = self.life.world.changelogs.get((key.query_id, shard), {})
                    left = self.life.world.left.get((self.name, key.query_id, shard), {})
                    for known in (changelog, left):
                        for batch in [batch for batch in known if batch <= cut]:
                            del known[batch]
            case OpenAhead():
                self.life.moving.append(self.open_ahead(order))
            case TakeOver():
                self.life.moving.append(self.take_over(order))
            case Promote():
                self.life.moving.append(self.promote(order))
            case Reopen():
                self.life.moving.append(self.reopen(order))
            case EndStandby():
                self.end_standby(order)
            case Settle():
                self.settle(order)
            case ReleaseOrder(query_id):
                for number in [n for n, (one, _) in self.standing.items() if one.query_id == query_id]:
                    self.standing.pop(number)[1].close()
                for key in [key for key in self.aside if key[0] == query_id]:
                    self.aside.pop(key)[1].close()
                released = [key for key in self.shards if key[0] == query_id]
                for key in released:
                    self.shards.pop(key).close()
                self.bases.forget([ShardKey(known, shard.uid, shard.shard) for known, shard in released])


# --- Spark --------------------------------------------------------------------------------------------------


@attrs.define
class Run:
    """One life of a query under Spark, with its working directory and its sink."""

    query: str
    query_id: str
    ends: dict[int, int]
    """By batch the offset at which it ends: the offset log."""
    committed: int
    sunk: int
    """The newest batch whose output can be read; it is readable before the batch has committed."""
    number: int
    stands: bool = False
    resumed: ResumePoint | None = None
    """Where it resumed; None: it came from a checkpoint."""
    done: set[ShardId] = attrs.field(factory=set)
    """Shards for which a task of the running batch has succeeded."""

    @property
    def planned(self) -> int:
        return max(self.ends)

    @property
    def start(self) -> int:
        return self.ends[self.planned - 1]

    @property
    def end(self) -> int:
        return self.ends[self.planned]


@attrs.frozen
class Attempt:
    """A task that has begun its batch and has not applied its changes."""

    run: Run
    batch: int
    held: tuple[tuple[Host, ShardId], ...]


# --- the driver ---------------------------------------------------------------------------------------------


class WatchedMachine(StrictStateMachine):
    """Keeps what it was told and has answered, and has a life look at it after each event."""

    watcher: Life | None = None

    @override
    def handle(self, event: on.Event[on.Answer], now: float) -> Outcome[on.Answer]:
        if self.watcher is None:
            return super().handle(event, now)
        events, outcomes = self.watcher.events, self.watcher.outcomes_of_events
        events.append(LoggedEvent(len(events), now, event))
        # An event that is refused has no outcome.
        outcomes.append(None)
        committed = {name: query.committed for name, query in self.queries.items()}
        try:
            outcome = super().handle(event, now)
        except Exception:
            assert not self._out, "a refused event has led to instructions"
            assert committed == {name: query.committed for name, query in self.queries.items()}
            raise
        outcomes[-1] = outcome
        self.watcher.look(event, outcome)
        return outcome


class Life(SteppedExecutor):
    """One life of a coordinator, with the queries and the hosts that belong to it."""

    def __init__(self, world: World, restore: str, left: Life | None = None) -> None:
        """``left`` is the life before, if that was killed on this machine."""
        self.world = world
        catalog = Catalog(world.open(ROOT))
        first = 1 if restore == "latest" else read_savepoint(world.open(restore)).id + 1
        started = catalog.take_over("driver", world.now, first)
        root = ROOT if restore == "latest" else restore
        point = catalog.latest() if restore == "latest" else read_savepoint(world.open(restore))
        self.initial = self.point = RestorePoint(point, root) if point else None
        self.found = {manifest.id for manifest in catalog.completed()}
        limits = limits_of(
            interval="10 s",
            interval_during_backlog="30 s",
            initial_delay=10.0,
            retained=2,
            max_concurrent=3,
            tolerable_failures=1,
            timeout="30 s",
            savepoint_timeout="60 s",
            max_queued=20,
        )
        completed = tuple(catalog.completed())
        base = point.id if point and root == ROOT else None
        self.new_machine = lambda: WatchedMachine(
            pipeline="pipeline",
            generation=started.generation,
            root=ROOT,
            limits=limits,
            next_id=started.next_id,
            completed=completed,
            base=base,
        )
        self.is_dispatching = False
        self.events: list[LoggedEvent] = []
        self.outcomes_of_events: list[Outcome[Any] | None] = []
        super().__init__(self.new_machine(), catalog)
        self.machine.watcher = self
        self.fails_late = False
        """Whether the driver cannot read its files after a cut was chosen."""
        self.messages: list[Ack | Decline] = []
        self.reports: list[CopyReport] = []
        """What the targets of moves say, on its way."""
        self.moving: list[Iterator[None]] = []
        """What they do."""
        self.owned: dict[tuple[str, ShardId, int], str] = {}
        """By run, shard and term its one owner."""
        self.hosts: dict[str, Host] = {}
        self.zombies: dict[str, Host] = {}
        """Hosts that live although the coordinator has lost them."""
        self.cut: set[tuple[str, str]] = set()
        """Who does not reach whom."""
        self.runs: dict[str, Run] = {}
        self.attempts: list[Attempt] = []
        self.answers: dict[tuple[str, int], set[int]] = {}
        self.cuts: dict[tuple[int, str], int] = {}
        self.recovery = RecoveryStateMachine(FixedDelay("0 s", attempts=10**9).tracker(), lambda: 0.5)
        self.round = 0
        self.unread: dict[str, set[FileRef]] = {}
        """By Spark's id of a run the files that its shards were restored with, and that nobody has read since."""
        self.recorded: dict[str, int] = {}
        """By Spark's id of a run the round that its record has; a later life resumes no other."""
        self.superseded: list[Run] = []
        self.triggered = 0
        self.asked: list[Request] = []
        for executor in ("a", "b"):
            self.join(executor)
        resumable: Mapping[str, Resumable] = {}
        if left is not None and restore == "latest":
            record = left.record()
            if not misfit(record, generation=started.generation, point=self.point, boot=record.boot):
                resumable = self.resumable(left.recorded_runs, self.point, leftover=True)
        self.base = base_of(self.point)
        for query in SHARDS:
            self.restore(query, self.point, resumable.get(query))

    # --- events and instructions ----------------------------------------------------------------------------

    def handle(self, event: on.Event[on.Answer]) -> on.Answer:
        answer = super().handle(event)
        self.dispatch_all()
        return answer

    def work(self, works: MutableSequence[Work], number: int) -> None:
        super().work(works, number)
        self.dispatch_all()

    def dispatch_all(self) -> None:
        # What is handed on may lead to an event, whose instructions are then handed on afterwards.
        while self.instructions and not self.is_dispatching:
            self.is_dispatching = True
            try:
                self.dispatch()
            finally:
                self.is_dispatching = False

    def look(self, event: on.Event[Any], outcome: Outcome[Any]) -> None:
        """Look at what has become of an event."""
        self.check_owners()
        if isinstance(outcome.answer, Request):
            self.asked.append(outcome.answer)
        if isinstance(event, on.CutChosen):
            first = self.world.cut_by.setdefault(event.checkpoint, self.machine.generation)
            assert first == self.machine.generation, "two lives take a checkpoint with the same id"

    def check_owners(self) -> None:
        """A term of a shard has one owner, and the host that has a shard takes its snapshot, it alone."""
        for query in self.machine.queries.values():
            owners = query.assignment._owners
            for shard, owned in owners.items():
                first = self.owned.setdefault((query.query_id, shard, owned.term), owned.host)
                assert first == owned.host, "a term has two owners"
            for pending in self.machine.checkpoints.pending.values():
                if (part := pending.parts.get(query.name)) is None or part.wanted is None:
                    continue
                ordered = [shard for order in part.orders.values() for shard in order.shards]
                assert len(ordered) == len(set(ordered)), "a checkpoint takes a shard twice"
                for host, order in part.orders.items():
                    for shard in part.wanted & set(order.shards) & owners.keys():
                        assert owners[shard].host == host, "a checkpoint does not take a shard where it is"

    @property
    def unanswered(self) -> list[Request]:
        return [request for request in self.asked if request not in self.outcomes]

    def decide(self, event: decisions.Event) -> None:
        """Let something happen to the queries, and do what cannot wait for the end of the delay."""
        self.decided(event)

    def decided(self, event: decisions.Event) -> decisions.Decision:
        """Return the decision about an event, once the protocol has been told of what it changes."""
        before, decision = self.recovery.life, self.recovery.handle(event, self.world.tick())
        if self.recovery.life is not before:
            self.handle(on.LifeChanged(self.recovery.life))
        return decision

    def check_replay(self) -> None:
        """The same events lead to the same outcomes and to the same state."""
        machine = self.new_machine()
        assert replay(machine, self.events) == self.outcomes_of_events
        assert machine == self.machine

    # --- what the jobs and the dispatcher ask ---------------------------------------------------------------

    def tick(self) -> float:
        return self.world.tick()

    def open(self, uri: str) -> Store:
        return self.world.open(uri)

    def begun(self, query: str) -> int:
        return self.runs[query].planned

    def current_batch(self, query: str) -> int | None:
        run = self.runs[query]
        if self.fails_late and self.at_work is not None:
            pending = self.machine.checkpoints.pending.get(self.at_work.job.instruction.checkpoint)
            # It looks at the queries once more, and may not be able to.
            if pending is None or pending.phase is not PendingPhase.PLANNING:
                raise UnreadableError("unreadable")
        return run.committed if run.stands else None

    def is_committed(self, query: str, batch: int) -> bool:
        return self.runs[query].committed >= batch

    @contextlib.contextmanager
    def hold(self, query: str, batch: int) -> Iterator[Mapping[str, Path]]:
        run = self.runs[query]
        if run.committed < batch:
            # The query has gone back meanwhile, and with it its directory.
            raise OSError("not in the directory")
        with tempfile.NamedTemporaryFile(dir=MEMORY) as offsets:
            offsets.write(json.dumps(run.ends[batch]).encode())
            offsets.flush()
            yield {"offsets": Path(offsets.name)}

    def channels(self, manifest: Manifest) -> tuple[ChannelRecord, ...]:
        # The manifest has just been made.
        if self.is_unverified(manifest):
            self.world.unverified.add((manifest.generation, manifest.id))
        return ()

    def send(self, host: str, order: Order) -> None:
        if isinstance(order, SnapshotOrder):
            cut = self.cuts.setdefault((order.checkpoint, order.query_id), order.cut)
            assert cut == order.cut, "two shards have different cuts"
        if host in self.hosts:
            self.hosts[host].mailbox.append(order)

    def submit(self, lane: JobLane, root: str, job: Job) -> None:
        if isinstance(choose := job.instruction, do.ChooseCut):
            assert choose.checkpoint > self.triggered, "an id is used again"
            self.triggered = choose.checkpoint
        if isinstance(job.instruction, do.Discard):
            self.world.check_retention(job.instruction, self.machine.limits.retained)
        super().submit(lane, root, job)

    def resolve(self, order: do.Resolve) -> None:
        super().resolve(order)
        self.world.announce(self, order.manifest, order.root)

    def state_lost(self, why: str) -> None:
        self.decide(decisions.HostLost(why, self.world.tick()))

    def must_fail(self, error: ChandyError) -> None:
        self.decide(decisions.CheckpointsFailed(error, self.world.tick()))

    def fenced(self, error: FencedError) -> None:
        self.handle(FAILED)

    def shards_not_opened(self, query_id: str, why: str, code: object = None) -> None:
        assert self is not self.world.life, f"what was restored is damaged: {why}"

    def hangs(self, work: Work) -> bool:
        return work.lane is JobLane.MANIFESTS and self.world.open(work.root).hangs

    def is_unverified(self, manifest: Manifest) -> bool:
        """Whether a checkpoint has bytes that were restored, and that nobody has read since."""
        unread = {file for run in self.runs.values() for file in self.unread[run.query_id]}
        return any(
            file in unread
            for operator in manifest.operators
            for handle in operator.shards
            if handle is not None
            for file in handle.files
        )

    def settle(self) -> None:
        while self.manifests:
            if not self.ready(self.manifests):
                raise StoreDownError
            self.work(self.manifests, 0)

    def files(self, root: str, handle: Handle) -> Files:
        """Restore from the store, or from a cache. A zombie has one: what it needs, its successor may have dropped."""
        store = self.world.open(root)
        try:
            if self in self.world.lives[:-1]:
                return get_files(store.deleted | store.objects, handle)
            return get_files(store.objects, handle) if self.world.cached else read_files(store, handle)
        except (KeyError, ObjectMissingError) as error:
            raise AssertionError(f"a restore does not find {error}") from error

    # --- hosts ----------------------------------------------------------------------------------------------

    def join(self, executor: str) -> None:
        """A host on a machine with the name of its executor."""
        name = f"{executor}{next(_unique)}"
        for old in [host for host in self.hosts if host[0] == executor]:
            del self.hosts[old]
        self.hosts[name] = Host(self, name)
        self.handle(on.HostJoined(self.hello(name)))

    def hello(self, name: str) -> HostHello:
        """What a host says of itself."""
        disk = f"disk of {name[0]}" if self.world.hosts_keep_changelogs else None
        return HostHello(name, name, name[0], name[0], 1, changelogs=disk)

    def lose(self, name: str, *, is_silent: bool = False) -> None:
        """Have the driver notice that a host is gone."""
        self.handle(on.HostLeft(self.hello(name), is_silent))

    def process(self, name: str) -> Host | None:
        """A host that lives, whatever the coordinator knows of it."""
        return self.hosts.get(name) or self.zombies.get(name)

    def ask(self, ask: AskBatch) -> tuple[SnapshotOrder, ...]:
        answer = self.connected.ask_once(ask)
        self.dispatch_all()
        if answer is None:
            raise HeldError
        assert self is self.world.life, "a batch has begun although there is a successor"
        ahead = {order.checkpoint for order in answer.orders}
        first = self.answers.setdefault((ask.query_id + ask.host, ask.batch), ahead)
        # Those that have ended may be missing from a later answer.
        assert ahead <= first, "the answer for a batch has changed"
        assert first - ahead <= first - set(self.machine.checkpoints.pending), (
            "the answer for a batch has changed"
        )
        return answer.orders

    def receive(self, message: Message[Reply]) -> Reply:
        answer: Reply = self.connected.handlers[type(message)](message)  # type: ignore[assignment]
        self.dispatch_all()
        return answer

    # --- queries --------------------------------------------------------------------------------------------

    def record(self) -> RunRecord:
        """What the driver leaves of its queries if it is killed."""
        return RunRecord(ROOT, self.machine.generation, self.round, self.base, "boot", "", "", (), None)

    @property
    def recorded_runs(self) -> dict[str, Run]:
        """The runs whose records are there, of the newest round alone."""
        newest = max(self.recorded.values(), default=0)
        return {query: run for query, run in self.runs.items() if self.recorded.get(run.query_id) == newest}

    def resumable(
        self, runs: Mapping[str, Run], point: RestorePoint | None, leftover: bool = False
    ) -> Mapping[str, Resumable]:
        """As ``LocalRecovery``: by query the run that it resumes, if all of them can."""
        if len(runs) < len(SHARDS):
            return {}
        found = resume.resume_points(
            {query: self.candidate(run, point, leftover) for query, run in runs.items()}
        )
        return {
            query: (where, runs[query]) for query, where in found.items() if isinstance(where, ResumePoint)
        }

    def candidate(self, run: Run, point: RestorePoint | None, leftover: bool) -> resume.Candidate:
        restored = point.batch(run.query) if point else -1
        wanted = set(range(restored + 1, run.committed + 1))
        changelogs = [self.world.changelogs.get((run.query_id, shard), {}) for shard in shards_of(run.query)]
        return resume.Candidate(
            run.query_id,
            restored=restored,
            committed=run.committed,
            obstacle=None if all(wanted <= set(one) for one in changelogs) else NotResumable("has a gap"),
            resumed_at=run.resumed.batch if run.resumed and not leftover else None,
        )

    def restore(self, query: str, point: RestorePoint | None, resumed: Resumable | None = None) -> None:
        record = next((q for q in point.manifest.queries if q.name == query), None) if point else None
        batch, end = -1, 0
        sources: dict[ShardId, RestoreSource] = {}
        restored: tuple[OperatorRecord, ...] = ()
        operators = (OperatorRecord(uid_of(query), query, "{}", {}, (None,) * SHARDS[query]),)
        if point is not None and record is not None:
            batch, end = record.batch, json.loads(self.files(point.root, record.files)["offsets"])
            restored, sources = point.operators(query, operators), point.sources(query)
        query_id, number = f"{query}-{next(_unique)}", next(_unique)
        stands = query in self.runs and self.runs[query].stands
        run = Run(query, query_id, {batch: end}, batch, batch, number, stands)
        resume_point = None
        if resumed is not None:
            where, before = resumed
            if where.needs_changelogs:
                restored, resume_point = operators, where
            run = attrs.evolve(
                before,
                query_id=query_id,
                number=number,
                ends=dict(before.ends),
                stands=stands,
                resumed=where,
                done=set(),
            )
        added = on.QueryAdded(
            query,
            query_id,
            batch=run.committed,
            operators=operators,
            restored=restored,
            sources=sources,
            reads=READS[query],
            resume_point=resume_point,
        )
        self.unread[query_id] = {file for source in sources.values() for file in source.handle.files}
        self.handle(added)
        self.runs[query] = run
        self.recorded[query_id] = self.round
        started = decisions.RunStarted(query, number, query_id, resume_point is not None)
        self.decided(started)

    # --- failures -------------------------------------------------------------------------------------------

    @property
    def lost(self) -> bool:
        """Whether the pipeline must go back."""
        return self.recovery.must_go_back

    def task_failed(self, run: Run, error: ChandyError) -> None:
        """A task has failed so often that its query fails."""
        codes = frozenset({error.code}) if error.code else frozenset()
        failure = decisions.Failure(QueryFailedError(run.query, str(error)), codes)
        self.decide(decisions.RunEnded(run.query, run.number, failure, self.world.tick()))

    def recover(self, fails_at: str = "", checked: bool = False) -> None:
        """Do what is decided once the restart delay is over, as ``Supervisor`` does.

        Args:
            fails_at: the step back that fails.
            checked: whether it was checked just before that there is no successor.
        """
        decision = self.decided(decisions.DelayOver())
        match decision:
            case decisions.RestartInPlace(queries):
                for query in queries:
                    run = self.runs[query]
                    run.number = next(_unique)
                    run.done.clear()
                    started = decisions.RunStarted(query, run.number, run.query_id)
                    self.decided(started)
                    self.decided(decisions.RestartedInPlace(query))
            case decisions.RollBack() as back:
                try:
                    rollback.go_back(Rollback(self, fails_at, checked), resume=back.resume)
                except FencedError as error:
                    self.decided(decisions.RestartFailed(error, final=True))
                    self.handle(FAILED)
                except StoreDownError as error:
                    self.decide(decisions.RestartFailed(error, final=False))
                else:
                    self.decided(decisions.WentBack())

    # --- stopping -------------------------------------------------------------------------------------------

    def stop(self, target: str) -> Request:
        """As ``CheckpointCoordinator.stop`` with a savepoint, up to where it waits for that."""
        self.decide(decisions.StopRequested())
        for query, run in self.runs.items():
            run.stands = True
            self.decided(decisions.RunStopped(query, run.number))
            self.handle(on.QueryStopped(query, run.committed))
        return self.handle(on.CheckpointRequested(CheckpointKind.SAVEPOINT, target, is_final=True))

    def go_on(self) -> None:
        """The savepoint has failed: the queries run again, or are about to."""
        for run in self.runs.values():
            run.stands = False
        if not self.recovery.must_go_back:
            for query, run in self.runs.items():
                run.number = next(_unique)
                started = decisions.RunStarted(query, run.number, run.query_id)
                self.decided(started)
        self.decided(decisions.StopWithdrawn())

    def plan(self, run: Run, size: int) -> None:
        if run.planned > run.committed:
            return
        start = run.ends[run.planned]
        limit = [self.runs[producer].ends[self.runs[producer].sunk] for producer in READS[run.query]]
        run.ends[run.planned + 1] = max(start, min([start + size, *limit]))
        run.done = set()

    def begin(self, run: Run, shards: tuple[ShardId, ...], host: int) -> Attempt | None:
        """A task of the running batch begins, on one of the hosts."""
        names = sorted(self.hosts)
        try:
            first = self.hosts[names[host % len(names)]]
            held = tuple((first.begin(run.query_id, run.planned, shard), shard) for shard in shards)
        except (StaleQueryError, ShardMovingError, HeldError, HostDismissedError, FencedError):
            return None
        except (StateLostError, CannotGoBackError, ShardMissingError) as error:
            self.task_failed(run, error)
            return None
        return Attempt(run, run.planned, held)

    def apply(self, attempt: Attempt, heard: bool = True) -> None:
        """A task stages its changes; it may fail right after, so that Spark never hears of its success."""
        run = attempt.run
        start, end = run.ends[attempt.batch - 1], run.ends[attempt.batch]
        for host, shard in attempt.held:
            here = host.shards.get((run.query_id, shard))
            if self.process(host.name) is not host or here is None:
                return
            records = records_of(run.query, shard, start, end)
            changes = {key: here.fetch(key) + new for key, new in records.items()}
            task = BeginTask(run.query_id, attempt.batch, shard.uid, (shard.shard,))
            try:
                host.forwarding.stage(task, {shard.shard: here}, {shard.shard: ModelChanges(changes)})
            except ChandyError:
                return
            self.world.changelogs[run.query_id, shard][attempt.batch] = changes
        if heard and self.runs[run.query] is run and attempt.batch == run.planned:
            run.done.update(shard for _, shard in attempt.held)

    def sink(self, run: Run) -> None:
        # Spark runs the tasks of a batch without rows, too.
        if run.done == set(shards_of(run.query)):
            run.sunk = run.planned

    def batch(self, query: str, size: int, host: int, upto: int = 9, again: bool = False) -> None:
        """Run a batch, or go on with the one that runs, up to the given step; each task twice if so wished."""
        run = self.runs[query]
        if run.stands or self.lost:
            return
        self.plan(run, size)
        if run.planned == run.committed:
            return
        for number, shard in enumerate(shards_of(query)):
            if upto > number and (attempt := self.begin(run, (shard,), host + number)):
                self.apply(attempt)
                if again and (second := self.begin(run, (shard,), host)):
                    self.apply(second)
        if upto > 3:
            self.sink(run)
        if upto > 4 and run.sunk == run.planned:
            run.committed = run.planned

    def notice_commits(self) -> None:
        for query, cut in self.machine.waiting_for_commits().items():
            if self.runs[query].committed >= cut:
                self.handle(on.BatchCommitted(query, cut))

    def quiet(self, hold: str = "") -> None:
        """Let everything that is on its way arrive, but for one kind of thing."""
        while True:
            if "commits" not in hold:
                self.notice_commits()
            if self.messages and "messages" not in hold:
                self.receive(self.messages.pop(0))
            elif self.reports and "moves" not in hold and "messages" not in hold:
                self.receive(self.reports.pop(0))
            elif self.moving and "moves" not in hold and "orders" not in hold:
                self.move(0)
            elif "works" not in hold and self.ready(self.works):
                self.work(self.works, 0)
            elif "manifests" not in hold and self.ready(self.manifests):
                self.work(self.manifests, 0)
            elif "orders" not in hold and (mail := [host for host in self.hosts.values() if host.mailbox]):
                mail[0].obey(mail[0].mailbox.popleft())
            elif open_ := self.open_tasks:
                host, task = open_[0]
                host.store(task)
            else:
                return

    def move(self, number: int) -> None:
        """Let the target of a move take its next step."""
        work = self.moving[number % len(self.moving)]
        if next(work, self) is self:
            self.moving.remove(work)

    @property
    def open_tasks(self) -> list[tuple[Host, Task]]:
        return [(host, task) for host in self.hosts.values() for task in host.open_tasks]


Resumable = tuple[ResumePoint, Run]

STEPS = (
    "stop_runs",
    "suspend_checkpoints",
    "settle_manifests",
    "forget_resumable",
    "restore",
    "release_runs",
)


@attrs.define
class Rollback:
    """The steps back of one life, each of which may fail."""

    life: Life
    fails_at: str
    checked: bool
    _began: bool = False

    def step(self, name: str) -> None:
        if name == self.fails_at:
            raise StoreDownError

    def check_not_fenced(self) -> None:
        if not self.checked:
            self.life.catalog.check_not_fenced(self.life.machine.generation)

    def stop_runs(self) -> None:
        self.step("stop_runs")
        self.life.superseded += self.life.runs.values()

    def suspend_checkpoints(self) -> None:
        self.step("suspend_checkpoints")
        self.life.decide(decisions.GoingBack("state lost", self.life.world.tick()))

    def settle_manifests(self) -> None:
        self.step("settle_manifests")
        self.life.settle()

    def choose_restore_point(self) -> RestorePoint | None:
        life = self.life
        life.point = base_point(life.machine) or life.initial
        life.base = base_of(life.point)
        life.round += 1
        life.decided(decisions.StateGivenUp())
        return life.point

    def find_resumable(self, point: RestorePoint | None) -> Mapping[str, Resumable]:
        return self.life.resumable(self.life.runs, point)

    def forget_resumable(self) -> None:
        self.step("forget_resumable")
        for run in self.life.superseded:
            self.life.recorded.pop(run.query_id, None)

    def queries(self) -> tuple[str, ...]:
        return tuple(SHARDS)

    def restore(self, query: str, point: RestorePoint | None, resumed: Resumable | None) -> None:
        if self._began:
            self.step("restore")
        self._began = True
        self.life.restore(query, point, resumed)

    def release_runs(self) -> None:
        self.step("release_runs")
        self.life.handle(on.Released(tuple(run.query_id for run in self.life.superseded)))

    def resume_checkpoints(self, point: RestorePoint | None) -> None:
        self.life.handle(on.PipelineRestored(point.manifest.id if point else None))

    def start_runs(self) -> None:
        pass

    def clean_up(self) -> None:
        for run in self.life.superseded:
            self.life.recorded.pop(run.query_id, None)
        self.life.superseded.clear()


class ReadStore(TroubledStore):
    """Tells whose bytes somebody has had: read, or written again."""

    def __init__(self, uri: str, world: World) -> None:
        super().__init__(uri)
        self.world = world

    def read(self, key: str, offset: int = 0, length: int | None = None) -> bytes:
        self.world.has_read(key, offset, length)
        return super().read(key, offset, length)

    def write(self, key: str, data: bytes) -> None:
        self.world.has_read(key, 0, None)
        super().write(key, data)


class World:
    """The stores, and the lives of coordinators; all but the newest are zombies."""

    hosts_keep_changelogs = False
    """Whether hosts keep changelogs for others on their machine, as on a cluster."""

    def __init__(self, shard: Callable[[Files, int], Any], state: Callable[[Files], State]) -> None:
        self.shard, self.state = shard, state
        self.stores: dict[str, TroubledStore] = {}
        self.now = 1000.0
        self.announced: dict[int, int] = {}
        """By checkpoint that was announced as completed the generation that did it."""
        self.cut_by: dict[int, int] = {}
        """By checkpoint whose cut was chosen the generation that did it."""
        self.savepoints: list[tuple[Manifest, str]] = []
        self.restored: dict[tuple[str, int, int], bool] = {}
        self.changelogs: dict[tuple[str, ShardId], dict[int, State]] = {}
        """What batches changed, by run and shard: it outlives hosts and drivers."""
        self.left: dict[tuple[str, str, ShardId], dict[int, State]] = {}
        """The same, as hosts keep it for others on their machine, by host, run and shard."""
        self.unverified: set[tuple[int, int]] = set()
        """Checkpoints with bytes that nobody had read since a restore when their manifests were made."""
        self.cached = False
        """Whether hosts find what they restore in their machine's cache, and do not read it in the store."""
        self.repeats = False
        """Whether shards have a table that comes again when the latest checkpoints do not have it any more."""
        self.seen: object = None
        self.lives: list[Life] = []
        self.every_life: list[Life] = []
        self.begin("latest")

    def begin(self, restore: str, left: Life | None = None) -> Life:
        """Another coordinator takes the pipeline over."""
        self.lives.append(Life(self, restore, left))
        self.every_life.append(self.life)
        return self.life

    def open(self, root: str) -> TroubledStore:
        if root not in self.stores:
            self.stores[root] = ReadStore(root, self)
        return self.stores[root]

    def has_read(self, key: str, begin: int, length: int | None) -> None:
        """Note which bytes of what was restored were read in a store."""
        end = begin + length if length is not None else 1 << 62
        for life in self.lives:
            for unread in life.unread.values():
                unread -= {
                    one
                    for one in unread
                    if one.key == key and begin <= one.offset and one.offset + one.size <= end
                }

    def tick(self) -> float:
        self.now += 0.001
        return self.now

    @property
    def life(self) -> Life:
        return self.lives[-1]

    def announce(self, life: Life, manifest: Manifest, root: str) -> None:
        if manifest.kind is CheckpointKind.SAVEPOINT:
            assert read_savepoint(self.open(root)) == manifest
            self.savepoints.append((manifest, root))
            return
        catalog = Catalog(self.open(ROOT))
        durable = manifest_key(manifest.id) in catalog.store.list() and catalog.read(manifest.id) == manifest
        assert durable, "announced before it was durable"
        assert manifest.id not in self.announced, "an id was used twice"
        assert voided_by(manifest.generation, manifest.id, catalog.generations()) is None
        for successor in self.lives[self.lives.index(life) + 1 :] if life in self.lives else ():
            assert manifest.id in successor.found, "two coordinators complete checkpoints"
            break
        self.announced[manifest.id] = manifest.generation

    def check_retention(self, order: do.Discard, retained: int) -> None:
        """No checkpoint that is known whole is given up for one that is not, and there are not too many of those."""
        ids = tuple(manifest.id for manifest in order.dropped)
        kept = self.life.machine.checkpoints.retained.there_besides(ids)
        whole = [m.id for m in kept if (m.generation, m.id) not in self.unverified]
        for manifest in order.dropped:
            if not manifest.unverified:
                newer = [id for id in whole if id > manifest.id]
                assert len(newer) >= retained, (
                    f"{manifest.id} was whole, and whole ones after it are only {newer}"
                )
        machine = self.life.machine
        bases = 1 + machine.limits.max_concurrent
        assert len(machine.checkpoints.retained.manifests) <= max(
            len(self.life.found), 2 * retained + bases
        ), "too many are kept"

    # --- promises -------------------------------------------------------------------------------------------

    def check(self) -> None:
        """The four promises, as far as the store can tell them."""
        retained = [manifest.id for manifest in self.life.machine.checkpoints.retained.manifests]
        seen = [store.version for store in self.stores.values()], retained
        if seen == self.seen:
            return
        self.seen = seen
        catalog = Catalog(self.open(ROOT))
        latest = catalog.latest()
        newest = max(self.announced, default=0)
        assert (latest.id if latest else 0) >= newest, "a completed checkpoint is not the latest"
        # Those that were announced are restored in any case, and what a restart now would restore.
        points = [(manifest, ROOT) for manifest in self.life.machine.checkpoints.retained.manifests]
        points += [(latest, ROOT)] if latest else []
        # A folder with a manifest is a savepoint, also if nobody waited for it any more.
        elsewhere = [(root, store) for root, store in self.stores.items() if MANIFEST in store.objects]
        points += [(read_savepoint(store), root) for root, store in elsewhere]
        for manifest, root in points + self.savepoints:
            self.restore(manifest, root)

    def restore(self, manifest: Manifest, root: str) -> None:
        """A checkpoint restores, to exactly the effect of what lies before its cut."""
        store = self.open(root)
        assert (MANIFEST if root != ROOT else manifest_key(manifest.id)) in store.objects, (
            "a manifest is gone"
        )
        gone = [key for key in sorted(manifest.keys()) if key not in store.objects]
        assert not gone, f"checkpoint {manifest.id} references objects that are gone: {gone}"
        identity = root, manifest.generation, manifest.id
        if identity in self.restored:
            return
        self.restored[identity] = True
        ends = {q.name: json.loads(get_files(store.objects, q.files)["offsets"]) for q in manifest.queries}
        assert set(ends) == set(SHARDS)
        assert ends["totals"] <= ends["orders"], "a query has consumed what its producer has not produced"
        for operator in manifest.operators:
            for number, handle in enumerate(operator.shards):
                found = self.state(get_files(store.objects, handle)) if handle else {}
                expected = records_of(operator.query, ShardId(operator.uid, number), 0, ends[operator.query])
                assert found == expected, f"{operator.uid}/{number} is not the state at the cut"


# --- the machine --------------------------------------------------------------------------------------------


SMALL = st.integers(0, 7)
QUERY = st.sampled_from(list(SHARDS))
BATCHES = st.lists(st.tuples(QUERY, st.integers(0, 4)), min_size=1, max_size=4)
FATES = ["arrives", "arrives", "arrives", "twice", "twice", "doubted", "declined", "lost"]
HOLD = st.sampled_from(
    [
        "",
        "",
        "messages",
        "manifests",
        "messages manifests",
        "messages manifests",
        "works",
        "orders",
        "commits",
    ]
)


class Machine(RuleBasedStateMachine):
    """Whatever can happen, in any order."""

    shard: Callable[[Files, int], Any] = staticmethod(lambda files, position: ModelShard(files, position))
    state: Callable[[Files], State] = staticmethod(lambda files: state_of(files))

    @initialize()
    def start(self) -> None:
        self.world = World(self.shard, self.state)

    def life(self, number: int) -> Life:
        """Mostly the newest life; now and then the one before it, which goes on as if nothing had happened."""
        lives = self.world.lives
        return lives[-2] if number < 2 and len(lives) > 1 else lives[-1]

    # --- batches

    @rule(which=SMALL, batches=BATCHES, host=st.integers(0, 1), again=st.booleans())
    def batches_run(self, which: int, batches: list[tuple[str, int]], host: int, again: bool) -> None:
        for query, size in batches:
            self.life(which).batch(query, size, host, again=again)

    @rule(which=SMALL, query=QUERY, size=st.integers(1, 4), host=st.integers(0, 1), upto=st.integers(0, 4))
    def a_batch_comes_to_a_stop_half_way(
        self, which: int, query: str, size: int, host: int, upto: int
    ) -> None:
        self.life(which).batch(query, size, host, upto)

    @rule(which=SMALL, query=QUERY, host=st.integers(0, 1), first=st.integers(0, 2), apply=st.booleans())
    def another_attempt_begins(self, which: int, query: str, host: int, first: int, apply: bool) -> None:
        life = self.life(which)
        run = life.runs[query]
        if run.planned > run.committed and not run.stands and not life.lost:
            attempt = life.begin(run, shards_of(query)[first:] or shards_of(query), host)
            if attempt is not None and apply:
                life.apply(attempt, heard=False)
            elif attempt is not None:
                life.attempts.append(attempt)

    @precondition(lambda self: self.world.life.attempts)
    @rule(number=SMALL, heard=st.booleans())
    def an_attempt_applies(self, number: int, heard: bool) -> None:
        attempts = self.world.life.attempts
        self.world.life.apply(attempts.pop(number % len(attempts)), heard)

    @rule(query=QUERY, host=st.integers(0, 1), hold=HOLD)
    def an_attempt_outlives_its_batch(self, query: str, host: int, hold: str) -> None:
        life, run = self.world.life, self.world.life.runs[query]
        if run.stands or life.lost:
            return
        life.plan(run, 3)
        if run.planned > run.committed:
            attempt = life.begin(run, shards_of(query), host)
            life.batch(query, 3, host)
            self.asked(life, hold, batches=False)
            if attempt is not None:
                life.apply(attempt)

    @rule(query=QUERY)
    def a_query_fails_and_restarts(self, query: str) -> None:
        """In place, unless state is lost, too."""
        life = self.world.life
        life.task_failed(life.runs[query], StoreDownError())
        life.recover()

    @rule(query=QUERY)
    def a_query_stops_or_is_started_again(self, query: str) -> None:
        life, run = self.world.life, self.world.life.runs[query]
        if run.stands:
            run.stands = False
        elif run.planned == run.committed and not life.lost:
            run.stands = True
            life.handle(on.QueryStopped(query, run.committed))

    # --- checkpoints

    @rule(which=SMALL, busy=st.integers(0, 5), hold=HOLD)
    def a_checkpoint_is_asked_for(self, which: int, busy: int, hold: str) -> None:
        life = self.life(which)
        life.handle(on.CheckpointRequested(CheckpointKind.MANUAL))
        for _ in range(busy):
            life.work(life.works, -1)
            for query in SHARDS:
                life.batch(query, 2, 0)
        life.quiet(hold)

    @rule(chance=SMALL)
    def a_savepoint_is_asked_for(self, chance: int) -> None:
        if chance > 2:
            return
        life = self.world.life
        life.handle(on.CheckpointRequested(CheckpointKind.SAVEPOINT, self.place(chance == 0)))

    def place(self, used: bool) -> str:
        """A place for a savepoint, a new one or one where another savepoint was to go."""
        places = [root for root in self.world.stores if root != ROOT]
        return places[-1] if places and used else f"memory://savepoint/{next(_unique)}"

    @rule(
        between=st.sampled_from(("", "", *STEPS)),
        dies=st.booleans(),
        hold=HOLD,
        chance=SMALL,
        late=st.booleans(),
    )
    def a_pipeline_stops_with_a_savepoint(
        self, between: str, dies: bool, hold: str, chance: int, late: bool
    ) -> None:
        """Between two attempts to go back, or while a host dies, or undisturbed."""
        life = self.world.life
        if chance > 2 or life.recovery.life.error is not None:
            return
        if between:
            self.lose_hosts()
            life.recover(between)
        if not late:
            life.quiet("")
        request = life.stop(self.place(used=False))
        life.quiet(hold)
        if dies:
            self.lose_hosts()
        life.quiet("works" if late else "")
        if life.lost and not self.is_being_written(life, request):
            assert request in life.outcomes, (
                "a stop waits for a pipeline that does not go back before its end"
            )
        if late:
            self.let_time_pass(life)
        life.go_on()
        if between or dies:
            life.recover()

    @staticmethod
    def is_being_written(life: Life, request: Request) -> bool:
        return any(
            one.request == request and one.phase is PendingPhase.FINALIZING
            for one in life.machine.checkpoints.pending.values()
        )

    def lose_hosts(self) -> None:
        life = self.world.life
        for name in list(life.hosts):
            del life.hosts[name]
            life.lose(name)
        life.join("a")
        life.join("b")

    def let_time_pass(self, life: Life) -> None:
        """So much time that whatever was asked for has an outcome: stores that hang go on to do so."""
        for _ in range(10):
            life.quiet()
            self.world.now += 61.0
            life.handle(on.Tick())
        life.quiet()
        assert not life.unanswered, "what was asked for has come to no end"

    @rule(seconds=st.sampled_from([1.0, 11.0, 11.0, 11.0, 31.0, 61.0]))
    def time_passes(self, seconds: float) -> None:
        self.world.now += seconds
        for life in self.world.lives:
            life.handle(on.ScheduleStarted(0.5))
            life.handle(on.Tick())

    @rule(is_behind=st.booleans())
    def sources_have_more(self, is_behind: bool) -> None:
        for life in self.world.lives:
            life.handle(on.BacklogChanged(is_behind))

    @rule(which=SMALL, number=SMALL, steps=st.integers(1, 4))
    def the_driver_works(self, which: int, number: int, steps: int) -> None:
        life = self.life(which)
        for _ in range(steps):
            life.work(life.works, number)

    @rule(which=SMALL, steps=st.integers(1, 5), doubt=st.booleans())
    def a_manifest_is_written(self, which: int, steps: int, doubt: bool) -> None:
        life = self.life(which)
        life.quiet("manifests")
        for _ in range(steps):
            life.work(life.manifests, 0)
        for checkpoint, query_id in list(life.cuts) if doubt else ():
            # A host whose word has arrived did not hear so, and declines.
            life.receive(Decline("a", checkpoint, query_id, "no answer to my word"))

    @rule(steps=st.integers(1, 4), chance=SMALL)
    def a_checkpoint_is_overdue_while_its_manifest_is_written(self, steps: int, chance: int) -> None:
        """The store has answered some of the calls; the others come when the time is over."""
        life = self.world.life
        if chance > 2:
            return
        self.asked(life, "manifests")
        for _ in range(steps):
            life.work(life.manifests, 0)
        self.world.now += 31.0
        life.handle(on.Tick())
        life.quiet("manifests")
        life.quiet()

    @rule(which=SMALL, steps=st.integers(1, 3))
    def orders_arrive(self, which: int, steps: int) -> None:
        for host in self.life(which).hosts.values():
            for _ in range(min(steps, len(host.mailbox))):
                host.obey(host.mailbox.popleft())

    @rule(which=SMALL, number=SMALL)
    def a_host_stores_its_snapshots(self, which: int, number: int) -> None:
        life = self.life(which)
        if open_ := life.open_tasks:
            host, task = open_[number % len(open_)]
            host.store(task)

    @rule(which=SMALL, fates=st.lists(st.sampled_from(FATES), min_size=1, max_size=5), newest=st.booleans())
    def messages_are_on_their_way(self, which: int, fates: list[str], newest: bool) -> None:
        life = self.life(which)
        if not life.messages:
            self.asked(life, "messages manifests")
        for fate in fates:
            if not life.messages:
                return
            message = life.messages.pop(-1 if newest else 0)
            if fate == "declined":
                # It could not be stored, or it was, and its sender never heard that its word had arrived.
                message = Decline(message.host, message.checkpoint, message.query_id, "the store is full")
            if fate != "lost":
                life.receive(message)
            if fate == "twice":
                life.messages.append(message)
            if fate == "doubted":
                decline = Decline(message.host, message.checkpoint, message.query_id, "no answer to my word")
                life.messages.append(decline)

    @rule(which=SMALL)
    def commits_are_noticed(self, which: int) -> None:
        self.life(which).notice_commits()

    @rule(which=SMALL, hold=HOLD)
    def everything_arrives(self, which: int, hold: str) -> None:
        self.life(which).quiet(hold)

    # --- failures

    @rule(cached=st.booleans())
    def machines_keep_what_they_restore(self, cached: bool) -> None:
        self.world.cached = cached

    @rule(trouble=st.sampled_from(TROUBLES))
    def the_store_fails_at_the_next_manifest(self, trouble: str) -> None:
        self.world.open(ROOT).trouble = trouble

    @rule(number=SMALL, own=st.booleans(), hold=HOLD)
    def a_store_hangs_at_its_manifests(self, number: int, own: bool, hold: str) -> None:
        stores = [store for root, store in self.world.stores.items() if (root == ROOT) is own]
        if stores and number < 3:
            store = stores[number % len(stores)]
            if not own:
                self.world.life.quiet("works")
            store.hangs = True
            self.asked(self.world.life, hold)

    @rule(ends=st.booleans())
    def the_stores_let_go(self, ends: bool) -> None:
        if ends:
            self.let_time_pass(self.world.life)
        for store in self.world.stores.values():
            store.hangs = False

    @rule(asks=st.booleans())
    def a_manifest_lands_late(self, asks: bool) -> None:
        if asks:
            self.world.open(ROOT).trouble = "broken, later"
            self.asked(self.world.life, "")
        for store in self.world.stores.values():
            store.land()

    @rule(fails=st.booleans(), hold=HOLD)
    def the_drivers_files_cannot_be_read(self, fails: bool, hold: str) -> None:
        """After a cut was chosen; the checkpoint may have got far meanwhile."""
        life = self.world.life
        life.fails_late = fails
        if fails:
            life.handle(on.CheckpointRequested(CheckpointKind.MANUAL))
            while life.works and not life.machine.checkpoints.pending.keys() & self.collecting(life):
                life.work(life.works, -1)
            late, life.works = life.works[-1:], life.works[:-1]
            life.quiet("manifests")
            life.works += late
            life.quiet(hold)

    @staticmethod
    def collecting(life: Life) -> set[int]:
        return {
            id
            for id, one in life.machine.checkpoints.pending.items()
            if one.phase is not PendingPhase.PLANNING
        }

    @rule(executor=st.sampled_from("ab"), noticed=st.booleans(), chance=SMALL)
    def a_host_dies_and_another_takes_its_place(self, executor: str, noticed: bool, chance: int) -> None:
        life = self.world.life
        if chance > 2:
            return
        for name in [name for name in life.hosts if name[0] == executor]:
            del life.hosts[name]
            if noticed:
                life.lose(name)
        life.join(executor)

    @rule(query=QUERY, chance=SMALL, asks=st.booleans())
    def all_hosts_die_and_die_again_when_one_query_has_got_further(
        self, query: str, chance: int, asks: bool
    ) -> None:
        life = self.world.life
        if chance > 3 or life.lost:
            return
        for each in SHARDS if asks else ():
            life.batch(each, 3, 0)
        for _ in range(2):
            life.hosts.clear()
            life.join("a")
            life.join("b")
            life.recover()
            life.batch(query, 3, 0)
        if asks:
            self.asked(life, "", batches=False)

    @rule(step=st.sampled_from(STEPS), busy=st.booleans(), chance=SMALL)
    def a_way_back_fails_half_way_and_a_checkpoint_is_asked_for(
        self, step: str, busy: bool, chance: int
    ) -> None:
        life = self.world.life
        if chance > 2 or life.lost:
            return
        if busy:
            self.asked(life, "messages")
        life.hosts.clear()
        life.join("a")
        life.join("b")
        life.recover(step)
        self.asked(life, "", batches=False)

    @precondition(lambda self: self.world.life.lost)
    @rule(fails_at=st.sampled_from(("", "", "", *STEPS)), asks=st.booleans())
    def the_pipeline_goes_back(self, fails_at: str, asks: bool) -> None:
        self.world.life.recover(fails_at)
        # Also half-way back: then nothing may come of it yet.
        if asks:
            self.asked(self.world.life, "", batches=False)

    @rule(which=SMALL, query=QUERY, host=st.integers(0, 1))
    def shards_are_opened_ahead(self, which: int, query: str, host: int) -> None:
        life = self.life(which)
        if life.lost:
            return
        run = life.runs[query]
        first = life.hosts[sorted(life.hosts)[host % len(life.hosts)]]
        for shard in shards_of(query):
            if (run.query_id, shard) not in first.shards:
                try:
                    first.claim(run.query_id, shard)
                except ShardMovingError:
                    continue
                except StateLostError as error:
                    life.task_failed(run, error)
                    return
        life.handle(on.Tick())

    @rule(hold=HOLD, before=HOLD, gives_up=st.booleans(), chance=SMALL)
    def another_coordinator_takes_over_in_a_checkpoint(
        self, hold: str, before: str, gives_up: bool, chance: int
    ) -> None:
        """The old one has got so far with its checkpoint, and goes on when the new one has got so far."""
        if chance > 3:
            return
        zombie = self.world.life
        self.asked(zombie, hold)
        self.world.begin("latest")
        self.asked(self.world.life, before)
        if gives_up:
            # It looked for a successor just before there was one.
            lost = decisions.HostLost("the zombie has lost a host", self.world.tick())
            zombie.decided(lost)
            zombie.recover(checked=True)
        zombie.quiet()
        self.world.life.quiet()

    def asked(self, life: Life, hold: str, batches: bool = True) -> None:
        for query in SHARDS if batches else ():
            life.batch(query, 3, 0)
        life.handle(on.CheckpointRequested(CheckpointKind.MANUAL))
        life.quiet(hold)

    @rule(zombie=st.booleans(), chance=SMALL, savepoint=st.booleans(), hold=HOLD, asks=st.booleans())
    def another_coordinator_takes_over(
        self, zombie: bool, chance: int, savepoint: bool, hold: str, asks: bool
    ) -> None:
        world = self.world
        if chance > 2:
            return
        roots = [root for _, root in world.savepoints]
        restore = roots[-1] if roots and savepoint and chance == 0 else "latest"
        if hold:
            world.life.quiet(hold)
        before = max(world.announced, default=0)
        left = None
        if not zombie:
            left = world.life
            world.lives.clear()
        successor = world.begin(restore, left)
        assert successor.machine.checkpoints.next_id > before, "an id is used again"
        if restore == "latest" and before:
            assert successor.point is not None
            assert successor.point.manifest.id >= before
        if asks:
            self.asked(successor, "", batches=False)

    # --- promises

    @invariant()
    def the_promises_are_kept(self) -> None:
        self.world.check()

    def outcome(self, life: Life) -> Manifest | CheckpointError:
        request = life.handle(on.CheckpointRequested(CheckpointKind.MANUAL))
        assert not any(one.doomed for one in life.machine.checkpoints.pending.values()), (
            "all deletions are over"
        )
        life.quiet()
        return life.outcomes[request]

    def teardown(self) -> None:
        """Whatever has happened, the next checkpoint completes."""
        if not hasattr(self, "world"):
            return
        world, life = self.world, self.world.life
        self.let_time_pass(life)
        for store in world.stores.values():
            store.trouble, store.hangs = None, False
            store.land()
        world.check()
        life.fails_late = False
        life.quiet()
        world.now += 100_000.0
        life.handle(on.Tick())
        life.quiet()
        if life.lost:
            life.recover()
        for query in SHARDS:
            life.runs[query].stands = False
            life.batch(query, 3, 0)
            life.batch(query, 3, 0)
            for _ in range(5):
                # A batch that has met a move goes on when the move is over.
                if life.runs[query].planned > life.runs[query].committed:
                    life.quiet()
                    life.batch(query, 3, 0)
        assert not life.lost, f"{life.recovery.life}"
        outcome = self.outcome(life)
        while isinstance(outcome, CheckpointError) and outcome.reason is Reason.IO_EXCEPTION:
            # A zombie had used the id already; it does nothing more.
            if life.lost:
                life.recover()
            outcome = self.outcome(life)
        assert isinstance(outcome, Manifest), outcome
        world.check()
        for one in world.every_life:
            one.check_replay()
        for host in life.hosts.values():
            for shard in [*host.shards.values(), *(aside for _, aside in host.aside.values())]:
                shard.close()
