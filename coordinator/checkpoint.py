"""The description of a completed checkpoint that users get."""

from __future__ import annotations

from datetime import datetime

import attrs

from ..storage.checkpoints.manifest import ChannelRecord, CheckpointKind, Manifest
from ..storage.html import table
from ..storage.times import rounded, shown, utc


@attrs.frozen
class Checkpoint:
    """A completed checkpoint or savepoint."""

    id: int
    kind: CheckpointKind = attrs.field(repr=str)
    uri: str
    """Where it is stored; a savepoint is restored by ``restore=<this URI>``."""
    triggered_at: float = attrs.field(repr=shown)
    """Seconds since 1970."""
    completed_at: float = attrs.field(repr=shown)
    """Seconds since 1970."""
    size: int
    """Bytes that a restore reads."""
    new_bytes: int
    """Bytes that were written for it; the others it shares with earlier checkpoints."""
    shards: int
    """Number of shards in it."""
    batches: dict[str, int]
    """The cut: the last batch of each query that belongs to it."""
    channels: tuple[ChannelRecord, ...] = attrs.field(default=(), repr=False)
    """What was between queries of which one reads what the other writes."""

    @property
    def triggered_time(self) -> datetime:
        """``triggered_at`` as a time in UTC."""
        return utc(self.triggered_at)

    @property
    def completed_time(self) -> datetime:
        """``completed_at`` as a time in UTC."""
        return utc(self.completed_at)

    @property
    def duration(self) -> float:
        """Seconds from trigger to completion."""
        return self.completed_at - self.triggered_at

    def _repr_html_(self) -> str:
        rows = [
            ("stored at", self.uri),
            ("completed", shown(self.completed_at)),
            ("seconds", rounded(self.duration)),
            ("bytes", f"{self.size:,}"),
            ("new bytes", f"{self.new_bytes:,}"),
            ("shards", self.shards),
            *((f"last batch of {query}", batch) for query, batch in self.batches.items()),
        ]
        return table(f"Checkpoint {self.id}, {self.kind}", ("", ""), rows)

    @classmethod
    def of(cls, manifest: Manifest, uri: str) -> Checkpoint:
        """Describe a manifest that is durable at ``uri``."""
        return cls(
            id=manifest.id,
            kind=manifest.kind,
            uri=uri,
            triggered_at=manifest.triggered_at,
            completed_at=manifest.completed_at,
            size=manifest.size,
            new_bytes=manifest.new_bytes,
            shards=manifest.shard_count,
            batches={query.name: query.batch for query in manifest.queries},
            channels=manifest.channels,
        )
