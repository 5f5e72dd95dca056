"""The leader's side of a switch: it stands still for the shadow that asks, and goes on if that one does not come.

The driver remains the leader until it sees the claim. Then it is fenced, as by any successor; until then it may go on.
``storage.checkpoints.offers`` says what the two write.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Final, Protocol

import attrs

from ...storage import runtime
from ...storage.checkpoints.catalog import Catalog
from ...storage.checkpoints.offers import AskedOffer, Offer, asked, offer, withdraw
from ...storage.checkpoints.proof import FenceProof
from ...storage.errors import ChandyError, FencedError
from ...storage.ids import CheckpointId
from ...storage.logs import logger

log = logger(__name__)

LOOK_SECONDS: Final = 2.0
"""How often a leader that records batches looks whether a shadow asks. It costs a request, and no output meanwhile."""
_POLL_SECONDS: Final = 0.05
"""How often it looks for the claim once it stands still."""


class Standstill(Protocol):
    """Ends the batches of a pipeline for a while. One thread uses it."""

    def begin(self) -> CheckpointId:
        """Let running batches end and begin no other; return the checkpoint that has all of them.

        Raises:
            ChandyError: there is none. ``end`` is called all the same.
        """
        ...

    def end(self) -> None:
        """Let the batches go on."""
        ...


@attrs.define
class Offering:
    """Offers the pipeline to shadows that ask."""

    catalog: Catalog
    proof: FenceProof
    standstill: Callable[[], Standstill]
    """Makes one."""
    may_begin: Callable[[], bool]
    """Whether a shadow can be there, and the pipeline runs, and is not about to go back or to stop."""
    alone: Callable[[], AbstractContextManager[None]]
    """Keeps whatever else would start or stop queries waiting."""
    _answered: str = attrs.field(default="", init=False)
    """The last request that was answered, by its nonce."""
    _interrupted: runtime.Flag = attrs.field(factory=runtime.flag, init=False)

    def look(self) -> None:
        """Look whether a shadow asks, and answer it; return once it leads, or the pipeline goes on.

        Raises:
            ChandyError: the pipeline goes on, and this says why the shadow does not lead.
        """
        if not self.may_begin():
            return
        request = asked(self.catalog.store, self.proof.generation)
        if request is None or request.nonce == self._answered:
            return
        self._answered = request.nonce
        with self.alone():
            self._interrupted.clear()
            self._answer(request)

    def interrupt(self) -> None:
        """Do not wait for the shadow any longer: somebody wants to stop the pipeline."""
        self._interrupted.set()

    def _answer(self, request: AskedOffer) -> None:
        log.info("a shadow asks for the pipeline; its batches end", shadow=request.shadow)
        standstill = self.standstill()
        try:
            last = standstill.begin()
            self.proof.check_now()
            offer(self.catalog.store, Offer(request.generation, request.nonce, last))
            self._await_claim(request)
            log.warning("the shadow did not come; the pipeline goes on", shadow=request.shadow)
        except FencedError as error:
            log.info("the pipeline is handed over", shadow=request.shadow, to=error.owner)
            return
        except ChandyError as error:
            log.warning("the pipeline cannot be handed over, and goes on", because=str(error))
        self._go_on(standstill, request)

    def _await_claim(self, request: AskedOffer) -> None:
        """Return once the time is up, or the shadow has given up; raise a ``FencedError`` once there is a claim."""
        until = runtime.monotonic() + request.seconds
        while runtime.monotonic() < until and not self._interrupted.wait(_POLL_SECONDS):
            self.proof.check_now()
            if asked(self.catalog.store, request.generation) != request:
                return

    def _go_on(self, standstill: Standstill, request: AskedOffer) -> None:
        """Withdraw the offer, and let batches go on; a claim that has come meanwhile fences them, as ever."""
        try:
            withdraw(self.catalog.store, request.generation)
        except (OSError, ChandyError) as error:
            # A shadow that takes it for good claims, and restores the latest checkpoint.
            log.warning("cannot withdraw the offer", error=str(error))
        standstill.end()
