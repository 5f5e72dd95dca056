"""Calls and streams between processes: they take time, are overtaken by others, and break.

Whoever calls a process that is killed hears so at once. One whose machine has lost its power, or that is cut off, says
nothing: the call ends when nobody has answered for so long that the connection is taken for broken.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, Final, Generic, TypeVar

import attrs

from .scheduler import Scheduler, SimulatedProcess, SimulatedThread

T = TypeVar("T")

SILENT_SECONDS: Final = 20.0
"""After so long without an answer a connection is taken for broken."""


@attrs.define(eq=False)
class _Connection(Generic[T]):
    """What is on its way from a server to its caller."""

    caller: SimulatedProcess
    target: SimulatedProcess
    what: str
    items: list[T] = attrs.field(factory=list)
    error: BaseException | None = None
    """What the server raised."""
    is_over: bool = False
    """Whether the server sends nothing more."""
    is_broken: bool = False
    waiting: list[tuple[SimulatedThread, int]] = attrs.field(factory=list)

    @property
    def has_news(self) -> bool:
        return bool(self.items) or self.is_over or self.is_broken


@attrs.define
class Loss:
    """A connection that is to break."""

    what: str
    """The name of the call begins so."""
    is_answer: bool
    """Whether the call has been carried out by then."""


class Network:
    """Connects the processes of a world.

    Args:
        scheduler: of the threads.
    """

    def __init__(self, scheduler: Scheduler) -> None:
        self._scheduler = scheduler
        self._random = scheduler.choices.stream("network")
        self._open: dict[int, list[_Connection[Any]]] = {}
        self.cut: set[frozenset[str]] = set()
        """Pairs of machines, by their names, between which nothing arrives."""
        self.losses: list[Loss] = []
        """Connections that are to break, each once."""
        self.longest = 0.05
        """Seconds that a message takes at most, if nothing is wrong."""

    def call(
        self,
        target: SimulatedProcess,
        function: Callable[[], T],
        what: str,
        lost: Callable[[str], Exception],
        timeout: float = float("inf"),
    ) -> T:
        """Have a process carry a function out on a thread of its own, and return what that returns.

        Args:
            target: the process.
            function: is called there.
            what: its name, for people and for ``losses``.
            lost: makes the error of a broken connection, of the reason.
            timeout: seconds after which the caller waits no more.

        Raises:
            Exception: what the function raises; what ``lost`` makes if there is no answer. The function may have been
                called then, may be running still, or may be called later.
        """
        loss = next((one for one in self.losses if what.startswith(one.what)), None)
        if loss is not None:
            self.losses.remove(loss)
        connection: _Connection[T] = self._connect(target, what, lost)

        def serve() -> None:
            if not self._arrives(connection) or (loss is not None and not loss.is_answer):
                self._break(connection)
                return
            error, found = None, []
            try:
                found.append(function())
            except Exception as raised:  # noqa: BLE001 (the caller gets it)
                error = raised
            if not self._arrives(connection) or loss is not None:
                self._break(connection)
                return
            connection.items, connection.error, connection.is_over = found, error, True
            self._scheduler.wake(connection.waiting)

        self._scheduler.spawn(target, serve, what)
        try:
            self._await(connection, timeout, lost)
        finally:
            self._close(connection)
        if connection.error is not None:
            raise connection.error
        return connection.items[0]

    def stream(
        self,
        target: SimulatedProcess,
        iterate: Callable[[], Iterator[T]],
        what: str,
        lost: Callable[[str], Exception],
    ) -> Iterator[T]:
        """Yield what an iterator yields that a process has made, on a thread of its own. Arguments as for ``call``.

        The server closes the iterator once it sees that the caller is gone.
        """
        connection: _Connection[T] = self._connect(target, what, lost)

        def serve() -> None:
            if not self._arrives(connection):
                self._break(connection)
                return
            iterator: Any = iterate()
            try:
                for item in iterator:
                    if not self._arrives(connection):
                        self._break(connection)
                    if connection.is_broken or not connection.caller.is_alive:
                        return
                    connection.items.append(item)
                    self._scheduler.wake(connection.waiting)
            except Exception as error:  # noqa: BLE001 (the caller gets it)
                connection.error = error
            finally:
                iterator.close()
                connection.is_over = True
                self._scheduler.wake(connection.waiting)

        self._scheduler.spawn(target, serve, what)
        try:
            while True:
                self._await(connection, float("inf"), lost)
                while connection.items:
                    yield connection.items.pop(0)
                if connection.is_over:
                    break
        finally:
            connection.is_broken = True
            self._close(connection)
        if connection.error is not None:
            raise connection.error

    def break_all(self, one: SimulatedProcess, other: SimulatedProcess) -> None:
        """Break the connections that two processes have."""
        for connection in self._connections(one) + self._connections(other):
            if {connection.caller, connection.target} == {one, other}:
                self._break(connection)

    def _connect(
        self, target: SimulatedProcess, what: str, lost: Callable[[str], Exception]
    ) -> _Connection[T]:
        if not target.is_alive and (target.machine is None or target.machine.is_on):
            self._travel()
            raise lost("connection refused")
        connection: _Connection[T] = _Connection(self._scheduler.here, target, what)
        self._connections(target).append(connection)
        return connection

    def _connections(self, process: SimulatedProcess) -> list[_Connection[Any]]:
        if id(process) not in self._open:
            self._open[id(process)] = []
            process.at_end.append(partial(self._ended, process))
        return self._open[id(process)]

    def _ended(self, process: SimulatedProcess) -> None:
        """The system closes the connections of a process that has ended, if there is still power for it."""
        if process.machine is None or process.machine.is_on:
            for connection in list(self._open[id(process)]):
                self._break(connection)

    def _break(self, connection: _Connection[Any]) -> None:
        connection.is_broken = True
        self._scheduler.wake(connection.waiting)

    def _close(self, connection: _Connection[Any]) -> None:
        connections = self._open[id(connection.target)]
        if connection in connections:
            connections.remove(connection)

    def _await(self, connection: _Connection[Any], timeout: float, lost: Callable[[str], Exception]) -> None:
        scheduler = self._scheduler
        until, heard = scheduler.now + timeout, scheduler.now
        while not connection.has_news:
            if scheduler.now >= until:
                raise lost(f"no answer to {connection.what} in {timeout:g} s")
            target = connection.target
            if not self._reaches(connection) or not target.is_alive:
                if scheduler.now - heard >= SILENT_SECONDS:
                    raise lost(f"nothing was heard for {SILENT_SECONDS:g} s")
            else:
                heard = scheduler.now
            pause = min(until - scheduler.now, SILENT_SECONDS / 4)
            scheduler.hold(connection.waiting, pause, f"{connection.what} of {target.name}")
        if connection.is_broken and not connection.items:
            raise lost("the connection broke")

    def _reaches(self, connection: _Connection[Any]) -> bool:
        one, other = connection.caller.machine, connection.target.machine
        return one is None or other is None or frozenset((one.name, other.name)) not in self.cut

    def _arrives(self, connection: _Connection[Any]) -> bool:
        """Have a message travel; return whether it arrives. It is sent again and again while machines are cut off."""
        self._travel()
        until = self._scheduler.now + SILENT_SECONDS
        while not self._reaches(connection) and self._scheduler.now < until:
            self._scheduler.sleep(1.0, "machines to reach each other")
        return self._reaches(connection)

    def _travel(self) -> None:
        self._scheduler.sleep(self.longest * self._random.random() ** 2, "a message to arrive")
