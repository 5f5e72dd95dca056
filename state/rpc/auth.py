"""The bearer token of every Arrow Flight call: the server's check and the client's header."""

from __future__ import annotations

import hmac
from collections.abc import Mapping, Sequence
from typing import Final

from pyarrow import flight

_HEADER: Final = "authorization"
_SCHEME: Final = "Bearer "


class TokenCheck(flight.ServerMiddlewareFactory):  # type: ignore[misc]
    """Server middleware that rejects every call without the token before any handler sees it."""

    def __init__(self, token: str) -> None:
        super().__init__()
        self._expected = (_SCHEME + token).encode()

    def start_call(self, info: flight.CallInfo, headers: Mapping[str, Sequence[str]]) -> None:
        """Let the call through or raise ``FlightUnauthenticatedError``, in a time that does not depend on the token."""
        presented = headers.get(_HEADER, ())
        if len(presented) != 1 or not hmac.compare_digest(presented[0].encode(), self._expected):
            raise flight.FlightUnauthenticatedError(
                "expected the pipeline's bearer token, found another one or none"
            )


def token_options(token: str, timeout: float | None = None) -> flight.FlightCallOptions:
    """Return call options that send the token. ``timeout`` is in seconds, None for no limit."""
    return flight.FlightCallOptions(headers=[(_HEADER.encode(), (_SCHEME + token).encode())], timeout=timeout)
