"""Decisions of retention: which checkpoints to drop, and which objects to delete with them."""

from __future__ import annotations

from collections.abc import Collection, Iterable

from .manifest import Manifest


def dropped(completed: Iterable[int], retained: int, in_use_bases: Collection[int] = ()) -> tuple[int, ...]:
    """Return the ids of the completed checkpoints to drop, ascending.

    The ``retained`` newest are kept, and those that a pending checkpoint builds on. Savepoints are not among
    ``completed``, because they are stored elsewhere and never dropped.

    Args:
        completed: ids of all completed checkpoints of the pipeline.
        retained: how many to keep, at least 1: without the newest, nothing can be restored.
        in_use_bases: bases of pending checkpoints, and checkpoints that are being restored.

    Raises:
        ValueError: ``retained`` is below 1.
    """
    if retained < 1:
        raise ValueError(f"cannot retain {retained} checkpoints: expected at least 1")
    return tuple(
        checkpoint for checkpoint in sorted(set(completed))[:-retained] if checkpoint not in in_use_bases
    )


def deletable(dropped: Iterable[Manifest], kept: Iterable[Manifest]) -> frozenset[str]:
    """Return the keys of all objects, packs included, that dropped manifests reference and kept ones do not."""
    needed = frozenset[str]().union(*(manifest.keys() for manifest in kept))
    return frozenset[str]().union(*(manifest.keys() for manifest in dropped)) - needed
