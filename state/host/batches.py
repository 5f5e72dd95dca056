"""The batches of a shard: which one has begun, which one is staged, which are applied. No locks, no files.

A shard's state is that after the last batch that is known to have committed. What a task applies is only *staged*, in
memory. It becomes part of the state when the next batch begins, because only then has Spark committed the one before.
A task that runs again replaces what was staged. So going back is free, two attempts at once do not disturb each
other, and a snapshot at the cut never sees a batch after it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Generic, TypeVar

import attrs

from ...storage.ids import NO_BATCH, BatchId
from ..errors import CannotGoBackError, ShardRefusedError

"""The position of a shard that no batch has been applied to."""
T = TypeVar("T")


@attrs.frozen
class StagedChanges(Generic[T]):
    """What one attempt at a batch has changed."""

    batch: BatchId
    changes: T | None
    """None: the batch left the shard as it was."""


class ShardBatches(Generic[T]):
    """A state machine over the batches of one shard.

    A batch begins, an attempt at it stages its changes, and they are applied when the batch is known to have
    committed: when the next batch begins or a snapshot includes the batch. Until then an attempt replaces what an
    earlier one has staged. An attempt that stages nothing takes nothing away.

    Changing the machine needs the owner's lock. ``position`` may be read without it.

    Args:
        shard: the shard's name, for error messages.
        position: the last batch that the shard's state contains.
        apply: makes the changes of a committed batch part of the state. If it raises, the batch stays staged.
    """

    def __init__(self, shard: str, position: BatchId, apply: Callable[[BatchId, T], None]) -> None:
        self._shard = shard
        self._apply = apply
        self.position = position
        """The last batch whose changes are part of the state."""
        self.begun: BatchId | None = None
        """The batch that has begun most recently."""
        self.staged: StagedChanges[T] | None = None

    def begin(self, batch: BatchId) -> None:
        """Begin a batch. Spark runs it only after every earlier one has committed.

        Raises:
            CannotGoBackError: the state before the batch is gone.
            ShardRefusedError: an earlier batch has begun and committed, but no attempt at it has staged its changes.
        """
        latest = max(self.position, NO_BATCH if self.begun is None else self.begun)
        if batch < latest or batch == self.position:
            raise CannotGoBackError(self._shard, batch, latest)
        before = BatchId(batch - 1)
        self._promote(before)
        self._check_applied(before)
        self.begun = batch

    def check_current(self, batch: BatchId) -> None:
        """Check that an attempt at a batch may stage its changes.

        Raises:
            ShardRefusedError: another batch has begun since, or the batch is part of the state already.
        """
        if batch == self.position:
            # A snapshot has applied it, so it has committed. An attempt that is still running may have read the
            # result, and would add to it.
            raise _stale(self._shard, batch, BatchId(batch + 1))
        if batch != self.begun:
            raise _stale(self._shard, batch, self.begun)

    def stage(self, batch: BatchId, changes: T | None) -> None:
        """Stage the changes of an attempt in place of those of an earlier attempt at the same batch.

        Raises:
            ShardRefusedError: as for ``check_current``.
        """
        self.check_current(batch)
        self.staged = StagedChanges(batch, changes)

    def cut(self, batch: BatchId) -> None:
        """Make the state exactly that after a batch, which has committed.

        Raises:
            ShardRefusedError: a later batch is part of the state already, or the state would lack a batch that has
                begun here.
        """
        self._promote(batch)
        self._check_applied(batch)
        if self.position > batch:
            raise ShardRefusedError(
                f"shard {self._shard} cannot be snapshotted",
                f"to snapshot its state after batch {batch}",
                f"that batch {self.position} is already part of it",
                "this checkpoint cannot complete, the next one can",
            )

    def seal(self, batch: BatchId) -> None:
        """Make the state exactly that after a batch, which has committed, for the host that the shard moves to.

        Raises:
            ShardRefusedError: a later batch has begun here: the move was given up. Or as for ``cut``.
        """
        if self.begun is not None and self.begun > batch:
            raise ShardRefusedError(
                f"shard {self._shard} cannot be handed over",
                f"to stop after batch {batch}",
                f"that batch {self.begun} has begun",
                "it stays where it is",
            )
        self.cut(batch)

    def take_over(self, position: BatchId) -> None:
        """Stand where another host has sealed the shard, all of whose batches were replayed here."""
        self.position = position

    def follow(self, batch: BatchId, position: BatchId, changes: T | None) -> None:
        """Stage what the owner of the shard, whose standby this is, has staged. Its batches begin here with it.

        Args:
            position: the last batch that was part of the owner's state.
            changes: what an attempt at the batch has changed.

        Raises:
            ShardRefusedError: the standby has missed something.
            CannotGoBackError: a later batch has begun.
        """
        if batch != self.begun:
            self.begin(batch)
        if self.position != position:
            raise ShardRefusedError(
                f"the standby of shard {self._shard} has missed something",
                f"to follow its owner from batch {position} to batch {batch}",
                f"that it stands at batch {self.position}",
                "another standby is made with the next checkpoint",
            )
        self.stage(batch, changes)

    def join(self, position: BatchId, staged: StagedChanges[T] | None) -> None:
        """Stand where the owner of the shard stands, whose standby this becomes; its batches were replayed here."""
        self.position = position
        self.staged = staged
        self.begun = None if staged is None else staged.batch

    def reopen(self, staged: StagedChanges[T] | None, begun: BatchId) -> None:
        """Stand where a lost owner stood, whose batches that had committed were replayed here.

        Args:
            staged: what an attempt at a later batch had changed there.
            begun: the query's newest batch that has begun. If nothing of it is staged, a task must run it again before
                the next one begins, although it may have run there.
        """
        self.staged = staged
        self.begun = begun if begun > self.position else None

    def promote(self, cut: BatchId) -> None:
        """Become the shard whose standby this is.

        Args:
            cut: the newest batch that is known to have committed.
        """
        self._promote(cut)

    def replay(self, batch: BatchId, changes: T | None) -> None:
        """Apply a batch that has committed in an earlier life of the shard."""
        self.staged = StagedChanges(batch, changes)
        self._promote(batch)

    def reached(self, upto: BatchId) -> BatchId:
        """Return the last batch up to ``upto`` that has been applied or staged."""
        if self.staged is None or self.staged.batch > upto:
            return min(self.position, upto)
        return self.staged.batch

    def _promote(self, upto: BatchId) -> None:
        """Apply the staged batch if it is not after ``upto``, which has committed."""
        staged = self.staged
        if staged is None or staged.batch > upto:
            return
        if staged.changes is not None:
            self._apply(staged.batch, staged.changes)
        self.staged = None
        # Last: anyone who sees the new position without the lock sees all of the new state.
        self.position = staged.batch

    def _check_applied(self, upto: BatchId) -> None:
        """Refuse to pass over a batch up to ``upto``, which has committed, that has begun here and staged nothing."""
        if self.begun is not None and self.position < self.begun <= upto:
            raise _not_applied(self._shard, self.begun, BatchId(upto + 1))


def check_together(reached: Mapping[str, BatchId], upto: BatchId) -> None:
    """Check that the shards of one operator have the same batches up to ``upto``, which has committed.

    Args:
        reached: ``ShardBatches.reached(upto)`` by the name of the shard.
        upto: the batch.

    Raises:
        ShardRefusedError: a shard lacks a batch that another has. No task of the batch has begun on it.
    """
    newest = max(reached.values(), default=NO_BATCH)
    for shard, batch in reached.items():
        if batch < newest:
            raise _not_applied(shard, newest, BatchId(upto + 1))


def _stale(shard: str, batch: BatchId, current: BatchId | None) -> ShardRefusedError:
    return ShardRefusedError(
        f"shard {shard} has kept nothing of an attempt that Spark has given up",
        f"changes of batch {current}",
        f"changes of batch {batch}",
    )


def _not_applied(shard: str, batch: BatchId, following: BatchId) -> ShardRefusedError:
    return ShardRefusedError(
        f"batch {batch} has committed, but its task on shard {shard} has not finished",
        f"every task of batch {batch} to finish before batch {following} begins",
        "one that was stopped early or never ran",
        "let the sink read all rows of a batch: show(), take() and limit() in foreachBatch read only some",
    )
