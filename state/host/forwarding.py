"""What tasks stage on shards goes to their standbys, too, before the tasks are told that it is staged."""

from __future__ import annotations

import contextlib
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping

from ...storage.errors import ChandyError
from ...storage.logs import logger
from ..rpc.messages import BeginTask, Control, DropStandby, Forward, Forwarded, ShardId
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
        peers: the other hosts. None: there is no other.
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
                    owed[standby.address][number] = Forwarded(standby.number, position)
            if self._peers is None:
                return
            begun: list[tuple[str, Forward, Callable[[], None]]] = []
            for address, some in owed.items():
                columns = {number: changes[number].columns for number in some if number in changes}
                request = Forward(task.query_id, task.uid, task.batch, some)
                with self._dropping(address, request, shards):
                    begun.append((address, request, self._peers.forward(address, request, columns)))
            # All have what they are to stage before the first is waited for.
            for address, request, wait in begun:
                with self._dropping(address, request, shards):
                    wait()

    @contextlib.contextmanager
    def _dropping(self, address: str, request: Forward, shards: Mapping[int, Shard]) -> Iterator[None]:
        """Drop the standbys on a host if they have missed something."""
        try:
            yield
        except ChandyError as error:
            _log.warning("standbys are behind", address=address, batch=request.batch, error=str(error))
            self._drop(request, shards)

    def _drop(self, request: Forward, shards: Mapping[int, Shard]) -> None:
        """Go on without standbys, if the coordinator consents."""
        for number, one in request.shards.items():
            shard = shards[number]
            known = ShardId(request.uid, number)
            drop = DropStandby(self._host, request.query_id, known, shard.term, one.standby)
            self._control.drop_standby(drop)
            shard.end_standby(one.standby)
