"""What tasks stage on shards goes to their standbys, too, before the tasks are told that it is staged."""

from __future__ import annotations

import contextlib
from collections import defaultdict
from collections.abc import Mapping

from ...storage import runtime
from ...storage.errors import ChandyError
from ...storage.logs import logger
from ..rpc.messages import BeginTask, Control, DropStandby, Forward, Forwarded
from ..shards import ShardId
from .changes import Changes
from .peers import Peers
from .shard import Shard

_log = logger(__name__)


class Forwarding:
    """Stages what tasks have changed, here and at the standbys.

    Spark commits a batch when all of its tasks have been told that their changes are staged. So a standby that has
    missed nothing has whatever Spark may have committed. One that has missed something must not become the owner:
    before the task is told, the coordinator is asked to drop it. The coordinator consents only as long as this host
    owns the shard. So a host that has lost a shard without knowing it can tell no task that anything is staged: the
    standby refuses, because it is the owner by now, and the coordinator does not consent.

    Args:
        host: id of this host.
        control: the coordinator.
        peers: the other hosts; None if there is no other.
    """

    def __init__(self, host: str, control: Control, peers: Peers | None) -> None:
        self._host = host
        self._control = control
        self._peers = peers

    def stage(self, task: BeginTask, shards: Mapping[int, Shard], changes: Mapping[int, Changes]) -> None:
        """Stage the changes of an attempt on all of its shards.

        Raises:
            ShardRefusedError: Spark has gone on without this attempt.
            ChandyError: a standby has missed something, and the coordinator does not consent to go on without it.
        """
        with contextlib.ExitStack() as in_order:
            for number in sorted(shards):
                in_order.enter_context(shards[number].in_order)
            owed: defaultdict[str, dict[int, Forwarded]] = defaultdict(dict)
            for number, shard in shards.items():
                position = shard.stage(task.batch, changes.get(number))
                if (standby := shard.standby) is not None:
                    owed[standby.address][number] = Forwarded(standby.copy_id, position)
            # All have answered before the coordinator is asked, and before another attempt is staged.
            for missed in self._forward(task, owed, changes):
                self._drop(missed, shards)
        for one in changes.values():
            one.keep_table()

    def _forward(
        self, task: BeginTask, owed: Mapping[str, dict[int, Forwarded]], changes: Mapping[int, Changes]
    ) -> list[Forward]:
        """Have standbys stage it, on all of their hosts at the same time; return what some have missed."""
        peers = self._peers
        if peers is None or not owed:
            return []

        def forward(address: str) -> Forward | None:
            columns = {number: changes[number].columns for number in owed[address] if number in changes}
            rows = sum(map(len, columns.values()))
            request = Forward(task.query_id, task.uid, task.batch, owed[address], rows)
            try:
                peers.forward(address, request, columns)
            except ChandyError as error:
                _log.warning("standbys are behind", address=address, batch=task.batch, error=str(error))
                return request
            return None

        if len(owed) == 1:
            answers = [forward(address) for address in owed]
        else:
            # Each has its own time: one that does not answer takes none from the others.
            with runtime.pool(len(owed), "chandy-forward") as pool:
                answers = list(pool.map(forward, owed))
        return [request for request in answers if request is not None]

    def _drop(self, request: Forward, shards: Mapping[int, Shard]) -> None:
        """Go on without standbys, if the coordinator consents."""
        for number, one in request.shards.items():
            shard = shards[number]
            known = ShardId(request.uid, number)
            drop = DropStandby(self._host, request.query_id, known, shard.term, one.copy_id)
            self._control.send(drop)
            shard.end_standby(one.copy_id)
