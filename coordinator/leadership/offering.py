"""The leader's side of a switch: it lets the shadow that asks come near, stands still, and goes on if it does not come.

The driver remains the leader until it sees the claim. Then it is fenced, as by any successor; until then it may go on.
``storage.checkpoints.offers`` says what the two write.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from contextlib import AbstractContextManager, suppress
from typing import Final, Protocol

import attrs

from ...storage import runtime
from ...storage.checkpoints.catalog import Catalog
from ...storage.checkpoints.offers import AskedOffer, Offer, asked, offer, withdraw
from ...storage.checkpoints.proof import FenceProof
from ...storage.errors import ChandyError, FencedError, StorageError
from ...storage.ids import CheckpointId
from ...storage.logs import logger

log = logger(__name__)

LOOK_SECONDS: Final = 0.5
"""How often a leader that a shadow follows looks whether it asks. It costs a request, and no output meanwhile."""
_SETTLED_SECONDS: Final = 30.0
"""How long a driver that has handed over leaves the machine to its successor, at most."""
_LOOK_AGAIN_SECONDS: Final = 0.2
_POLL_SECONDS: Final = 0.05
"""How often it looks how far the shadow is, once that has asked."""
_ROUND_SECONDS: Final = 60.0
"""How long the shadow may take to pass a checkpoint while batches go on."""
_SHORTER: Final = 0.8
"""What a round takes of the time of the one before, if the shadow comes nearer."""


class Standstill(Protocol):
    """Ends the batches of a pipeline for a while, or for good. One thread uses it."""

    def checkpoint(self) -> CheckpointId:
        """Take a checkpoint, while batches go on.

        Raises:
            ChandyError: there is none.
        """
        ...

    def begin(self) -> CheckpointId:
        """Let running batches end and begin no other; return the checkpoint that has all of them.

        Raises:
            ChandyError: there is none. ``end`` is called all the same.
        """
        ...

    def end(self) -> None:
        """Let the batches go on."""
        ...

    def hand_over(self, last: CheckpointId, error: FencedError) -> None:
        """Follow the shadow that has claimed the pipeline, from the last checkpoint on."""
        ...

    def give_up(self, error: FencedError) -> None:
        """Take in that another driver has claimed the pipeline."""
        ...


@attrs.define
class Offering:
    """Offers the pipeline to shadows that ask."""

    catalog: Catalog
    proof: FenceProof
    standstill: Callable[[AskedOffer], Standstill]
    """Makes one for a shadow that asks."""
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
        if request is None:
            return
        if request.nonce == self._answered:
            # The shadow has told how far it is in the meantime, or it could not be withdrawn: others wait for it to go.
            self._withdraw(request)
            return
        self._answered = request.nonce
        with self.alone():
            self._interrupted.clear()
            self._answer(request)

    def interrupt(self) -> None:
        """Do not wait for the shadow any longer: somebody wants to stop the pipeline."""
        self._interrupted.set()

    def await_checkpoint(self) -> bool:
        """Wait until the shadow that leads has completed a checkpoint of its own; return whether it may take longer.

        Whatever this driver does before competes with the first batch of its successor.
        """
        until = runtime.monotonic() + _SETTLED_SECONDS
        while runtime.monotonic() < until and not self._interrupted.wait(_LOOK_AGAIN_SECONDS):
            with suppress(StorageError, OSError):
                begun = max(self.catalog.generations(), key=lambda one: one.generation)
                # Its first one is what the shadow begins with.
                if begun.generation > self.proof.generation and max(self.catalog.list_ids()) > begun.next_id:
                    break
        return not self._interrupted.is_set()

    def _answer(self, request: AskedOffer) -> None:
        log.info("a shadow asks for the pipeline", shadow=request.shadow)
        standstill, last, stands_still = self.standstill(request), None, False
        try:
            if self._has_come_near(request, standstill) and self.may_begin():
                log.info("the shadow is near; batches end", shadow=request.shadow)
                stands_still = True
                last = standstill.begin()
                self.proof.check_now()
                offer(self.catalog.store, Offer(request.generation, request.nonce, last))
                self._wait(request, request.seconds)
            log.warning("the shadow did not come; the pipeline goes on", shadow=request.shadow)
        except FencedError as error:
            if last is None or not self._is_of(request):
                log.warning(
                    "another driver has taken the pipeline over, and not the shadow", error=str(error)
                )
                standstill.give_up(error)
                return
            log.info("the pipeline is handed over", shadow=request.shadow, to=error.owner)
            standstill.hand_over(last, error)
            return
        except ChandyError as error:
            log.warning("the pipeline cannot be handed over, and goes on", because=str(error))
        self._withdraw(request)
        if stands_still:
            standstill.end()

    def _has_come_near(self, request: AskedOffer, standstill: Standstill) -> bool:
        """Let the shadow come near while batches go on; return whether it has come.

        What it is behind when they end is time without output. In each round it passes a checkpoint, and the next one
        has the batches of that round: it is as near as it gets once rounds do not become shorter.
        """
        before = math.inf
        while True:
            began = runtime.monotonic()
            if not self._wait(request, _ROUND_SECONDS, standstill.checkpoint()):
                return False
            took = runtime.monotonic() - began
            if took > _SHORTER * before:
                return True
            before = took

    def _wait(self, request: AskedOffer, seconds: float, checkpoint: CheckpointId | None = None) -> bool:
        """Wait until the shadow has passed a checkpoint, or for its claim; return False if it does not come.

        Raises:
            FencedError: it has claimed the pipeline, or somebody else has.
        """
        until = runtime.monotonic() + seconds
        while True:
            self.proof.check_now()
            now = asked(self.catalog.store, request.generation)
            if now is None or now.nonce != request.nonce:
                return False
            if checkpoint is not None and now.passed >= checkpoint:
                return True
            if runtime.monotonic() >= until or self._interrupted.wait(_POLL_SECONDS):
                return False

    def _is_of(self, request: AskedOffer) -> bool:
        """Whether the shadow that has asked is the successor; not if nobody can tell."""
        try:
            claim = self.catalog.claimed(request.generation + 1)
        except (StorageError, OSError) as error:
            log.warning("cannot tell who has claimed the pipeline", error=str(error))
            return False
        return claim is not None and claim.nonce == request.nonce

    def _withdraw(self, request: AskedOffer) -> None:
        """Withdraw the offer; a claim that has come meanwhile fences the batches that go on, as ever."""
        try:
            withdraw(self.catalog.store, request)
        except (OSError, ChandyError) as error:
            # A shadow that takes it for good claims, and restores the latest checkpoint.
            log.warning("cannot withdraw the offer", error=str(error))
