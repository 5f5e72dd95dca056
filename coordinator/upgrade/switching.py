"""The switch of a shadow: it decides, asks the leader, and claims the pipeline once it stands where that one stands."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from typing import Final

import attrs

from ...storage import runtime
from ...storage.checkpoints.catalog import Catalog
from ...storage.errors import DamagedError, StorageError
from ...storage.logs import logger
from ..durations import seconds
from ..leadership.heir import Heir, Inheritance
from ..switch_orders import (
    KEEP_OLD,
    SwitchAnswer,
    SwitchOrder,
    SwitchOutcome,
    answer_order,
    read_answer,
    read_order,
)
from ..verdict import ShadowVerdict
from .follower import Passed
from .shadow import Shadow

log = logger(__name__)

_LOOK_SECONDS: Final = 1.0
"""How often a shadow looks for an order."""
_OFFER_SECONDS: Final = 180.0
"""How long it waits for the leader's offer, which waits for it to come near, and ends its batches before."""
_CLAIM_SECONDS: Final = 30.0
"""How long it may take from the offer to the claim: it runs the leader's last batches, and compares."""


# --- the decision -------------------------------------------------------------------------------------------


@attrs.frozen
class Refuse:
    """The pipeline stays as it is."""

    because: str


@attrs.frozen
class Ask:
    """The shadow is to lead."""

    although_different: bool = False
    keep_old: float = seconds(KEEP_OLD)
    """For how many seconds the driver before follows."""


def decide(
    verdict: ShadowVerdict, order: SwitchOrder | None, equal_batches: int | None
) -> Ask | Refuse | None:
    """Decide at a cut that was compared; None: nobody wants the shadow to lead.

    Args:
        verdict: what it has found up to there.
        order: what it was told and has not answered.
        equal_batches: after how many equal batches in a row it takes over by itself; None: it does not.
    """
    if order is not None:
        if order.although_different:
            return Ask(order.although_different, order.keep_old)
        if not verdict.is_equal:
            return Refuse(differs(verdict))
        return Ask(False, order.keep_old) if verdict.has_compared else Refuse("nothing was compared yet")
    if equal_batches is None or verdict.equal < equal_batches:
        return None
    return Ask() if verdict.has_compared and verdict.state_is_equal else None


def may_claim(asked: Ask, before: ShadowVerdict, now: ShadowVerdict) -> bool:
    """Return whether a shadow that has asked may still lead: nothing has differed since."""
    return asked.although_different or now.differing == before.differing


def differs(verdict: ShadowVerdict) -> str:
    """Say why a shadow must not lead."""
    first = verdict.first
    where = f": {first.what} after batch {first.batch} of {first.query!r}: {first.says}" if first else ""
    return f"{verdict.differing:,} comparisons differ{where}"


# --- carrying it out ----------------------------------------------------------------------------------------


@attrs.define
class _Attempt:
    heir: Heir
    ask: Ask
    before: ShadowVerdict
    until: float


