"""The orders to state hosts: a mailbox and a stream for each. A host counts as living as long as its stream."""

from __future__ import annotations

import queue
import threading
from collections.abc import Iterator

from ...state.rpc.messages import Heartbeat, Order, StopOrder

HEARTBEAT_SECONDS = 0.5
"""The longest time without an order to a host. It is also how soon the loss of a host is noticed."""


class OrderStreams:
    """The mailboxes of the connected state hosts. Sending an order never blocks."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._mailboxes: dict[str, queue.SimpleQueue[Order]] = {}

    def send(self, host: str, order: Order) -> None:
        """Put an order into a host's mailbox, or drop it if the host is gone."""
        with self._lock:
            mailbox = self._mailboxes.get(host)
        if mailbox is not None:
            mailbox.put(order)

    def stop_all(self) -> None:
        """Tell every host to stop."""
        with self._lock:
            mailboxes = list(self._mailboxes.values())
        for mailbox in mailboxes:
            mailbox.put(StopOrder())

    def orders(self, host: str) -> Iterator[Order]:
        """Yield the orders to one host until it is told to stop.

        The host has a mailbox exactly as long as this iterator lives.
        """
        mailbox: queue.SimpleQueue[Order] = queue.SimpleQueue()
        with self._lock:
            self._mailboxes[host] = mailbox
        try:
            yield Heartbeat()
            while True:
                try:
                    order = mailbox.get(timeout=HEARTBEAT_SECONDS)
                except queue.Empty:
                    order = Heartbeat()
                yield order
                if isinstance(order, StopOrder):
                    return
        finally:
            with self._lock:
                if self._mailboxes.get(host) is mailbox:
                    del self._mailboxes[host]
