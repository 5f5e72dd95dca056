"""The shadow's side of a switch: it asks the leader for the pipeline, and claims what it is offered."""

from __future__ import annotations

import attrs

from ...storage import runtime
from ...storage.checkpoints.catalog import Catalog
from ...storage.checkpoints.fencing import Claim
from ...storage.checkpoints.grafting import GraftError, graft
from ...storage.checkpoints.layout import shadow_folder
from ...storage.checkpoints.manifest import Manifest
from ...storage.checkpoints.offers import AskedOffer, Offer, ask, asks, come_nearer, offered, withdraw
from ...storage.ids import CheckpointId
from ...storage.logs import logger
from .leadership import claimant

log = logger(__name__)


def leads_again(shadow: str, claim: Claim | None, *, has_ended: bool) -> bool:
    """Return whether the program of a shadow is that of the leader by now, which is started again.

    Another version of the program may have the same name. As long as the leader may live, it is a shadow of that.

    Args:
        shadow: its name.
        claim: the newest one; None: there is none, or nobody can read it.
        has_ended: whether the driver that has made it is known to have ended.
    """
    return claim is not None and claim.shadow == shadow and has_ended


@attrs.frozen
class Inheritance:
    """What a shadow takes the pipeline over with."""

    claim: Claim
    lease_seconds: float | None
    """The time of its predecessor's lease; None: that one had none, and so no standbys."""
    shadow: str
    """The life of the shadow, which names its folder."""
    state: Manifest
    """The shadow's own checkpoint at the cut of the leader's last one."""

    def grafted(self, leader: Manifest | None, id: CheckpointId) -> Manifest | None:
        """Return the checkpoint to begin with; None if the leader has got further than the shadow.

        Args:
            leader: the latest checkpoint of the pipeline.
            id: of the new one.
        """
        if leader is None:
            return None
        try:
            return graft(leader, self.state, shadow_folder(self.shadow), id, self.claim.generation)
        except GraftError as error:
            log.warning("the shadow leads with the state of the driver before", because=str(error))
            return None


@attrs.define
class Heir:
    """One attempt of a shadow to get the pipeline."""

    catalog: Catalog
    shadow: str
    """The life of the shadow."""
    seconds: float
    """How long it may take to claim after the offer."""
    name: str = ""
    keep_old: float = 0.0
    ignored: tuple[str, ...] = ()
    """Of the shadow, as ``AskedOffer`` has them."""
    _asked: AskedOffer | None = attrs.field(default=None, init=False)
    _tried_at: float | None = attrs.field(default=None, init=False)
    """When it has tried to claim first."""

    def ask(self, generation: int, passed: CheckpointId) -> bool:
        """Ask the driver of a generation, the newest one; return False if another shadow asks it already.

        Args:
            generation: its number.
            passed: its checkpoint that the shadow has passed last.

        Raises:
            StorageError: the store does not answer.
        """
        self._asked = AskedOffer(
            generation,
            self.shadow,
            runtime.token(),
            self.seconds,
            passed,
            self.name,
            self.keep_old,
            self.ignored,
        )
        return ask(self.catalog.store, self._asked)

    def has_passed(self, checkpoint: CheckpointId) -> None:
        """Tell the driver how far the shadow has come since.

        Raises:
            StorageError: the store does not answer.
        """
        assert self._asked is not None, "it has asked"
        if checkpoint > self._asked.passed:
            self._asked = attrs.evolve(self._asked, passed=checkpoint)
            come_nearer(self.catalog.store, self._asked)

    def offered(self) -> Offer | None:
        """Return what the driver offers; None: nothing yet, or no longer.

        Raises:
            DamagedError: it cannot be read.
            StorageError: the store does not answer.
        """
        assert self._asked is not None, "it has asked"
        return offered(self.catalog.store, self._asked)

    def is_in_vain(self) -> bool:
        """Return whether there will be no offer: the driver that was asked has refused, has ended, or is fenced.

        Raises:
            StorageError: the store does not answer.
        """
        assert self._asked is not None, "it has asked"
        generation = self._asked.generation
        if not asks(self.catalog.store, self._asked):
            return True
        return self.catalog.newest_generation() != generation or self.catalog.leader(generation) is None

    def give_up(self) -> None:
        """Ask no longer, so that the driver goes on at once.

        Raises:
            StorageError: the store does not answer. The driver goes on when the time is up.
        """
        assert self._asked is not None, "it has asked"
        if asks(self.catalog.store, self._asked):
            withdraw(self.catalog.store, self._asked)

    @property
    def may_have_claimed(self) -> bool:
        """Whether the claim was tried. If nobody knows what has come of that, it is to be tried again."""
        return self._tried_at is not None

    def claim(self, state: Manifest, now: float) -> Inheritance | None:
        """Claim the pipeline; None if it is offered no longer, or somebody else has claimed it.

        Args:
            state: the shadow's checkpoint at the cut of the one that was offered.
            now: seconds since 1970.

        Raises:
            StorageError: the store does not answer. The claim may have been made: call it again.
        """
        assert self._asked is not None, "it has asked"
        store, generation = self.catalog.store, self._asked.generation
        lease = self.catalog.lease(generation)
        if self._tried_at is None:
            # Right before: what comes between is an ordinary claim.
            if offered(store, self._asked) is None:
                return None
            self._tried_at = now
        owner = f"{claimant()}, shadow {self.shadow}"
        claim = self.catalog.claim_after(generation, owner, self._tried_at, self._asked.nonce, self.name)
        if claim is None:
            return None
        return Inheritance(claim, None if lease is None else lease.seconds, self.shadow, state)
