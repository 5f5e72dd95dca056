"""Watches for a successor: another coordinator that has taken the pipeline over and writes into the same sinks."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import Final

import attrs

from ...storage import runtime
from ...storage.checkpoints.catalog import Catalog
from ...storage.checkpoints.proof import FenceProof
from ...storage.elapsed import elapsed
from ...storage.errors import ChandyError, FencedError, StoreFailedError
from ...storage.logs import carried, logger

log = logger(__name__)

_LOOK_SECONDS: Final = 2.0
"""How soon it is noticed at the latest that another coordinator has taken over; a checkpoint notices at once."""
_SHORTEST_LOOK_SECONDS: Final = 0.05
_END_SECONDS: Final = 2.0
"""How long closing waits for a look at a store that may not answer."""
_LOOKS: Final = 3
"""How often a look that took too long is repeated."""
_SLOW_LOOK_SECONDS: Final = 1.0
"""How long a look may take in any case."""


class SuccessorWatch:
    """Knows when it was last certain that there was no successor, and looks again on a thread of its own.

    Args:
        catalog: where a successor claims its generation.
        generation: this coordinator's own.
        trusts_look: seconds for which a look counts.
        hold_lease: renews the driver's lease if a standby may have taken over. It returns, by the same clock, since
            when there was no gap: earlier looks do not count.
        within: the proof of the pipeline that this one is a part of: its successor is this one's, too. None: it is
            part of no other.
        clock: as for ``HeldLease``.
    """

    def __init__(
        self,
        catalog: Catalog,
        generation: int,
        *,
        trusts_look: float,
        hold_lease: Callable[[], float],
        within: FenceProof | None,
        clock: Callable[[], float] = elapsed,
    ) -> None:
        self._catalog = catalog
        self._clock = clock
        self._trusts_look = trusts_look
        # Twice within the time that a look is trusted for: a batch waits for none while the store answers.
        self.pause = max(_SHORTEST_LOOK_SECONDS, min(_LOOK_SECONDS, trusts_look / 2))
        """Seconds between two looks."""
        self._hold_lease = hold_lease
        self._within = within
        self._looked_at = -math.inf
        self._found: FencedError | None = None
        self._tell: Callable[[FencedError], object] | None = None
        self._lock = runtime.lock()
        self._closed = runtime.flag()
        self._thread = runtime.thread(target=carried(self._watch), name="chandy-fence")
        self.proof: FenceProof = _Proof(generation, self)
        """For whatever acts for this generation."""

    def begin(self) -> None:
        """Look again and again, on a thread of its own: nothing that takes long may be in its way."""
        self._thread.start()

    def close(self) -> None:
        """Look no more."""
        self._closed.set()
        if self._thread.is_alive():
            self._thread.join(_END_SECONDS)

    def listen(self, tell: Callable[[FencedError], object]) -> None:
        """Say who is told, once and on whatever thread, that there is a successor."""
        with self._lock:
            self._tell, found = tell, self._found
        if found is not None:
            tell(found)

    def fence(self, error: FencedError) -> None:
        """Note that there is a successor: from now on every proof says so."""
        with self._lock:
            if self._found is not None:
                return
            self._found, tell = error, self._tell
        if tell is not None:
            tell(error)

    def check(self) -> None:
        """Check as ``FenceProof.check``: by the store only if the last look does not count any more.

        A driver that was frozen, or cut off from its store, may have been taken for dead meanwhile.
        """
        self._check_not_found()
        self._check_around()
        held_since = self._hold_lease()
        if self._looked_at < held_since or self._clock() - self._looked_at > self._trusts_look:
            self.look()

    def check_now(self) -> None:
        """Check as ``FenceProof.check_now``."""
        self._check_not_found()
        self._check_around(now=True)
        self._asked(self._catalog.check_not_fenced)

    def look(self) -> None:
        """Look for a successor; raise what ``check_now`` raises."""
        self._check_not_found()
        if self._clock() - self._looked_at > self._trusts_look:
            self.check_now()
        else:
            self._check_around()
            # With one request instead of two: it is made every few seconds.
            self._asked(self._catalog.check_next_not_claimed)

    def _asked(self, check: Callable[[int], None]) -> None:
        for _ in range(_LOOKS):
            began = self._clock()
            self._ask(partial(check, self.proof.generation))
            # Another one may have been faster.
            self._looked_at = max(self._looked_at, began)
            # A look says nothing of the time since it began: this process may have been frozen in it.
            if self._clock() - began <= max(self._trusts_look, _SLOW_LOOK_SECONDS):
                return
        raise StoreFailedError(
            self._catalog.store.uri,
            "generations/",
            "look for a successor",
            f"each look took longer than the {self._trusts_look:g} s that one counts for; a longer takeover_timeout "
            "allows for a slow store",
            transient=True,
        )

    def _check_around(self, *, now: bool = False) -> None:
        if self._within is not None:
            self._ask(self._within.check_now if now else self._within.check)

    def _ask(self, check: Callable[[], None]) -> None:
        """Check whether there is a successor, and tell anyone who listens if there is."""
        try:
            check()
        except FencedError as error:
            self.fence(error)
            raise

    def _check_not_found(self) -> None:
        if self._found is not None:
            # Not the same object: each that is raised has a traceback of its own.
            raise attrs.evolve(self._found)

    def _watch(self) -> None:
        while not self._closed.wait(self.pause):
            try:
                self.look()
            except FencedError:
                return
            except (OSError, ChandyError) as error:
                log.warning("cannot look for a successor", error=str(error))
            except Exception:
                # Nobody would ever notice a successor if the thread ended.
                log.exception("looking for a successor failed")


@attrs.frozen
class _Proof(FenceProof):
    """What the watch alone makes."""

    _generation: int
    _watch: SuccessorWatch

    @property
    def generation(self) -> int:
        return self._generation

    def check(self) -> None:
        self._watch.check()

    def check_now(self) -> None:
        self._watch.check_now()
