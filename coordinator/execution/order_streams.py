"""The orders to state hosts: a mailbox and a stream for each. A host counts as living as long as its stream."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from ...state.rpc.orders import Heartbeat, Order, StopHost
from ...storage import runtime

HEARTBEAT_SECONDS = 0.5
"""The longest time without an order to a host. It is also how soon the loss of a host is noticed."""

Mailbox = runtime.Queue[Order]


class OrderStreams:
    """The mailboxes of the connected state hosts. Sending an order never blocks."""

    def __init__(self) -> None:
        self._lock = runtime.lock()
        self._mailboxes: dict[str, Mailbox] = {}
        self._stopped = False

    def send(self, host: str, order: Order) -> None:
        """Put an order into a host's mailbox, or drop it if the host is gone."""
        with self._lock:
            mailbox = self._mailboxes.get(host)
        if mailbox is not None:
            mailbox.put(order)

    def stop_all(self) -> None:
        """Tell every host to stop, also those that connect from now on."""
        with self._lock:
            self._stopped = True
            for mailbox in self._mailboxes.values():
                mailbox.put(StopHost())

    @contextmanager
    def connected(self, host: str) -> Iterator[Iterator[Order]]:
        """Give a host a mailbox, and yield the orders that come into it until the host is told to stop.

        The mailbox is there before the first order is read, so nothing that is sent meanwhile is lost.
        """
        mailbox: Mailbox = runtime.simple_queue()
        with self._lock:
            self._mailboxes[host] = mailbox
            if self._stopped:
                mailbox.put(StopHost())
        try:
            yield _orders(mailbox)
        finally:
            with self._lock:
                if self._mailboxes.get(host) is mailbox:
                    del self._mailboxes[host]


def _orders(mailbox: Mailbox) -> Iterator[Order]:
    """Yield what comes into a mailbox up to the order to stop, and heartbeats meanwhile."""
    order: Order = Heartbeat()
    yield order
    while not isinstance(order, StopHost):
        try:
            order = mailbox.get(timeout=HEARTBEAT_SECONDS)
        except runtime.Empty:
            order = Heartbeat()
        yield order
