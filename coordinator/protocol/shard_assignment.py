"""Which state host owns which shard, and where the state of a shard without an owner comes from."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Final

import attrs

from ...state.rpc.messages import ClaimAnswer, HostHello
from ...state.shards import FIRST_TERM, NO_TERM, RestoreSource, ResumePoint, ShardId, Term
from ...storage.ids import BatchId
from .errors import StateLostError

STAYS: Final = 8
"""A task that runs beside a host without its shard in so many batches in a row stays there. By chance, one of three
machines has the same task so often once in two thousand times."""


@attrs.define
class _Owned:
    host: str
    since: int | None
    """The batch in which the shard was granted; None: it moved here, and is nowhere else any more."""
    term: Term


@attrs.frozen
class _Asked:
    """A host that does not have a shard has asked for it, in some batches in a row."""

    host: str
    batch: BatchId
    """The latest of them."""
    times: int

    def again(self, host: str, batch: BatchId) -> _Asked:
        """Return what another question makes of it."""
        in_a_row = host == self.host and batch - self.batch in (0, 1)
        return _Asked(host, batch, self.times + batch - self.batch if in_a_row else 1)


@attrs.frozen
class ShardLocations:
    """Where the state of one operator is."""

    query_id: str
    """Spark's id of its query."""
    hosts: tuple[HostHello, ...]
    """The hosts that own some of its shards."""
    untouched: dict[int, RestoreSource | None]
    """Where the state of each shard without an owner is to come from; None if it is empty."""
    resume_point: ResumePoint | None = None
    """What the changelogs of untouched shards add to it; None: nothing."""


