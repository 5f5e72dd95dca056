"""Shards of lost hosts that another host on the same machine opens again: from a checkpoint and from a changelog.

Each host keeps a changelog of its shards on its machine, and each change is there before the task hears that it is
staged. So whatever Spark may have committed is on the disk of the machine, although the host is lost:

1. The lost host is dismissed, as when a standby takes its place (``standbys``): it begins no batch, and what it
   acknowledges does not count. The next batch and all snapshots of the query wait, and the tasks of the running batch.
2. A host that has the same disk is told to open the shard, one that is there or the next one that joins. It waits until
   the process of the lost host has ended, restores the latest completed checkpoint, and applies what the changelog has
   up to the newest batch that is known to have committed. What is staged after that stays staged.
3. When it has all of that, it owns the shard in a new term, and the query goes on. It has not restarted.

The lost host may live on, cut off from the driver. Until its process has ended, it may tell tasks that changes are
staged, but then its changelog has them, and nobody has read it yet.

If that host is lost, too, before it owns the shard, the next one may come. If none comes in time, or what the changelog
has does not lead there, the pipeline goes back to its checkpoint. It does so at once if the host has gone silent, or if
all executors that have had a host with this disk are gone, too: then the machine may be lost, and with it the disk.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from typing import Final

import attrs

from ...state.rpc.messages import HostHello
from ...state.rpc.orders import EndStandby, Reopen
from ...state.shards import CopyId, ShardId
from .copies import Copies, CopyPhase, ShardCopy
from .instructions import Send
from .query_state import QueryState

AWAIT_HOST_SECONDS: Final = 10.0
"""How long the shards of a lost host wait for another one on its machine. An executor starts one in a second or two."""
_UNKNOWN: Final = ""
"""The target of a shard while no host on the machine is known."""


@attrs.define
class Reopenings(Copies):
    """The shards of lost hosts that are to be opened again: at most one for each shard."""

    _lost: dict[str, HostHello] = attrs.field(factory=dict, init=False)
    """What lost hosts reported when they joined, by id."""
    _until: dict[str, float] = attrs.field(factory=dict, init=False)
    """Until when a host may be told to open the shards of a lost one, by its id."""

    def holds(self, query: str) -> bool:
        """Whether a query's next batch and its snapshots wait for a shard that is to be opened again."""
        return bool(self.of(query, CopyPhase.LOST, CopyPhase.HANDING_OVER))

    @property
    def are_waiting(self) -> bool:
        """Whether some wait for a host on their machine."""
        return any(one.phase is CopyPhase.LOST for one in self.under_way.values())

    def machine_of(self, one: ShardCopy) -> str | None:
        """Return the machine whose disk has the shard of a lost host; None if the host was not lost to this."""
        lost = self._lost.get(one.owner)
        return lost.machine if lost else None

    def lose(self, shards: Iterable[tuple[str, ShardId]], lost: HostHello, until: float) -> None:
        """Have the shards of a lost host, each after its query, wait for another host on the same machine.

        Args:
            lost: what the host reported when it joined; it keeps changelogs.
            until: when that is given up.
        """
        self._lost[lost.host], self._until[lost.host] = lost, until
        for query, shard in shards:
            self._await_host(query, shard, lost.host)

    def await_another(self, host: str) -> None:
        """Have the shards that a host was to open, which is lost, too, wait for another one, but not any longer.

        It was not their owner yet, so it has told no task anything. What it may have deleted is found to be missing.
        """
        for one in self.pop(lambda one: one.target == host):
            self._await_host(one.query, one.shard, one.owner)

    def _await_host(self, query: str, shard: ShardId, lost: str) -> None:
        id = self.ids.next()
        until = self._until[lost]
        self.under_way[id] = ShardCopy(id, query, shard, lost, _UNKNOWN, CopyPhase.LOST, deadline=until)

    def hand_over(
        self,
        queries: Mapping[str, QueryState],
        hosts: Mapping[str, HostHello],
        now: float,
        until: float,
    ) -> Iterator[Send]:
        """Have hosts open the shards that wait for one on their machine.

        Args:
            queries: the queries, by name.
            hosts: the hosts that may have them, by id.
            now: seconds since 1970.
            until: when it is given up.
        """
        lost = [
            one
            for one in self.under_way.values()
            if one.phase is CopyPhase.LOST and now < self._until[one.owner]
        ]
        disks = {self._lost[one.owner].changelogs for one in lost}
        by_disk = {
            disk: sorted(host for host, hello in hosts.items() if hello.changelogs == disk) for disk in disks
        }
        for one in lost:
            if not (found := by_disk[self._lost[one.owner].changelogs]):
                continue
            # Each of them gets its part.
            one.target = found[one.id % len(found)]
            one.enter(CopyPhase.HANDING_OVER, until)
            query = queries[one.query]
            one.term = query.assignment.raise_term(one.shard)
            cut = query.surely_committed
            source, after = query.newest_source(one.shard)
            yield Send(
                one.target,
                Reopen(
                    one.id,
                    query.query_id,
                    one.shard,
                    source,
                    after,
                    one.owner,
                    cut,
                    query.gate.passed,
                    one.term,
                ),
            )

    def hopeless(self, may_be_followed: Callable[[HostHello], bool]) -> set[CopyId]:
        """Return the shards that wait for a host on their machine although none will come."""
        return {
            one.id
            for one in self.under_way.values()
            if one.phase is CopyPhase.LOST and not may_be_followed(self._lost[one.owner])
        }

    def ended(self, ended: Collection[ShardCopy], queries: Mapping[str, QueryState]) -> Iterator[Send]:
        """Tell the hosts that were to open shards that this has been given up."""
        for one in ended:
            if one.phase is CopyPhase.HANDING_OVER and one.query in queries:
                yield Send(one.target, EndStandby(queries[one.query].query_id, one.shard, one.id))
