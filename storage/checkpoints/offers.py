"""Offers: the records by which a leader and a shadow agree that the shadow takes the pipeline over.

1. A shadow that is ready *asks* the driver of a generation: ``generations/<g>.asked.json``. It says there, too,
   how far it has come meanwhile: the driver's batches go on until it is near. One shadow asks at a time.
2. The driver ends its batches, takes a last checkpoint and *offers*: ``generations/<g>.offer.json``. It remains the
   leader, with its record and its lease, so that standbys go on waiting.
3. The shadow *claims* the next generation, as every successor does. That alone decides: from then on the driver is
   fenced. By the nonce of the claim, which is that of the request, it knows to whom it has lost the pipeline, and
   follows as a shadow. If no claim comes in time, the driver withdraws its offer, and its batches go on.

Nothing depends on these records but how soon the one goes on after the other. A shadow that claims too late is a
successor like any other; the claim fences, and the latest checkpoint says where to go on.
"""

from __future__ import annotations

import attrs

from ..backends.retrying import create_own
from ..codec import to_sealed_json
from ..errors import DamagedError, ObjectExistsError, ObjectMissingError
from ..ids import CheckpointId
from ..store import Store
from ..verified import read_record
from .layout import asked_key, offer_key


@attrs.frozen
class AskedOffer:
    """A shadow asks for the pipeline."""

    generation: int
    """Whose driver is asked."""
    shadow: str
    """The life of the shadow, which names its folder."""
    nonce: str
    """Random: each time that a shadow asks is another one. Its claim has the same."""
    seconds: float
    """How long it may take to claim after the offer."""
    passed: CheckpointId
    """The checkpoint of the driver that it has passed last."""
    name: str = ""
    """The name of the shadow, which is the same in all of its lives."""
    keep_old: float = 0.0
    """For how many seconds the driver is to follow afterwards; 0: it ends."""
    ignored: tuple[str, ...] = ()
    """Fields that may differ between the two."""


@attrs.frozen
class Offer:
    """A driver offers the pipeline: its batches have ended, and a checkpoint has them."""

    generation: int
    """Whose driver offers."""
    nonce: str
    """That of the request."""
    checkpoint: CheckpointId
    """The last one, which has all batches."""


def ask(store: Store, request: AskedOffer) -> bool:
    """Ask the driver of a generation for the pipeline; return False if another shadow asks for it already."""
    key, data = asked_key(request.generation), to_sealed_json(request)
    try:
        create_own(store, key, data)
    except ObjectExistsError:
        if (found := asked(store, request.generation)) is not None and found.name != request.name:
            return False
        # It is of a former life or attempt of this shadow; or nobody can read it, so that nobody answers it.
        store.write(key, data)
    return True


def come_nearer(store: Store, request: AskedOffer) -> None:
    """Say how far a shadow has come that asks."""
    store.write(asked_key(request.generation), to_sealed_json(request))


def asked(store: Store, generation: int) -> AskedOffer | None:
    """Return who asks the driver of a generation for the pipeline; None: nobody."""
    try:
        return read_record(store, asked_key(generation), AskedOffer, "what a shadow asks")
    except (ObjectMissingError, DamagedError):
        return None


def offer(store: Store, made: Offer) -> None:
    """Offer the pipeline to the shadow that has asked."""
    store.write(offer_key(made.generation), to_sealed_json(made))


def offered(store: Store, request: AskedOffer) -> Offer | None:
    """Return what a driver offers to a shadow that has asked; None: nothing, or no longer.

    Raises:
        DamagedError: it cannot be read.
    """
    try:
        found = read_record(store, offer_key(request.generation), Offer, "an offer")
    except ObjectMissingError:
        return None
    return found if found.nonce == request.nonce else None


def asks(store: Store, request: AskedOffer) -> bool:
    """Return whether a shadow still asks: neither side has withdrawn that."""
    found = asked(store, request.generation)
    return found is not None and found.nonce == request.nonce


def withdraw(store: Store, request: AskedOffer) -> None:
    """Withdraw what a driver offers, and forget that a shadow has asked; another one that asks since goes on asking."""
    found = asked(store, request.generation)
    is_others = found is not None and found.nonce != request.nonce
    key = offer_key(request.generation)
    store.delete_all([key] if is_others else [key, asked_key(request.generation)])