@attrs.define
class ShardAssignment:
    """The owners of the shards of one query, for as long as its Spark id stays the same.

    The first host that claims a shard owns it until it moves (``moves``) or the host is lost. With a host the state
    since the latest checkpoint is lost, so no other host may claim the shard: the pipeline must go back.

    Every owner has the shard in a term of its own, and the terms of a shard rise. What comes from an owner of an older
    term does not count.
    """

    shards: tuple[ShardId, ...] = ()
    sources: dict[ShardId, RestoreSource] = attrs.field(factory=dict)
    """Where a shard's state comes from; a shard that is not here starts empty."""
    resume_point: ResumePoint | None = None
    """What the shards' changelogs add to it; None: nothing."""
    _owners: dict[ShardId, _Owned] = attrs.field(factory=dict, init=False)
    """Changed by ``_put`` alone."""
    _terms: dict[ShardId, Term] = attrs.field(factory=dict, init=False)
    """The newest term of each shard that has had an owner."""
    _shares: Counter[str] = attrs.field(factory=Counter, init=False)
    """How many shards each host owns. When many hosts are lost at once, no one looks through all shards for each."""
    _asked: dict[ShardId, _Asked] = attrs.field(factory=dict, init=False)
    """The host that was the last to ask for a shard of another host."""
    _unread: set[ShardId] = attrs.field(init=False)
    """The shards whose source nobody has read as a whole since the restore."""

    def __attrs_post_init__(self) -> None:
        self._unread = {shard for shard in self.shards if shard in self.sources}

    def claim(
        self,
        host: str,
        wanted: Sequence[ShardId],
        batch: BatchId,
        living: Mapping[str, HostHello],
        aside: Mapping[int, Term] | None = None,
        instead: Sequence[str] = (),
    ) -> ClaimAnswer:
        """Grant shards that have no owner.

        Args:
            host: id of the host that claims.
            wanted: the shards it wants.
            batch: the newest batch of the query.
            living: the hosts that live, by id.
            aside: by shard the term in which the host could serve what it has set aside in a move.
            instead: the hosts that get shards without an owner, each its part; empty: the one that claims them.

        Raises:
            StateLostError: a shard's owner is gone, or no longer has the shard.
        """
        place = living[host].place if host in living else ""
        mine: list[ShardId] = []
        kept: list[int] = []
        elsewhere: dict[int, str] = {}
        for shard in wanted:
            owned = self._owners.get(shard)
            if owned is None and instead:
                elsewhere[shard.shard] = living[instead[shard.shard % len(instead)]].address_from(place)
            elif owned is None:
                mine.append(shard)
            elif owned.host not in living:
                raise StateLostError(shard.uid, shard.shard, f"its state host {owned.host} is gone")
            elif owned.host != host:
                elsewhere[shard.shard] = living[owned.host].address_from(place)
                asked = self._asked.get(shard)
                self._asked[shard] = asked.again(host, batch) if asked else _Asked(host, batch, 1)
            elif (aside or {}).get(shard.shard) == owned.term:
                kept.append(shard.shard)
            elif owned.since == batch:
                # A host whose restore failed asks again in the same batch.
                mine.append(shard)
            else:
                raise StateLostError(shard.uid, shard.shard, f"its state host {host} no longer has it")
        for shard in mine:
            owned = self._owners.get(shard)
            self._put(shard, _Owned(host, batch, owned.term if owned else self.raise_term(shard)))
        granted = {shard.shard: self.sources.get(shard) for shard in mine}
        terms = {shard.shard: term for shard in mine if (term := self.owner_term(shard)) > FIRST_TERM}
        return ClaimAnswer(granted, elsewhere, self.resume_point, tuple(kept), terms)

    def raise_term(self, shard: ShardId) -> Term:
        """Return a term of a shard that nobody has had, for its next owner."""
        self._terms[shard] = Term(self._terms.get(shard, NO_TERM) + 1)
        return self._terms[shard]

    def needed_elsewhere(self, batch: BatchId) -> dict[ShardId, str]:
        """Return the shards whose tasks stay beside a host that does not have them, and that host.

        Args:
            batch: the newest batch of the query.
        """
        return {
            shard: asked.host
            for shard, asked in self._asked.items()
            # The tasks of the newest batch may not have asked yet.
            if asked.times >= STAYS and batch - asked.batch <= 1
        }

    def hand_over(self, shard: ShardId, host: str, term: Term) -> None:
        """Make another host, which has all that the owner had, the owner of a shard."""
        self._asked.pop(shard, None)
        self._put(shard, _Owned(host, None, term))

    def owner_term(self, shard: ShardId) -> Term:
        """Return the term of a shard's owner, ``NO_TERM`` if it has none."""
        owned = self._owners.get(shard)
        return owned.term if owned else NO_TERM

    def is_owner(self, shard: ShardId, host: str, term: Term) -> bool:
        """Whether a host has a shard in a term."""
        owned = self._owners.get(shard)
        return owned is not None and (owned.host, owned.term) == (host, term)

    def give_up(self, host: str, shard: ShardId) -> None:
        """Take a shard from a host that could not open it: its state is its source's, as before."""
        owned = self._owners.get(shard)
        if owned is not None and owned.host == host:
            self._put(shard, None)

    def read(self, shards: Iterable[ShardId]) -> None:
        """Record that every byte of the sources of shards was read, and is as it was written."""
        self._unread.difference_update(shards)

    def unread(self) -> list[RestoreSource]:
        """The sources that may be damaged: nobody has read them as a whole since the restore."""
        return [self.sources[shard] for shard in sorted(self._unread)]

    def by_owner(self) -> dict[str, tuple[ShardId, ...]]:
        """The shards by the host that owns them; hosts and shards are sorted."""
        found: dict[str, list[ShardId]] = {}
        for shard in sorted(self._owners, key=lambda one: (one.uid, one.shard)):
            found.setdefault(self._owners[shard].host, []).append(shard)
        return {host: tuple(found[host]) for host in sorted(found)}

    def owners(self) -> frozenset[str]:
        """The hosts that own a shard."""
        return frozenset(host for host, share in self._shares.items() if share)

    def owns(self, host: str) -> bool:
        """Whether a host owns a shard."""
        return self.share(host) > 0

    def share(self, host: str) -> int:
        """Return how many shards a host owns."""
        return self._shares.get(host, 0)

    @property
    def is_owned(self) -> bool:
        """Whether every shard has an owner."""
        return len(self._owners) == len(self.shards)

    @property
    def complete(self) -> bool:
        """Whether the state of every shard is known: a host has it, or it is exactly its source."""
        return self.resume_point is None or self.is_owned

    def _put(self, shard: ShardId, owned: _Owned | None) -> None:
        """Give a shard another owner, or none."""
        if (before := self._owners.pop(shard, None)) is not None:
            self._shares[before.host] -= 1
        if owned is not None:
            self._owners[shard] = owned
            self._shares[owned.host] += 1

    def unowned(self) -> Iterator[ShardId]:
        """The shards without an owner: their state is still their source's, and what their changelogs add to it."""
        return (shard for shard in self.shards if shard not in self._owners)
