"""How large the state of each operator is, by the newest checkpoint: added up once for each, and not at each scrape."""

from __future__ import annotations

from collections.abc import Mapping

import attrs

from ...storage.checkpoints.manifest import Manifest


@attrs.frozen
class OperatorSize:
    """The state of an operator in a checkpoint."""

    query: str
    bytes: int
    largest_shard: int
    """Bytes of the largest of its shards: far above the others, it says that keys are not spread evenly."""


def sizes_in(manifest: Manifest) -> dict[str, OperatorSize]:
    """Return the sizes of the operators of a checkpoint, by uid."""
    found = {}
    for operator in manifest.operators:
        shards = [handle.size if handle else 0 for handle in operator.shards]
        found[operator.uid] = OperatorSize(operator.query, sum(shards), max(shards, default=0))
    return found


class StateSizes:
    """The sizes in the checkpoint that was asked about last."""

    def __init__(self) -> None:
        self._known: tuple[Manifest | None, Mapping[str, OperatorSize]] = (None, {})

    def of(self, manifest: Manifest | None) -> Mapping[str, OperatorSize]:
        """Return the sizes of the operators of a checkpoint; nothing if there is none."""
        known, sizes = self._known
        if manifest is not known:
            sizes = sizes_in(manifest) if manifest else {}
            # One assignment: several threads may ask at a time.
            self._known = manifest, sizes
        return sizes
