"""Which checkpoints go and which objects go with them: pure decisions."""

from __future__ import annotations

from collections.abc import Collection, Iterable

from .manifest import Manifest


def dropped(completed: Iterable[int], retained: int, in_use_bases: Collection[int] = ()) -> tuple[int, ...]:
    """Return the ids of the completed checkpoints to drop, ascending.

    Exactly the ``retained`` newest remain, and those that a pending checkpoint builds on. Savepoints are not
    among ``completed``: they live elsewhere and are never dropped.

    Args:
        completed: ids of all completed checkpoints of the pipeline.
        retained: how many remain; at least 1, for without the newest nothing can be restored.
        in_use_bases: bases of pending checkpoints, and what a restore is reading.

    Raises:
        ValueError: ``retained`` is below 1.
    """
    if retained < 1:
        raise ValueError(f"expected to retain at least 1 checkpoint, found {retained}")
    return tuple(
        checkpoint for checkpoint in sorted(set(completed))[:-retained] if checkpoint not in in_use_bases
    )


def deletable(dropped: Iterable[Manifest], kept: Iterable[Manifest]) -> frozenset[str]:
    """Return the keys of the objects that dropped manifests reference and no kept one does, packs too."""
    needed = frozenset[str]().union(*(manifest.keys() for manifest in kept))
    return frozenset[str]().union(*(manifest.keys() for manifest in dropped)) - needed
