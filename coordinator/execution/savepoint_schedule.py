"""Takes savepoints by schedule, and lets the oldest ones expire."""

from __future__ import annotations

from collections.abc import Callable, Collection
from concurrent.futures import Future
from typing import Final

from ...storage.checkpoints.proof import FenceProof
from ...storage.checkpoints.scheduled import drop, expired, scheduled
from ...storage.logs import logger
from ...storage.store import Store
from ..checkpoint import Checkpoint

log = logger(__name__)

LOOK_SECONDS: Final = 1.0
"""From one look at whether a savepoint is due to the next."""
_AGAIN_SECONDS: Final = 60.0
"""After which a savepoint that has failed is tried again, unless the next one is due before."""


def next_savepoint(completed_at: float | None, now: float, every: float) -> float:
    """Return when the next savepoint is due.

    Args:
        completed_at: when the newest scheduled one was completed; None: there is none.
        now: the time by the clock of this driver. That of an earlier driver may have been another one: what was
            completed in the future counts as completed now.
        every: seconds from one to the next.
    """
    return now if completed_at is None else min(completed_at, now) + every


class SavepointSchedule:
    """The scheduled savepoints of a pipeline. Its owner calls ``look`` again and again, on one thread.

    Args:
        every: seconds from one savepoint to the next.
        keep: how many are kept.
        store: the pipeline's own store.
        open_store: opens other stores, by their URIs.
        is_ready: whether a savepoint may begin: the queries have been started.
        take: takes a savepoint.
        clock: seconds since 1970, never going back.
        proof: a successor has a schedule of its own.
        in_use: URIs of savepoints that this driver has restored: what it has not read yet is there alone.
    """

    def __init__(
        self,
        *,
        every: float,
        keep: int,
        store: Store,
        open_store: Callable[[str], Store],
        is_ready: Callable[[], bool],
        take: Callable[[], Future[Checkpoint]],
        clock: Callable[[], float],
        proof: FenceProof,
        in_use: Collection[str],
    ) -> None:
        self._every = every
        self._keep = keep
        self._store = store
        self._open_store = open_store
        self._is_ready = is_ready
        self._take = take
        self._clock = clock
        self._proof = proof
        self._in_use = in_use
        self._taking: Future[Checkpoint] | None = None
        self._next_at: float | None = None

    def look(self) -> None:
        """Take a savepoint if one is due, and delete what has expired once it is complete. It waits for no savepoint.

        Raises:
            ChandyError, OSError: the stores do not tell what there is; the next look asks them again.
        """
        if self._taking is not None:
            if not self._taking.done():
                return
            ended, self._taking = self._taking, None
            if (error := ended.exception()) is not None:
                self._next_at = self._clock() + min(self._every, _AGAIN_SECONDS)
                log.warning("no scheduled savepoint", error=str(error))
            else:
                self._next_at = None
        if self._next_at is None:
            found = scheduled(self._store, self._open_store)
            drop(self._store, self._open_store, expired(found, self._keep, self._in_use), self._proof)
            newest = found[-1].completed_at if found else None
            self._next_at = next_savepoint(newest, self._clock(), self._every)
        if self._clock() >= self._next_at and self._is_ready():
            self._taking = self._take()
