"""How a state host names a shard."""

from __future__ import annotations

import attrs


@attrs.frozen
class ShardKey:
    """A shard of one run of a query. A query that goes back to a checkpoint gets another id."""

    query_id: str
    uid: str
    shard: int

    def __str__(self) -> str:
        return f"{self.uid}/{self.shard}"