@attrs.define
class Switching:
    """The switch of one life of a shadow. The thread that follows the leader calls it."""

    catalog: Catalog
    """The leader's."""
    shadow: Shadow
    life: str
    """This life of it, which names its folder."""
    look: Callable[[], None]
    """Looks for new checkpoints of the leader at once."""
    prepare: Callable[[], object]
    """Begins what takes long before it leads: the leader has been asked."""
    lead: Callable[[Inheritance], None]
    """Is given what has been claimed."""
    clock: Callable[[], float]
    """Seconds since 1970, for the claim."""
    _former: str = attrs.field(init=False)
    """The order that was there when this life began, by its number: it was given to a life before."""
    _order: SwitchOrder | None = attrs.field(default=None, init=False)
    """The order that is not answered yet."""
    _answered: str = attrs.field(default="", init=False)
    _looked_at: float = attrs.field(default=float("-inf"), init=False)
    _attempt: _Attempt | None = attrs.field(default=None, init=False)

    def __attrs_post_init__(self) -> None:
        found = read_order(self.catalog.store, self.shadow.name)
        self._former = "" if found is None else found.nonce

    @property
    def is_under_way(self) -> bool:
        """Whether the leader has been asked."""
        return self._attempt is not None

    def passed(self, passed: Passed) -> bool:
        """Take the next step at a cut that was compared, at once and as long as nothing else is to be done.

        Args:
            passed: the newest one.

        Returns:
            Whether the pipeline has been claimed, so that following ends.
        """
        try:
            return self._begin(passed) if self._attempt is None else self._go_on(self._attempt, passed)
        except (StorageError, OSError) as error:
            log.warning("a switch waits for the storage", error=str(error))
            return False

    def _begin(self, passed: Passed) -> bool:
        match decide(passed.verdict, self._ordered(), self.shadow.equal_batches):
            case Refuse(because):
                self._answer(SwitchOutcome.REFUSED, because)
            case Ask() as ask:
                generation = self.catalog.newest_generation()
                # Without a driver, there is nobody to ask; the next one is asked.
                if self.catalog.leader(generation) is not None:
                    self._ask(ask, generation, passed)
        return False

    def _ask(self, ask: Ask, generation: int, passed: Passed) -> None:
        heir = Heir(
            self.catalog, self.life, _CLAIM_SECONDS, self.shadow.name, ask.keep_old, self.shadow.ignore
        )
        if not heir.ask(generation, passed.checkpoint):
            self._answer(SwitchOutcome.REFUSED, "another shadow is about to take the pipeline over")
            return
        log.info("asking the leader for the pipeline", generation=generation)
        self.prepare()
        self._attempt = _Attempt(heir, ask, passed.verdict, runtime.monotonic() + _OFFER_SECONDS)

    def _go_on(self, attempt: _Attempt, passed: Passed) -> bool:
        heir = attempt.heir
        if not heir.may_have_claimed and not self._is_offered(attempt, passed):
            return False
        # A leader that offers stands still: what checkpoints come meanwhile are at the same cut.
        inherited = heir.claim(passed.own.manifest, self.clock())
        if inherited is None:
            self._end("another driver has claimed the pipeline, or the leader has gone on")
            return False
        self._attempt = None
        self.lead(inherited)
        with suppress(StorageError, OSError):
            # Who has ordered it since has what they want.
            self._order = read_order(self.catalog.store, self.shadow.name) or self._order
        self._answer(SwitchOutcome.LEADS)
        return True

    def _is_offered(self, attempt: _Attempt, passed: Passed) -> bool:
        """Return whether the shadow may claim where it is; end the attempt if it has come to nothing."""
        heir = attempt.heir
        if not may_claim(attempt.ask, attempt.before, passed.verdict):
            self.give_up(differs(passed.verdict))
            return False
        try:
            offer = heir.offered()
        except DamagedError as error:
            self.give_up(f"what the leader offers cannot be read: {error.found}")
            return False
        if offer is None:
            if heir.is_in_vain() or runtime.monotonic() > attempt.until:
                self._end("the leader has not handed over")
                return False
            heir.has_passed(passed.checkpoint)
            # The fewer batches it is behind once the leader waits, the better.
            self.look()
            return False
        if passed.checkpoint < offer.checkpoint:
            self.look()
            return False
        return True

    def give_up(self, because: str) -> None:
        """End what is under way, so that the leader goes on at once."""
        if (attempt := self._attempt) is None:
            return
        try:
            attempt.heir.give_up()
        except (StorageError, OSError) as error:
            log.warning("the leader waits until the time is up", error=str(error))
        self._end(because)

    def _ordered(self) -> SwitchOrder | None:
        now = runtime.monotonic()
        if now - self._looked_at >= _LOOK_SECONDS:
            self._looked_at = now
            found = read_order(self.catalog.store, self.shadow.name)
            self._order = None if found is None or found.nonce == self._answered else found
            if self._order is not None and self._order.nonce == self._former:
                self._refuse_former(self._order)
        return self._order

    def _refuse_former(self, order: SwitchOrder) -> None:
        """Do not carry out what a life before was told, which has answered perhaps: the program may be another one."""
        answer = read_answer(self.catalog.store, self.shadow.name)
        if answer is not None and answer.nonce == order.nonce:
            self._order, self._answered = None, order.nonce
        else:
            self._answer(SwitchOutcome.REFUSED, "it has been started again since")

    def _end(self, because: str) -> None:
        """End an attempt that has come to nothing. Who has ordered it is told; otherwise there is another one."""
        log.warning("the shadow does not lead", because=because)
        self._attempt = None
        self._answer(SwitchOutcome.REFUSED, because)

    def _answer(self, outcome: SwitchOutcome, because: str = "") -> None:
        if (order := self._order) is None:
            return
        self._order, self._answered = None, order.nonce
        try:
            answer_order(self.catalog.store, self.shadow.name, SwitchAnswer(order.nonce, outcome, because))
        except (StorageError, OSError) as error:
            log.warning("cannot answer the order to switch", error=str(error))
