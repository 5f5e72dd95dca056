"""A standby driver: watches a pipeline's leader, keeps files ready, and claims the pipeline when it is needed."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import attrs

from ...storage import runtime
from ...storage.checkpoints.catalog import Catalog
from ...storage.checkpoints.fencing import Claim, DriverRecord
from ...storage.checkpoints.files import FileCache
from ...storage.errors import ChandyError
from ...storage.logs import carried, logger
from ...storage.long_waits import Reminder
from .election import Decision, Election, Leader, Sighting, Silence
from .leadership import claimant, is_dead, sight
from .prefetch import Prefetch

log = logger(__name__)

_LOOK_SECONDS: Final = 1.0
"""From one look at the storage to the next, at most. For short leases it is less."""
_LOOKS: Final = 10
"""How many looks fit into the time of a lease."""
_PROCESS_SECONDS: Final = 0.05
"""From one look at the leader's processes to the next, if they are on this machine. It needs no storage."""


@attrs.frozen
class Won:
    """A claim, and why it was made."""

    claim: Claim
    silence: Silence | None
    """The leader that was taken for dead because its lease had run out."""
    followed: int | None
    """The first generation that this standby has waited for; None if there was no driver to wait for."""


class WaitingDriver:
    """One driver that waits for its turn. ``wait`` may be called again if the turn came to nothing."""

    def __init__(
        self,
        catalog: Catalog,
        patience: float,
        cache: FileCache,
        prepare: Callable[[runtime.Flag], object],
        clock: Callable[[], float],
        check: Callable[[], None] = lambda: None,
        shadow: str = "",
    ) -> None:
        """Make a standby.

        Args:
            catalog: the pipeline's catalog.
            patience: seconds that a driver has that has claimed the pipeline and does nothing.
            cache: takes the files of the latest checkpoint ahead of their use.
            prepare: warms this process up; called on a thread of its own if there is somebody to wait for. It is to
                end when the event is set.
            clock: seconds since 1970, for the claim.
            check: raises a ``ChandyError`` if this process could not run the pipeline any more.
            shadow: as for ``Claim``.
        """
        self._catalog = catalog
        self._election = Election(patience)
        self._prefetch = Prefetch(catalog, cache)
        self._prepare = prepare
        self._clock = clock
        self._check = check
        self._shadow = shadow
        self._needed = runtime.flag()
        self._warming: runtime.Thread | None = None
        self._followed: int | None = None
        self._told: tuple[int, bool] | None = None
        self._blind = 0.0, Reminder(0.0)
        """Since when a leader is followed that keeps no lease, and when to tell that."""

    def wait(self) -> Won:
        """Wait until this driver is needed, and claim the next generation.

        Raises:
            ChandyError: this process could not run the pipeline any more.
        """
        failing = Reminder(0.0)
        unreachable_since: float | None = None
        while True:
            # A driver that cannot take over must leave it to others.
            self._check()
            try:
                seen, driver = sight(self._catalog)
                claim = self._claim(seen)
            except (OSError, ChandyError) as error:
                self._election.lost_sight()
                unreachable_since = unreachable_since or runtime.monotonic()
                if failing.is_due(runtime.monotonic() - unreachable_since):
                    log.warning("a standby cannot look at the storage", error=str(error))
                runtime.sleep(_LOOK_SECONDS)
                continue
            unreachable_since, failing = None, Reminder(0.0)
            if claim is not None:
                self._needed.set()
                self._prefetch.pause()
                return Won(claim, self._election.silence, self._followed)
            self._follow(seen, driver)
            self._sleep(seen, driver)

    def _claim(self, seen: Sighting) -> Claim | None:
        if self._election.decide(seen) is Decision.WAIT:
            return None
        claim = self._catalog.claim_after(seen.generation, claimant(), self._clock(), shadow=self._shadow)
        if claim is None:
            self._election.has_lost()
        elif self._election.has_waited:
            log.warning(
                "a standby takes over",
                storage=self._catalog.store.uri,
                generation=claim.generation,
                leader=_why(seen),
            )
        return claim

    def _follow(self, seen: Sighting, driver: DriverRecord | None) -> None:
        if self._followed is None:
            self._followed = max(1, seen.generation)
        if self._warming is None or self._needed.is_set():
            self._needed = runtime.flag()
            self._warming = runtime.thread(
                target=carried(self._prepare), args=(self._needed,), name="chandy-warm-up"
            )
            self._warming.start()
        self._prefetch.look()
        if seen.leader is Leader.THERE and seen.lease is None:
            self._tell_of_leader_without_lease(seen, driver)
            return
        stopped = seen.lease is not None and seen.lease.stopped
        if self._told == (seen.generation, stopped):
            return
        self._told = seen.generation, stopped
        facts = {"storage": self._catalog.store.uri, "generation": seen.generation}
        if stopped:
            log.info("the pipeline was stopped on purpose; the standby waits for its next driver", **facts)
        else:
            log.info("standing by", leader=driver.host if driver else None, **facts)

    def _tell_of_leader_without_lease(self, seen: Sighting, driver: DriverRecord | None) -> None:
        """Say again and again that nobody here can know whether the leader lives."""
        if self._told != (seen.generation, False):
            self._told, self._blind = (seen.generation, False), (runtime.monotonic(), Reminder(0.0))
        since, reminder = self._blind
        if not reminder.is_due(waited := runtime.monotonic() - since):
            return
        where = f"process {driver.pid} on {driver.host}" if driver else "a process that has left no record"
        log.warning(
            "the leader keeps no lease, so its end is noticed on its own machine alone. If it runs no more, start "
            "a driver without standby=True, and it takes the pipeline over; start all with standby=True from then on",
            leader=where,
            storage=self._catalog.store.uri,
            generation=seen.generation,
            seconds=round(waited),
        )

    def _sleep(self, seen: Sighting, driver: DriverRecord | None) -> None:
        """Sleep until the next look, or until the leader's processes have ended."""
        pause = _LOOK_SECONDS if seen.lease is None else min(_LOOK_SECONDS, seen.lease.seconds / _LOOKS)
        until = runtime.monotonic() + pause
        while (left := until - runtime.monotonic()) > 0:
            runtime.sleep(min(left, _PROCESS_SECONDS))
            if driver is not None and is_dead(self._catalog, driver):
                return


def _why(seen: Sighting) -> str:
    match seen.leader:
        case Leader.DEAD:
            return "its processes have ended"
        case Leader.NONE:
            return "it has failed, or handed over"
        case Leader.THERE:
            return "it has not renewed its lease"
