"""Simulates state hosts, all in one process: they use the real RPC to the coordinator and hold no state.

Each host has its own connection, follows its order stream, and encodes its ACKs before it is told to send them. The
process prints two events: ``joined`` when all hosts own their shards, and ``ordered`` when the last host has its order.
A line on stdin makes all hosts send their ACKs at once. The end of stdin ends the process.
"""

from __future__ import annotations

import queue
import sys
import threading
import time
from pathlib import Path

from pyarrow import flight

from chandy.state.host.coordinator_client import CoordinatorClient, Lease, OrderStream
from chandy.state.rpc.messages import Ack, ClaimShards, HostHello
from chandy.state.rpc.orders import Order, SnapshotOrder
from chandy.storage.codec import from_json, to_json

from ..lives import say
from .made import QUERY_ID, UID, acknowledgements
from .plans import Assignment

_LEASE_SECONDS = 60.0


class Host:
    """One simulated state host."""

    def __init__(self, assignment: Assignment, name: str, shards: tuple[int, ...]) -> None:
        self.name = name
        self._shards = shards
        self._store = Path(assignment.store)
        self._acks_a_message = assignment.fleet.acks_a_message
        self._client = CoordinatorClient(assignment.endpoint)
        hello = HostHello(name, f"grpc://{name}:1", name, name, 1)
        self._stream = OrderStream(self._client, hello, self._obey, Lease(_LEASE_SECONDS))
        self._orders: queue.SimpleQueue[tuple[SnapshotOrder, float]] = queue.SimpleQueue()
        self.ordered_at = 0.0
        """When the last order arrived, in monotonic seconds."""
        self._messages: list[bytes] = []

    def join(self) -> None:
        """Connect, and claim the shards."""
        threading.Thread(target=self._stream.follow, daemon=True).start()
        self._stream.welcomed.wait()
        self._client.send(ClaimShards(self.name, QUERY_ID, UID, self._shards))

    def await_order(self) -> SnapshotOrder:
        """Wait for the next order. Sets ``ordered_at``."""
        order, self.ordered_at = self._orders.get()
        return order

    def prepare(self, order: SnapshotOrder) -> None:
        """Put the objects of the shards' handles into the store, and encode the ACKs."""
        acks = list(acknowledgements(order, self.name, self._acks_a_message))
        self._messages = [to_json(ack) for ack in acks]
        for key in {file.key for ack in acks for snapshot in ack.snapshots for file in snapshot.handle.files}:
            path = self._store / key
            path.parent.mkdir(parents=True, exist_ok=True)
            path.touch()

    def acknowledge(self) -> None:
        """Send the ACKs, one message after the other."""
        for message in self._messages:
            list(
                self._client.client.flight.do_action(
                    flight.Action(Ack.__name__, message), self._client.client.options
                )
            )

    def _obey(self, order: Order) -> None:
        # Do nothing else here: the orders of other hosts would have to wait.
        if isinstance(order, SnapshotOrder):
            self._orders.put((order, time.monotonic()))


def main() -> None:
    """Run until stdin is closed."""
    assignment = from_json(Assignment, sys.argv[1].encode())
    hosts = [Host(assignment, name, shards) for name, shards in assignment.fleet.hosts.items()]
    for host in hosts:
        host.join()
    say("joined")
    threading.Thread(target=_tell_of_orders, args=(hosts,), daemon=True).start()
    for _ in sys.stdin:
        for host in hosts:
            threading.Thread(target=host.acknowledge, daemon=True).start()


def _tell_of_orders(hosts: list[Host]) -> None:
    while True:
        orders = [(host, host.await_order()) for host in hosts]
        for host, order in orders:
            host.prepare(order)
        say("ordered", at=max(host.ordered_at for host in hosts))


if __name__ == "__main__":
    main()
