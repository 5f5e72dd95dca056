"""Which small files of a snapshot stay in the packs of earlier checkpoints: a pure decision."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable

from .manifest import FileRef

MOST_PACKS = 20
"""Packs that one writer's files of a checkpoint are spread over, at most. Each one is a request at recovery, and stays
whole as long as one file in it is needed. A shard that changes in every checkpoint has a new small file in each, until
RocksDB compacts them: that many packs must fit, or files are stored again that have not changed."""


def packs_to_keep(unchanged: Iterable[FileRef], most: int = MOST_PACKS) -> frozenset[str]:
    """Return the packs whose files a checkpoint references where they are. Files of other packs are stored again.

    The packs with the most bytes are kept, and one place is left for the new pack. So what changes is written, and what
    has not changed for long is written seldom, as in size-tiered compaction.

    Args:
        unchanged: the files that earlier packs hold already.
        most: packs in all, the new one included.
    """
    used: defaultdict[str, dict[int, int]] = defaultdict(dict)
    for file in unchanged:
        # Files with the same bytes are in a pack once.
        used[file.key][file.offset] = file.size
    by_size = sorted(used, key=lambda key: (sum(used[key].values()), key), reverse=True)
    return frozenset(by_size[: most - 1])
