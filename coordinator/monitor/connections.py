"""A connection to the server in the driver: nobody keeps one without using it.

Clients without a token can connect, too. They must not take the places of the probes that ask whether a driver lives.
"""

from __future__ import annotations

import asyncio
from typing import Final

from typing_extensions import override
from uvicorn.protocols.http.h11_impl import H11Protocol

CONNECTIONS: Final = 100
"""Connections at a time. For a further one, the oldest that waits for a request is closed."""
REQUEST_SECONDS = 5.0
"""A connection is closed that has had no whole request for so long, or for twice as long."""


class Connection(H11Protocol):
    """One connection, as uvicorn makes it. Its headers are read by uvicorn; what is new here is its end."""

    _seen: object = ()
    _look: asyncio.TimerHandle | None = None

    @property
    def _is_idle(self) -> bool:
        """Whether no request is being answered: none has come, or none is whole, or all have their answers."""
        return self.cycle is None or self.cycle.response_complete

    @override
    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        idle = sorted(
            (one for one in self.connections if isinstance(one, Connection) and one._is_idle), key=_age
        )
        for one in idle[: max(0, len(self.connections) - CONNECTIONS + 2)]:
            one._close()
        super().connection_made(transport)
        self.made_at = self.loop.time()
        self._look_later()

    @override
    def connection_lost(self, exc: Exception | None) -> None:
        if self._look is not None:
            self._look.cancel()
        super().connection_lost(exc)

    def _look_later(self) -> None:
        # Every request has a cycle of its own.
        self._seen = self.cycle
        self._look = self.loop.call_later(REQUEST_SECONDS, self._close_if_unused)

    def _close_if_unused(self) -> None:
        if self._is_idle and self.cycle is self._seen:
            self._close()
        else:
            self._look_later()

    def _close(self) -> None:
        self.connections.discard(self)
        self.transport.close()


def _age(connection: Connection) -> float:
    return connection.made_at
