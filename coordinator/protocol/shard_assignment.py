"""Which state host owns which shard, and where the state of a shard that nobody owns comes from."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import attrs

from ...state.rpc.messages import ClaimAnswer, HostHello, RestoreSource, ResumePoint, ShardId
from ..errors import StateLostError


@attrs.define
class _Owned:
    host: str
    since: int
    """The batch in which the shard was granted."""


@attrs.define
class ShardAssignment:
    """Who owns the shards of one query, for as long as its Spark id stays the same.

    A shard is owned by the first host that claims it, until that host is lost. An owner that is lost takes
    the state of the batches since the latest checkpoint with it, so nobody else may claim the shard then: the
    pipeline must go back.
    """

    shards: tuple[ShardId, ...] = ()
    sources: dict[ShardId, RestoreSource] = attrs.field(factory=dict)
    """Where a shard's state comes from; a shard that is not here starts empty."""
    resume_point: ResumePoint | None = None
    """What the shards' changelogs lead to from there; None: nothing."""
    _owners: dict[ShardId, _Owned] = attrs.field(factory=dict)

    def claim(
        self, host: str, wanted: Sequence[ShardId], batch: int, living: Mapping[str, HostHello]
    ) -> ClaimAnswer:
        """Grant shards that nobody owns.

        Args:
            host: id of the host that claims.
            wanted: the shards it wants.
            batch: the newest batch of the query.
            living: the hosts that live, by id.

        Raises:
            StateLostError: a shard's owner is gone, or has forgotten it.
        """
        mine: list[ShardId] = []
        elsewhere: dict[int, str] = {}
        for shard in wanted:
            owned = self._owners.get(shard)
            if owned is None:
                mine.append(shard)
            elif owned.host not in living:
                raise StateLostError(shard.uid, shard.shard, f"its state host {owned.host} is gone")
            elif owned.host != host:
                elsewhere[shard.shard] = living[owned.host].address
            elif owned.since == batch:
                # A host whose restore failed asks again in the same batch.
                mine.append(shard)
            else:
                raise StateLostError(shard.uid, shard.shard, f"its state host {host} no longer has it")
        for shard in mine:
            self._owners[shard] = _Owned(host, batch)
        granted = {shard.shard: self.sources.get(shard) for shard in mine}
        return ClaimAnswer(granted, elsewhere, self.resume_point)

    def by_owner(self) -> dict[str, tuple[ShardId, ...]]:
        """The shards of each host that owns some, sorted; hosts sorted, too."""
        found: dict[str, list[ShardId]] = {}
        for shard in sorted(self._owners, key=lambda one: (one.uid, one.shard)):
            found.setdefault(self._owners[shard].host, []).append(shard)
        return {host: tuple(found[host]) for host in sorted(found)}

    def owners(self) -> frozenset[str]:
        """The hosts that own a shard."""
        return frozenset(owned.host for owned in self._owners.values())

    @property
    def complete(self) -> bool:
        """Whether the state of every shard is known: it is what a host has, or its origin alone."""
        return self.resume_point is None or next(self.unowned(), None) is None

    def unowned(self) -> Iterator[ShardId]:
        """The shards that no host has touched: their state is still their origin's, and what changelogs lead to."""
        return (shard for shard in self.shards if shard not in self._owners)
