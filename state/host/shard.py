"""A shard: an operator's state after a batch, and the changes that are staged for the next one."""

from __future__ import annotations

import shutil
from collections.abc import Generator, Iterable, Sequence
from pathlib import Path
from typing import Final

from ...storage import runtime
from ...storage.checkpoints.manifest import StateKind
from ...storage.ids import NO_BATCH, BatchId
from ..errors import ShardRefusedError
from ..format.parts import part_keys
from ..local.changelog import Changelog
from ..rpc.messages import ShardStandby
from ..rpc.metrics import OperatorMetrics
from ..rpc.wire import HandedOver
from ..shards import FIRST_TERM
from .batches import ShardBatches, StagedChanges
from .cache import MISSING, Value, lookup
from .changes import Changes
from .levels import Levels
from .memory import Memory
from .shard_snapshot import Snapshot
from .tail import Tail

_READS: Final = 3
"""How often to read while batches go on, before they wait."""


class Shard:
    """The state after the last batch that is known to be committed, and at most one batch staged on top of it.

    The changes of a batch are only staged at first. They become part of the state when the next batch begins,
    because only then the batch is known to be committed. So running a batch again costs nothing, and attempts at the
    same batch do not see each other's changes.

    ``ShardBatches`` decides what may happen next, ``Levels`` holds the state, and the changelog keeps the changes
    until a checkpoint has them. All methods may be called from many threads. The lock guards the batches and the
    changelog and is held only briefly; the locks of ``Levels`` are taken inside of it.
    """

    def __init__(
        self,
        name: str,
        directory: Path,
        memory: Memory,
        position: BatchId = NO_BATCH,
        changelog: Changelog | None = None,
    ) -> None:
        """Open a shard in a directory, which may be missing, empty, or hold the files of a snapshot.

        Args:
            name: the shard's name, for error messages and the log.
            directory: where its files are.
            memory: the budget that its memory is charged to.
            position: the last batch that the files are known to contain, if that is later than the last one that
                changed them.
            changelog: keeps the changes of batches until a checkpoint has them; None if they are not kept.
        """
        self.name = name
        self.directory = directory
        self.levels = Levels(name, directory, memory)
        self.term = FIRST_TERM
        """The term in which this host has it."""
        self.standby: ShardStandby | None = None
        """The standby that must have what is staged before the task is told that it is."""
        self.in_order = runtime.lock()
        """Held while an attempt is staged here and at the standby, so that both have staged the same one last."""
        self._memory = memory
        self._changelog = changelog
        self._tail: Tail | None = None
        self._follows = False
        """Whether it is a standby: what commits is added to its state later, because no task reads it."""
        self._committed: tuple[BatchId, Changes] | None = None
        """A standby's last committed batch, until it is added to the state."""
        self._lock = runtime.lock()
        self._batches = ShardBatches(name, max(position, self.levels.changed_by), self._apply)

    @property
    def position(self) -> BatchId:
        """The last batch whose changes are part of the state."""
        return self._batches.position

    @property
    def changed_by(self) -> BatchId:
        """The last batch up to the position that changed anything."""
        return self.levels.changed_by

    @property
    def metrics(self) -> OperatorMetrics:
        """What RocksDB was used for."""
        return self.levels.metrics

    @property
    def memory(self) -> int:
        """Bytes of its state in memory outside of RocksDB: used lately, or not written yet."""
        return self.levels.hot + self.levels.unwritten

    def reached(self, upto: BatchId) -> BatchId:
        """Return the last batch up to ``upto`` that has run to its end here."""
        with self._lock:
            return self._batches.reached(upto)

    # --- a batch --------------------------------------------------------------------------------------------

    def begin(self, batch: BatchId) -> None:
        """Make the shard ready for a batch. Spark runs it only after every earlier one has committed.

        Raises:
            CannotGoBackError: the state before the batch is gone.
            ShardRefusedError: an earlier batch began here and has committed, but its task did not run to its end.
                Going on would lose its changes.
        """
        with self._lock:
            self.levels.check()
            self._batches.begin(batch)
        self._memory.balance()
        self.levels.check()

    def fetch(self, keys: Sequence[bytes]) -> list[Value]:
        """Return the values of keys at the position, None for a key that is not there."""
        return self.levels.fetch(keys)

    def scan(self, start: bytes, stop: bytes) -> Generator[tuple[bytes, bytes]]:
        """Yield keys from ``start`` up to, not including, ``stop`` with their values, in the order of keys.

        Close it before the shard: RocksDB stays open as long as it lives.
        """
        return self.levels.scan(start, stop)

    def read(
        self, keys: Sequence[bytes], committed: BatchId, kind: StateKind = StateKind.VALUE
    ) -> dict[bytes, bytes]:
        """Return the values of keys after the last batch up to ``committed``, which has committed, by key.

        Args:
            keys: of values, or of the headers of lists or maps, whose parts are returned, too, as of the same batch.
            committed: the batch.
            kind: of the state that the keys are of.
        """
        for _ in range(_READS):
            with self._lock:
                version, staged = self.levels.version, self._batches.staged
            found = self._together(keys, kind, committed, staged)
            with self._lock:
                if version == self.levels.version:
                    return found
        # What takes longer to read than a batch to run makes the next one wait.
        with self._lock:
            return self._together(keys, kind, committed, self._batches.staged)

    def _together(
        self,
        keys: Sequence[bytes],
        kind: StateKind,
        committed: BatchId,
        staged: StagedChanges[Changes] | None,
    ) -> dict[bytes, bytes]:
        changes = staged.changes if staged is not None and staged.batch <= committed else None

        def fetched(some: Sequence[bytes]) -> dict[bytes, bytes]:
            values = self.levels.fetch(some)
            if changes is not None:
                changed = lookup(some, [changes.entries])
                values = [old if new is MISSING else new for old, new in zip(values, changed, strict=True)]
            return {key: value for key, value in zip(some, values, strict=True) if value is not None}

        found = fetched(keys)
        return found | fetched([part for one in found.items() for part in part_keys(kind, *one)])

    def stage(self, batch: BatchId, changes: Changes | None = None) -> BatchId:
        """Stage all changes of an attempt at a batch, in place of those of an earlier attempt; return the position.

        Raises:
            ShardRefusedError: the batch is not the one that has begun, or it is part of the state already.
        """
        with self._lock:
            self.levels.check()
            self._batches.check_current(batch)
            if self._changelog is not None:
                # Under the lock: the attempt that is staged last must be the last in the changelog.
                self._changelog.append(batch, changes.columns if changes else None)
            self._batches.stage(batch, changes or None)
            return self._batches.position

    def replay(self, batches: Iterable[tuple[BatchId, dict[bytes, Value]]]) -> None:
        """Apply the changes of batches that had committed before this shard was opened, in their order."""
        for batch, entries in batches:
            with self._lock:
                self._batches.replay(batch, self._changes(entries))
            self._memory.balance()

    def reopen(
        self,
        batches: Iterable[tuple[BatchId, dict[bytes, Value]]],
        staged: tuple[BatchId, dict[bytes, Value]] | None,
        begun: BatchId,
    ) -> None:
        """Become the shard of a lost host, whose changelog says what had committed and what was staged there.

        Args:
            batches: those that had committed since the checkpoint that this shard was restored from, in their order.
            staged: a batch that is not known to have committed.
            begun: the query's newest batch that has begun.

        Raises:
            ShardRefusedError: a batch is staged that has not begun.
        """
        self.replay(batches)
        if staged is not None and staged[0] > begun:
            raise ShardRefusedError(
                f"the changelog of shard {self.name} is not that of its owner",
                f"no batch after {begun}, which is the newest that has begun",
                f"batch {staged[0]}",
                "the pipeline goes back to its checkpoint",
            )
        with self._lock:
            self._batches.reopen(
                None if staged is None else StagedChanges(staged[0], self._changes(staged[1])), begun
            )

    def _changes(self, entries: dict[bytes, Value]) -> Changes | None:
        return Changes.of(self.name, entries) if entries else None

    # --- a snapshot -----------------------------------------------------------------------------------------

    def snapshot(self, directory: Path, cut: BatchId, *, follow: bool = False) -> Snapshot:
        """Fix the state after batch ``cut``, which has committed. Nothing is written yet.

        Args:
            directory: a new directory for the files.
            cut: the batch.
            follow: whether to keep the batches that follow, for ``hand_over``.

        Raises:
            ShardRefusedError: a later batch is part of the state already, or the state would lack a batch up to the
                cut.
        """
        with self._lock:
            self.levels.check()
            self._batches.cut(cut)
            taken = self.levels.snapshot(directory)
            if follow:
                self._tail = Tail(self.name)
            if self._changelog is not None:
                self._changelog.cut()
            return taken

    def durable(self, cut: BatchId) -> None:
        """Drop what the changelog has up to batch ``cut``: a completed checkpoint contains it."""
        with self._lock:
            if self._changelog is not None:
                self._changelog.forget(cut)

    # --- a move ---------------------------------------------------------------------------------------------

    def hand_over(
        self, after: BatchId, cut: BatchId | None, standby: ShardStandby | None = None
    ) -> HandedOver:
        """Return the batches after one that have been applied since a snapshot with ``follow``.

        Args:
            after: the batch.
            cut: the batch after which the shard moves; the caller sees to it that none begins here any more. None: it
                does not move yet.
            standby: who gets what is staged from now on, and is told what is staged now. The batches that follow are
                not kept any more.

        Raises:
            ShardRefusedError: a batch after the cut has begun, they were not kept, or a newer standby has them.
        """
        with self._lock:
            self.levels.check()
            if cut is not None:
                self._batches.seal(cut)
            if self._tail is None:
                raise ShardRefusedError(
                    f"shard {self.name} cannot be handed over",
                    "that its batches were kept since the checkpoint that it moves with",
                    "that they were not",
                    "it stays where it is",
                )
            if standby is not None and self.standby is not None and standby.copy_id < self.standby.copy_id:
                raise ShardRefusedError(
                    f"shard {self.name} has another standby",
                    f"a newer one than number {self.standby.copy_id}",
                    f"number {standby.copy_id}, which has been given up",
                )
            batches = self._tail.after(after)
            if standby is None:
                return HandedOver(self._batches.position, batches)
            self.standby, self._tail = standby, None
            if (staged := self._batches.staged) is None:
                return HandedOver(self._batches.position, batches)
            entries = dict(staged.changes.entries) if staged.changes else {}
            return HandedOver(self._batches.position, [*batches, (staged.batch, entries)], staged.batch)

    def take_over(self, batches: Iterable[tuple[BatchId, dict[bytes, Value]]], position: BatchId) -> None:
        """Apply what the owner has handed over, and stand where it stands."""
        self.replay(batches)
        with self._lock:
            self._batches.take_over(position)

    def stop_following(self) -> None:
        """Give up what was kept for ``hand_over``."""
        with self._lock:
            self._tail = None

    # --- a standby ------------------------------------------------------------------------------------------

    def join(self, found: HandedOver) -> None:
        """Become the owner's standby, with all that it has."""
        self.replay((batch, entries) for batch, entries in found.batches if batch != found.staged)
        staged = None
        if found.staged is not None:
            staged = StagedChanges(found.staged, self._changes(dict(found.batches).get(found.staged, {})))
        with self._lock:
            self._follows = True
            self._batches.join(found.position, staged)

    def follow(self, batch: BatchId, position: BatchId, changes: Changes | None = None) -> None:
        """Stage what the owner, whose standby this is, has staged. ``catch_up`` does what may be done later.

        Args:
            position: the last batch that was part of the owner's state.

        Raises:
            ShardRefusedError: the standby has missed something.
            CannotGoBackError: a later batch has begun.
        """
        with self._lock:
            self.levels.check()
            self._add_committed()
            self._batches.follow(batch, position, changes)

    def catch_up(self) -> None:
        """Add to a standby's state what has committed, and prepare what is staged."""
        with self._lock:
            self._add_committed()
            staged = self._batches.staged
        if staged is not None and staged.changes is not None:
            staged.changes.keep_table()
        self._memory.balance()

    def promote(self, cut: BatchId) -> None:
        """Become the shard whose standby this is; ``cut`` is the newest batch that is known to have committed."""
        with self._lock:
            self.levels.check()
            self._add_committed()
            self._follows = False
            self._batches.promote(cut)

    def end_standby(self, number: int) -> None:
        """Forward nothing to a standby any more."""
        with self._lock:
            if self.standby is not None and self.standby.copy_id == number:
                self.standby = None

    def _apply(self, batch: BatchId, changes: Changes) -> None:
        if self._follows:
            self._committed = batch, changes
            return
        self.levels.add(batch, changes)
        if self._tail is not None:
            self._tail.add(batch, changes.entries)

    def _add_committed(self) -> None:
        if self._committed is not None:
            self.levels.add(*self._committed)
            self._committed = None

    # --- the end --------------------------------------------------------------------------------------------

    def close(self) -> None:
        """Close the shard; what is only in memory is gone. Closing twice is no error."""
        self.levels.close()
        with self._lock:
            if self._changelog is not None:
                self._changelog.close()

    def destroy(self) -> None:
        """Close the shard and delete its files."""
        self.close()
        shutil.rmtree(self.directory, ignore_errors=True)
