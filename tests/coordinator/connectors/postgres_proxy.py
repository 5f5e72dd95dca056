"""A TCP proxy before a PostgreSQL server that knows messages, and cuts or freezes connections at a chosen one."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

import attrs

Act = Callable[["Link"], None]


@attrs.define(eq=False)
class Link:
    """One connection through the proxy."""

    client: socket.socket
    server: socket.socket

    def cut(self) -> None:
        """End both connections, before the message reaches the server."""
        self.server.shutdown(socket.SHUT_RDWR)
        self.client.shutdown(socket.SHUT_RDWR)

    def lose_answers(self) -> None:
        """End the client's connection, before the message reaches the server, which gets it all the same.

        Afterwards would be too late: the answer may be with the client by then.
        """
        self.client.shutdown(socket.SHUT_RDWR)


@attrs.define(eq=False)
class PostgresProxy:
    """Forwards to a port of this machine, and counts the messages of clients."""

    server_port: int
    port: int = 0
    messages: int = 0
    """Messages that came since ``act_at`` was called."""
    kinds: list[bytes] = attrs.field(factory=list)
    """The type of each of them."""
    _before: tuple[int, Act] | None = None
    _after: tuple[int, Act] | None = None
    _lock: threading.Lock = attrs.field(factory=threading.Lock)

    def act_at(self, message: int, *, before: Act | None = None, after: Act | None = None) -> None:
        """Count from 0, and do something before or after the message of that number is forwarded, once."""
        with self._lock:
            self.messages, self.kinds = 0, []
            self._before = (message, before) if before else None
            self._after = (message, after) if after else None

    @contextmanager
    def running(self) -> Iterator[PostgresProxy]:
        listener = socket.create_server(("127.0.0.1", 0))
        self.port = listener.getsockname()[1]
        threading.Thread(target=self._accept, args=(listener,), daemon=True).start()
        try:
            yield self
        finally:
            # It ends the waiting ``accept``, too, which ``close`` does not.
            with suppress(OSError):
                listener.shutdown(socket.SHUT_RDWR)
            listener.close()

    def _accept(self, listener: socket.socket) -> None:
        with suppress(OSError):
            while True:
                client, _ = listener.accept()
                try:
                    server = socket.create_connection(("127.0.0.1", self.server_port))
                except OSError:
                    client.close()
                    continue
                link = Link(client, server)
                threading.Thread(target=self._requests, args=(link,), daemon=True).start()
                threading.Thread(target=_answers, args=(link,), daemon=True).start()

    def _requests(self, link: Link) -> None:
        with suppress(OSError), link.client.makefile("rb") as stream:
            header = b""  # The first message has no type.
            while True:
                if header and not (header := stream.read(1)):
                    break
                length = stream.read(4)
                if len(length) < 4:
                    break
                message = header + length + stream.read(int.from_bytes(length) - 4)
                number = self._number(header or b"-")
                if act := self._due("_before", number):
                    act(link)
                link.server.sendall(message)
                if act := self._due("_after", number):
                    act(link)
                header = header or b"?"
        # What was forwarded still arrives: the server reads it, and then the end.
        with suppress(OSError):
            link.server.shutdown(socket.SHUT_WR)

    def _number(self, kind: bytes) -> int:
        with self._lock:
            self.messages += 1
            self.kinds.append(kind)
            return self.messages - 1

    def _due(self, when: str, number: int) -> Act | None:
        with self._lock:
            due: tuple[int, Act] | None = getattr(self, when)
            if due is None or due[0] != number:
                return None
            setattr(self, when, None)
            return due[1]


def _answers(link: Link) -> None:
    with suppress(OSError):
        while data := link.server.recv(1 << 16):
            with suppress(OSError):  # What nobody hears is read all the same, so that the server goes on.
                link.client.sendall(data)
    for one in (link.client, link.server):
        with suppress(OSError):
            one.shutdown(socket.SHUT_RDWR)
        one.close()
