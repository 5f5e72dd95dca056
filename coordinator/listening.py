"""Where a driver answers for its metrics, and to whom: the settings, checked."""

from __future__ import annotations

import ipaddress
import re
from typing import Final

import attrs

_ADDRESS: Final = re.compile(r"(?:\[([0-9a-fA-F:.]+)\]|([^:\[\]\s]+)):(\d{1,5})")


@attrs.frozen
class Listening:
    """An address to listen on, and what is asked of those who connect."""

    host: str
    port: int
    """0: any free one."""
    token: str | None = attrs.field(default=None, repr=False)
    """The bearer token that requests must have; None: none."""
    certificate: str | None = None
    """Path of the certificate for TLS; None: no TLS."""
    key: str | None = None
    """Path of the certificate's private key; None if it is in the same file."""

    @classmethod
    def parse(
        cls, text: str, token: str | None = None, certificate: str | None = None, key: str | None = None
    ) -> Listening | None:
        """Return what ``host:port`` or ``[IPv6 address]:port`` says, with the rest; None if it is neither."""
        found = address(text)
        return None if found is None else cls(*found, token, certificate, key)

    @property
    def is_loopback(self) -> bool:
        """Whether this machine's own processes alone can connect, as far as the text says."""
        # Unlike ``rpc.addresses`` this looks no name up: settings ask no server, and a name may mean another address by
        # the time the driver listens.
        try:
            return ipaddress.ip_address(self.host).is_loopback
        except ValueError:
            return self.host == "localhost"


def address(text: str) -> tuple[str, int] | None:
    """Return the host and the port of ``host:port`` or ``[IPv6 address]:port``; None if it is neither."""
    match = _ADDRESS.fullmatch(text)
    if match is None or int(match[3]) > 65535:
        return None
    return match[1] or match[2], int(match[3])
