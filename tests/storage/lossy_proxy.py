"""A TCP proxy before an HTTP server that loses the answers to requests of a kind."""

from __future__ import annotations

import re
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress

import attrs

_MAY_CONTINUE = b"HTTP/1.1 100 Continue\r\n\r\n"
_CONTINUE = re.compile(rb"(?:%s)+" % re.escape(_MAY_CONTINUE))
"""A server's word that it wants the body, which moto gives twice. The answer is what follows."""


@attrs.define
class LossyProxy:
    """Forwards to a port of this machine. The next ``lose`` requests like ``kind`` arrive, but are not answered."""

    server: int
    port: int = 0
    kind: re.Pattern[bytes] = re.compile(rb"(?!)")
    lose: int = 0
    lost: int = 0
    _listener: socket.socket | None = None
    _lock: threading.Lock = attrs.field(factory=threading.Lock)

    @contextmanager
    def running(self) -> Iterator[LossyProxy]:
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = self._listener.getsockname()[1]
        threading.Thread(target=self._accept, daemon=True).start()
        try:
            yield self
        finally:
            self._listener.close()

    def _accept(self) -> None:
        assert self._listener is not None
        with suppress(OSError):
            while True:
                client, _ = self._listener.accept()
                server = socket.create_connection(("127.0.0.1", self.server))
                doomed = threading.Event()
                for source, target, is_request in ((client, server, True), (server, client, False)):
                    threading.Thread(
                        target=self._forward, args=(source, target, is_request, doomed), daemon=True
                    ).start()

    def _forward(
        self, source: socket.socket, target: socket.socket, is_request: bool, doomed: threading.Event
    ) -> None:
        held = b""
        with suppress(OSError):
            while data := source.recv(1 << 16):
                if is_request:
                    with self._lock:
                        if self.lose and self.kind.search(data):
                            self.lose -= 1
                            doomed.set()
                elif doomed.is_set():
                    # It may come in pieces.
                    held += data
                    if not (found := _CONTINUE.match(held)):
                        if held.startswith(_MAY_CONTINUE[: len(held)]):
                            continue
                        break
                    data, held = found[0], held[found.end() :]
                    if held:
                        target.sendall(data)
                        break
                target.sendall(data)
        if held:
            with self._lock:
                self.lost += 1
        for one in (source, target):
            with suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)
            one.close()
