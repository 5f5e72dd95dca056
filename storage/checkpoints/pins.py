"""Pins: which checkpoints the readers of a pipeline's changes still need, so that retention keeps them.

A reader pins the checkpoint whose state it has passed on, because what comes next is the difference between that one
and a newer one. Each pin is an object of its own, ``pins/<reader>/<checkpoint>.json``, so that nobody overwrites
another's. A reader that is away for long keeps one checkpoint, whose files are at most one more copy of the state.

A reader and a deleter agree without a lock, each by a record that is written before it looks for the other's.
Who deletes marks a checkpoint as dropped (``checkpoints/<id>/dropped``), then looks for pins: if it is pinned, it
stays, and the mark goes. A reader pins a checkpoint, then looks for the mark, then reads the manifest. So one of them
sees the other, and if both do, the checkpoint stays and the reader takes a newer one. A mark goes after the manifest.
So no manifest is deleted that a reader has found. A crash in between leaves a pin, or the mark of a checkpoint that is
dropped again.
"""

from __future__ import annotations

from collections.abc import Collection, Generator, Iterable
from typing import Final

import attrs

from ..codec import to_json
from ..errors import ObjectMissingError
from ..ids import CheckpointId
from ..keys import validate_name
from ..store import Store
from ..verified import read_verified
from .catalog import Catalog
from .layout import PINS, dropped_key, manifest_key, pin_key, pin_of
from .manifest import Manifest
from .proof import FenceProof

_SHADOW: Final = "shadow-"
"""What the name begins with by which a shadow keeps checkpoints."""


@attrs.frozen
class Pin:
    """The record that a reader needs a checkpoint, for people to read."""

    reader: str
    pinned_at: float
    """Seconds since 1970 by the reader's clock."""


@attrs.frozen
class Pins:
    """The pins of one reader in a pipeline's store."""

    store: Store
    reader: str
    """The reader's name, unique in the pipeline and the same in each of its lives."""

    def __attrs_post_init__(self) -> None:
        validate_name("reader", self.reader)

    def hold(self, checkpoint: CheckpointId, now: float) -> Manifest:
        """Keep a checkpoint until it is released, and return its manifest.

        Args:
            checkpoint: its id.
            now: seconds since 1970.

        Raises:
            ObjectMissingError: it has been dropped, or never completed.
            DamagedError, SchemaTooNewError: its manifest cannot be read.
        """
        self.store.write(pin_key(self.reader, checkpoint), to_json(Pin(self.reader, now)))
        try:
            if _is_marked(self.store, checkpoint):
                raise ObjectMissingError(self.store.uri, manifest_key(checkpoint))
            return Catalog(self.store).read(checkpoint)
        except ObjectMissingError:
            self.store.delete(pin_key(self.reader, checkpoint))
            raise

    def release_before(
        self, checkpoint: CheckpointId, proof: FenceProof, but: CheckpointId | None = None
    ) -> None:
        """Release all checkpoints below an id.

        Args:
            checkpoint: the id.
            proof: that the reader's are still those of the one who releases them.
            but: one that is kept all the same; None: none is.

        Raises:
            FencedError, StorageError: they may be a successor's. Nothing was released.
            NotDeletedError: some pins could not be deleted. The next call tries again.
        """
        self._release([id for id in self.held() if id < checkpoint and id != but], proof)

    def held(self) -> tuple[CheckpointId, ...]:
        """Return the ids of the checkpoints that this reader keeps, ascending."""
        return pins(self.store).get(self.reader, ())

    def release(self, proof: FenceProof) -> tuple[CheckpointId, ...]:
        """Release all checkpoints, because the reader never comes back, and return their ids.

        Args:
            proof: as for ``release_before``.

        Raises:
            FencedError, StorageError: as for ``release_before``.
            NotDeletedError: some pins could not be deleted.
        """
        held = self.held()
        self._release(held, proof)
        return held

    def _release(self, held: Iterable[CheckpointId], proof: FenceProof) -> None:
        keys = [pin_key(self.reader, id) for id in held]
        if keys:
            proof.check_now()
            self.store.delete_all(keys)


def pins(store: Store) -> dict[str, tuple[CheckpointId, ...]]:
    """Return the ids of the checkpoints that each reader keeps, ascending, by the name of the reader."""
    found: dict[str, tuple[CheckpointId, ...]] = {}
    for reader, checkpoint in sorted(filter(None, map(pin_of, store.list(PINS)))):
        found[reader] = (*found.get(reader, ()), CheckpointId(checkpoint))
    return found


def reader_of(shadow: str) -> str:
    """Return the name by which a shadow keeps checkpoints of its leader."""
    return f"{_SHADOW}{shadow}"


def shadows(store: Store) -> tuple[str, ...]:
    """Return the names of the shadows that keep checkpoints, sorted."""
    return tuple(reader.removeprefix(_SHADOW) for reader in pins(store) if reader.startswith(_SHADOW))


def pinned(store: Store) -> frozenset[CheckpointId]:
    """Return the ids of the checkpoints that any reader keeps."""
    return frozenset(id for held in pins(store).values() for id in held)


def give_up(
    store: Store, checkpoints: Collection[CheckpointId], proof: FenceProof
) -> Generator[None, None, frozenset[CheckpointId]]:
    """Mark checkpoints as dropped, and return those that no reader needs: none can begin to need them any more.

    It yields between the calls to the store. Who deletes their manifests deletes the marks afterwards.

    Raises:
        FencedError: there is a successor. What is marked stays, and so do the marks.
        StoreFailedError: the store does not tell what readers need. As above.
        NotDeletedError: the mark of a checkpoint that a reader needs cannot be deleted.
    """
    # What has been pinned for long is never marked: its reader may look at any moment.
    unneeded = frozenset(checkpoints) - pinned(store)
    yield
    proof.check_now()
    for checkpoint in sorted(unneeded):
        proof.check()
        store.write(dropped_key(checkpoint), f"by generation {proof.generation}".encode())
        yield
    needed = unneeded & pinned(store)
    yield
    if needed:
        proof.check()
        store.delete_all([dropped_key(checkpoint) for checkpoint in sorted(needed)])
        yield
    return unneeded - needed


def _is_marked(store: Store, checkpoint: CheckpointId) -> bool:
    try:
        read_verified(store, dropped_key(checkpoint), lambda _: None)
    except ObjectMissingError:
        return False
    return True
