"""The shared secret on every Arrow Flight call: the server's check and the client's header."""

from __future__ import annotations

import hmac
from collections.abc import Mapping, Sequence
from typing import Final

from pyarrow import flight

_HEADER: Final = "authorization"
_SCHEME: Final = "Bearer "


class TokenCheck(flight.ServerMiddlewareFactory):  # type: ignore[misc]
    """Server middleware that refuses every call without the token, before any handler sees it."""

    def __init__(self, token: str) -> None:
        super().__init__()
        self._expected = (_SCHEME + token).encode()

    def start_call(self, info: flight.CallInfo, headers: Mapping[str, Sequence[str]]) -> None:
        """Let the call through or raise ``FlightUnauthenticatedError``; the time taken tells nothing."""
        presented = headers.get(_HEADER, ())
        if len(presented) != 1 or not hmac.compare_digest(presented[0].encode(), self._expected):
            raise flight.FlightUnauthenticatedError(
                "expected the pipeline's bearer token; this call has another or none"
            )


def token_options(token: str, timeout: float | None = None) -> flight.FlightCallOptions:
    """Return call options that present the token; ``timeout`` in seconds, None for no limit."""
    return flight.FlightCallOptions(headers=[(_HEADER.encode(), (_SCHEME + token).encode())], timeout=timeout)
