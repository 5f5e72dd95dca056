"""Looks whether another coordinator has taken the pipeline over: both would write into the same sinks."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from ...storage.checkpoints.catalog import Catalog
from ...storage.elapsed import elapsed
from ...storage.errors import ChandyError, FencedError
from ...storage.logs import logger

log = logger(__name__)

_LOOK_SECONDS: Final = 2.0
"""How soon it is noticed at the latest that another coordinator has taken over; a checkpoint notices at once."""
_SHORTEST_LOOK_SECONDS: Final = 0.05


class Fence:
    """When it was last certain that there was no successor.

    Args:
        catalog: where a successor claims its generation.
        generation: this coordinator's own.
        trusts_look: seconds for which a batch may begin without another look.
        hold_lease: renews the driver's lease if a standby may have taken over. It returns, by the same clock, since
            when there was no gap: earlier looks do not count.
        on_fenced: called when there is a successor.
        clock: as for ``HeldLease``.
    """

    def __init__(
        self,
        catalog: Catalog,
        generation: int,
        *,
        trusts_look: float,
        hold_lease: Callable[[], float],
        on_fenced: Callable[[ChandyError], None],
        clock: Callable[[], float] = elapsed,
    ) -> None:
        self._catalog = catalog
        self._generation = generation
        self._clock = clock
        self.trusts_look = trusts_look
        # Twice within the time that a look is trusted for: a batch waits for none while the store answers.
        self._pause = max(_SHORTEST_LOOK_SECONDS, min(_LOOK_SECONDS, trusts_look / 2))
        self._hold_lease = hold_lease
        self._on_fenced = on_fenced
        self._looked_at = clock()
        self._next_look = clock() + self._pause
        self._is_looking = False

    def check(self) -> None:
        """Check that no other coordinator has taken the pipeline over.

        Raises:
            FencedError: one has.
            StorageError: the store does not tell.
        """
        now = self._clock()
        self._catalog.check_not_fenced(self._generation)
        self._looked_at = now

    def check_for_batch(self) -> None:
        """Check before a batch, by the store only if the last look does not count any more.

        A driver that was frozen, or cut off from its store, may have been taken for dead meanwhile.

        Raises:
            FencedError, StorageError: as for ``check``.
        """
        held_since = self._hold_lease()
        if self._looked_at < held_since or self._clock() - self._looked_at > self.trusts_look:
            self._look()

    @property
    def next_look_in(self) -> float:
        """Seconds until it is time for ``look_for_successor``; not above 0 if it is time."""
        return self._next_look - self._clock()

    def begin_look(self) -> bool:
        """Return whether it is time for ``look_for_successor``; the caller then owes it."""
        if self.next_look_in > 0:
            return False
        self._next_look = self._clock() + self._pause
        # One at a time: a store that is away keeps it waiting.
        if self._is_looking:
            return False
        self._is_looking = True
        return True

    def look_for_successor(self) -> None:
        """Look, and go on if the store does not tell."""
        try:
            self._look()
        except FencedError:
            pass
        except (OSError, ChandyError) as error:
            log.warning("cannot look for a successor", error=str(error))
        finally:
            self._is_looking = False

    def _look(self) -> None:
        now = self._clock()
        try:
            if now - self._looked_at > self.trusts_look:
                self.check()
            else:
                # With one request instead of two: it is made every few seconds.
                self._catalog.check_next_not_claimed(self._generation)
                self._looked_at = now
        except FencedError as error:
            self._on_fenced(error)
            raise
