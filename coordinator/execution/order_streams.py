"""The driver's end of the links to state hosts: one mailbox of orders each, and a lease that is its stream."""

from __future__ import annotations

import queue
import threading
from collections.abc import Iterator

from ...state.rpc.messages import Heartbeat, Order, StopOrder

HEARTBEAT_SECONDS = 0.5
"""How often a host hears from the coordinator at least; that is also how soon a host that is gone is noticed."""


class OrderStreams:
    """Mailboxes of the state hosts that are connected. Putting an order never blocks."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._mailboxes: dict[str, queue.SimpleQueue[Order]] = {}

    def send(self, host: str, order: Order) -> None:
        """Put an order into a host's mailbox; one for a host that is gone is dropped."""
        with self._lock:
            mailbox = self._mailboxes.get(host)
        if mailbox is not None:
            mailbox.put(order)

    def stop_all(self) -> None:
        """Tell every host to end."""
        with self._lock:
            mailboxes = list(self._mailboxes.values())
        for mailbox in mailboxes:
            mailbox.put(StopOrder())

    def orders(self, host: str) -> Iterator[Order]:
        """The endless stream of one host's orders, which ends when the host has been told to stop.

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
