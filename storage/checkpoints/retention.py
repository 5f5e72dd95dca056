"""Decisions of retention: which checkpoints to drop, and which objects to delete with them."""

from __future__ import annotations

from collections.abc import Collection, Iterable

from ..ids import CheckpointId
from .manifest import Manifest


def dropped(
    verified: Iterable[CheckpointId],
    retained: int,
    in_use_bases: Collection[CheckpointId] = (),
    unverified: Iterable[CheckpointId] = (),
) -> tuple[CheckpointId, ...]:
    """Return the ids of the completed checkpoints to drop, ascending.

    The ``retained`` newest verified ones are kept, and those that a pending checkpoint builds on. An unverified one
    may be damaged, so none of these is dropped for it: as many of the newest unverified ones are kept besides, as long
    as they are newer than the oldest of these. Savepoints are in neither list, because they are stored elsewhere and
    never dropped.

    Args:
        verified: ids of the completed checkpoints that are known to be whole.
        retained: how many to keep, at least 1: without the newest, nothing can be restored.
        in_use_bases: bases of pending checkpoints, and checkpoints that are being restored.
        unverified: ids of all other completed checkpoints; see ``Manifest.unverified``.

    Raises:
        ValueError: ``retained`` is below 1.
    """
    if retained < 1:
        raise ValueError(f"cannot retain {retained} checkpoints: expected at least 1")
    whole, others = sorted(set(verified)), sorted(set(unverified))
    kept = whole[-retained:]
    oldest = kept[0] if len(kept) == retained else 0
    newer = [one for one in others[-retained:] if one > oldest]
    return tuple(sorted({*whole, *others}.difference(kept, newer, in_use_bases)))


def deletable(dropped: Iterable[Manifest], kept: Iterable[Manifest]) -> frozenset[str]:
    """Return the keys of all objects, packs included, that dropped manifests reference and kept ones do not."""
    needed = frozenset[str]().union(*(manifest.keys() for manifest in kept))
    return frozenset[str]().union(*(manifest.keys() for manifest in dropped)) - needed
