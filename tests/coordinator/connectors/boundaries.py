"""Where a publisher's steps can be interrupted: at what its clients ask of disks, catalogs and servers.

A boundary is put in place in a process that publishes. From then on it tells of each step before it is done.
"""

from __future__ import annotations

import os
import re
import socket
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any, BinaryIO

import attrs

from chandy.coordinator.sinks.two_phase.contract import TwoPhaseSink

Step = Callable[[str], None]
"""Is told the name of the next step, which begins with a word for its kind. It may never return."""
Boundary = Callable[[TwoPhaseSink, Step], TwoPhaseSink]
"""Begins to tell of the steps of this process, and returns the sink whose steps they are. It can be pickled."""


# --- disks --------------------------------------------------------------------------------------------------

_CALLS = {"open", "os.link", "os.listdir", "os.mkdir", "os.remove", "os.rename", "os.rmdir", "os.scandir"}


@attrs.frozen
class Disk:
    """Each call of the operating system for a file below a folder is a step."""

    folder: str

    def __call__(self, sink: TwoPhaseSink, step: Step) -> TwoPhaseSink:
        def audited(call: str, arguments: tuple[Any, ...]) -> None:
            if call not in _CALLS or not (path := self._inside(arguments[0])):
                return
            if call == "open":
                if arguments[2] & os.O_DIRECTORY:
                    return  # to sync it
                call = "write" if arguments[2] & os.O_ACCMODE else "read"
            step(f"{call} {path}")

        sys.addaudithook(audited)
        return sink

    def _inside(self, given: object) -> str | None:
        if not isinstance(given, (str, bytes, os.PathLike)):
            return None
        path = os.fsdecode(given)
        return path.removeprefix(self.folder) if path.startswith(self.folder) else None


# --- servers ------------------------------------------------------------------------------------------------

Requests = Callable[[BinaryIO], Iterator[tuple[str, bytes]]]
"""Cuts what a client sends into parts, each with the name of the step that begins with it, or none."""


@attrs.frozen
class Server:
    """Each request to a server of this machine is a step. Clients are led through a proxy in their own process."""

    port: int
    requests: Requests
    through: Callable[[TwoPhaseSink, int], TwoPhaseSink]
    """Returns the sink as it connects to another port."""
    own_port: int = 0
    """The port of the proxy; 0: any."""

    def __call__(self, sink: TwoPhaseSink, step: Step) -> TwoPhaseSink:
        listener = socket.create_server(("127.0.0.1", self.own_port))
        threading.Thread(target=self._accept, args=(listener, step), daemon=True).start()
        return self.through(sink, listener.getsockname()[1])

    def _accept(self, listener: socket.socket, step: Step) -> None:
        while True:
            client, _ = listener.accept()
            try:
                server = socket.create_connection(("127.0.0.1", self.port))
            except OSError:
                client.close()
                continue
            threading.Thread(target=self._ask, args=(client, server, step), daemon=True).start()
            threading.Thread(target=_answer, args=(client, server), daemon=True).start()

    def _ask(self, client: socket.socket, server: socket.socket, step: Step) -> None:
        with suppress(OSError), client.makefile("rb") as stream:
            for name, data in self.requests(stream):
                if name:
                    step(name)
                server.sendall(data)
        with suppress(OSError):
            server.shutdown(socket.SHUT_WR)


def _answer(client: socket.socket, server: socket.socket) -> None:
    with suppress(OSError):
        while data := server.recv(1 << 16):
            client.sendall(data)
    for one in (client, server):
        with suppress(OSError):
            one.shutdown(socket.SHUT_RDWR)
        one.close()


def http_requests(stream: BinaryIO) -> Iterator[tuple[str, bytes]]:
    """The requests of HTTP, such as those to S3."""
    while line := stream.readline():
        head, length = line, 0
        while (field := stream.readline()).strip():
            head += field
            key, _, value = field.partition(b":")
            assert key.lower() != b"transfer-encoding", "only bodies whose length is given are understood"
            if key.lower() == b"content-length":
                length = int(value)
        name = line.decode().rpartition(" ")[0]
        yield name.replace("GET", "LIST", 1) if "?list-type=" in name else name, head + field
        # The client may wait to be asked for it.
        yield "", stream.read(length)


_HDFS_METHOD = re.compile(
    rb"\n.([A-Za-z]+)\x12.org\.apache\.hadoop\.hdfs\.protocol\.ClientProtocol", re.DOTALL
)


def hdfs_calls(stream: BinaryIO) -> Iterator[tuple[str, bytes]]:
    """The calls of HDFS's name node."""
    yield "", stream.read(len(b"hrpc") + 3)
    for message in _with_lengths(stream):
        found = _HDFS_METHOD.search(message)
        # A lease is renewed from time to time.
        yield found[1].decode() if found and found[1] != b"renewLease" else "", message


_OF_TRANSACTIONS = {0: "Produce", 22: "InitProducerId", 24: "AddPartitionsToTxn", 26: "EndTxn"}


def kafka_requests(stream: BinaryIO) -> Iterator[tuple[str, bytes]]:
    """The requests of Kafka. Those that belong to transactions are steps: how many others there are, time decides."""
    for message in _with_lengths(stream):
        yield _OF_TRANSACTIONS.get(int.from_bytes(message[4:6], "big"), ""), message


def _with_lengths(stream: BinaryIO) -> Iterator[bytes]:
    while len(length := stream.read(4)) == 4:
        yield length + stream.read(int.from_bytes(length, "big"))


_POSTGRES = {b"Q": "query", b"P": "parse", b"d": "rows", b"c": "end of rows"}
"""What begins a step. Between its messages the server does nothing."""


def postgres_messages(stream: BinaryIO) -> Iterator[tuple[str, bytes]]:
    """The messages of PostgreSQL's clients, of which the first has no type."""
    kind = b""
    while len(length := stream.read(4)) == 4:
        yield _POSTGRES.get(kind, ""), kind + length + stream.read(int.from_bytes(length, "big") - 4)
        if not (kind := stream.read(1)):
            break


# --- Iceberg ------------------------------------------------------------------------------------------------


def iceberg_calls(sink: TwoPhaseSink, step: Step) -> TwoPhaseSink:
    """Each statement for a SQL catalog is a step, each commit there, and each use of a file of a table."""
    from pyiceberg.io.pyarrow import PyArrowFile, PyArrowFileIO
    from sqlalchemy import event
    from sqlalchemy.engine import Engine

    def execute(connection: object, cursor: object, statement: str, *_: object) -> None:
        step(f"SQL {statement.split(maxsplit=1)[0]}")

    event.listen(Engine, "before_cursor_execute", execute)
    event.listen(Engine, "commit", lambda connection: step("SQL COMMIT"))
    for owner, name in ((PyArrowFile, "create"), (PyArrowFile, "open"), (PyArrowFileIO, "delete")):
        _tell(owner, name, step)
    return sink


def _tell(owner: type, name: str, step: Step) -> None:
    """Have a method of a class be a step."""
    done = getattr(owner, name)

    def told(self: object, *arguments: Any, **more: Any) -> Any:
        step(f"{owner.__name__}.{name}")
        return done(self, *arguments, **more)

    setattr(owner, name, told)
