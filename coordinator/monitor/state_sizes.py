"""How large the state of each operator is, by the newest checkpoint: added up once for each, and not at each scrape."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping

import attrs

from ...storage.checkpoints.manifest import Manifest
from ..protocol.statistics import CheckpointStatistics, ShardStatistics


@attrs.frozen
class OperatorSize:
    """The state of an operator in a checkpoint."""

    query: str
    bytes: int
    largest_shard: int
    """Bytes of the largest of its shards: far above the others, it says that keys are not spread evenly."""
    entries: int | None = None
    """About how many entries it has in RocksDB, as ``ShardStatistics.entries``; None: this driver has taken no
    checkpoint yet."""


def sizes_in(manifest: Manifest, shards: Iterable[ShardStatistics]) -> dict[str, OperatorSize]:
    """Return the sizes of the operators of a checkpoint, by uid.

    Args:
        manifest: of the checkpoint.
        shards: the parts in the latest one that this driver has taken; empty if it has taken none.
    """
    entries = Counter[str]()
    for shard in shards:
        entries[shard.uid] += shard.entries
    found = {}
    for operator in manifest.operators:
        sizes = [handle.size if handle else 0 for handle in operator.shards]
        found[operator.uid] = OperatorSize(
            operator.query, sum(sizes), max(sizes, default=0), entries.get(operator.uid)
        )
    return found


class StateSizes:
    """The sizes in the checkpoint that was asked about last."""

    def __init__(self) -> None:
        self._known: tuple[Manifest | None, int | None, Mapping[str, OperatorSize]] = (None, None, {})

    def of(self, manifest: Manifest | None, taken: CheckpointStatistics | None) -> Mapping[str, OperatorSize]:
        """Return the sizes of the operators of a checkpoint; nothing if there is none.

        Args:
            manifest: of the checkpoint.
            taken: the latest one that this driver has taken; None if it has taken none.
        """
        known, known_id, sizes = self._known
        id = taken.id if taken else None
        if manifest is not known or id != known_id:
            sizes = sizes_in(manifest, taken.shards if taken else ()) if manifest else {}
            # One assignment: several threads may ask at a time.
            self._known = manifest, id, sizes
        return sizes
