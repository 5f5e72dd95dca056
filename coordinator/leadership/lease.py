"""The lease of a running driver: renewed in the background, so that its standbys see that it lives."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import attrs

from ...storage import runtime
from ...storage.checkpoints.catalog import Catalog
from ...storage.checkpoints.fencing import LeaseRecord
from ...storage.elapsed import elapsed
from ...storage.errors import ChandyError
from ...storage.logs import carried, logger

log = logger(__name__)

_RENEWALS: Final = 10
"""How many renewals fit into the time of a lease."""
_END_SECONDS: Final = 5.0
"""How long a last renewal is waited for: a store that is away must not hold up the end of a driver."""


class HeldLease:
    """The lease of one generation, from its claim until its driver steps down.

    A driver trusts its lease for half of its time after the last renewal began. So it begins no batch long before a
    standby, which has seen that renewal later, may take over.
    """

    def __init__(
        self, catalog: Catalog, generation: int, seconds: float, clock: Callable[[], float] = elapsed
    ) -> None:
        """Make a lease that is not recorded yet.

        Args:
            catalog: the pipeline's catalog.
            generation: the driver's.
            seconds: after so long without a renewal, a standby may take over.
            clock: seconds from any moment, never going back, and going on while the machine is suspended.
        """
        self._catalog = catalog
        self._clock = clock
        self._lease = LeaseRecord(generation, seconds, 0)
        self._lock = runtime.lock()
        self._over = runtime.flag()
        self._renewed_at = self._held_since = clock()
        self._thread = runtime.thread(target=carried(self._keep), name="chandy-lease")

    def begin(self) -> None:
        """Record the lease, and renew it from now on.

        Raises:
            StorageError: it could not be recorded.
        """
        self._renew()
        self._thread.start()

    def hold(self) -> float:
        """Renew the lease if a standby may have taken over because of it; return since when it is held without a gap.

        A look for a successor that began before that counts no more. A standby that has claimed looks at the lease
        again, so one of the two sees the other.

        Raises:
            StorageError: the lease could not be renewed.
        """
        if self._has_run_out(self._clock()):
            with self._lock:
                # Another thread may have renewed it while this one waited.
                if self._has_run_out(self._clock()):
                    # What is published after a stop needs the lease, too.
                    self._write(stopped=self._lease.stopped)
        return self._held_since

    def _has_run_out(self, now: float) -> bool:
        return now - self._renewed_at > self._lease.seconds / 2

    def stop(self) -> None:
        """Record that the pipeline is stopped on purpose, so that no standby takes it over."""
        self._end()
        try:
            self._renew(stopped=True)
        except (OSError, ChandyError) as error:
            log.warning(
                "cannot record that the pipeline was stopped; a standby may take over", error=str(error)
            )

    def end(self) -> None:
        """Renew it no more."""
        self._end()

    def _end(self) -> None:
        self._over.set()
        if self._thread.is_alive():
            self._thread.join(_END_SECONDS)

    def _renew(self, *, stopped: bool = False) -> None:
        with self._lock:
            self._write(stopped=stopped)

    def _write(self, *, stopped: bool) -> None:
        began = self._clock()
        # Each attempt has a number of its own: one whose answer is lost may be what a standby has seen, and to the
        # standby the same number again is silence.
        self._lease = attrs.evolve(self._lease, renewals=self._lease.renewals + 1, stopped=stopped)
        self._catalog.renew(self._lease)
        if self._has_run_out(began):
            self._held_since = self._clock()
        self._renewed_at = began

    def _keep(self) -> None:
        failing = False
        while not self._over.wait(self._lease.seconds / _RENEWALS):
            try:
                self._renew()
                failing = False
            except (OSError, ChandyError) as error:
                if not failing:
                    log.warning("cannot renew the lease; a standby may take over", error=str(error))
                failing = True
