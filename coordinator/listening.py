"""Where a driver answers for its pipeline, and to whom: the settings, checked."""

from __future__ import annotations

import ipaddress
import re
from typing import Final

import attrs

from . import fields
from .errors import ConfigError

_ADDRESS: Final = re.compile(r"(?:\[([0-9a-fA-F:.]+)\]|([^:\[\]\s]+)):(\d{1,5})")


def _listens(owner: Page, field: attrs.Attribute[str], value: object) -> None:
    """Accept an address to listen on. One that other machines reach is accepted only beside a token."""
    if not isinstance(value, str) or address(value) is None:
        fields.refuse(owner, field.name, value, 'an address such as "127.0.0.1:9464" or "[::1]:9464"')
    if not owner.is_guarded and not owner.is_loopback:
        expected = "an address of this machine alone, such as 127.0.0.1, or a token beside it"
        fields.refuse(owner, field.name, value, expected)


@fields.known
@attrs.frozen
class Page:
    """Where the driver tells how the pipeline does, by HTTP, and who may ask. It needs ``chandy[monitor]``.

    ``/`` is a page for people, ``/metrics`` is for Prometheus, ``/healthz`` says that the process answers, ``/readyz``
    whether the pipeline does its work, and ``/api/v1`` has checkpoints, shards and recoveries as JSON, and takes
    orders. See the page on operations.

    Raises:
        ConfigError: a value cannot be used.
    """

    address: str = attrs.field(validator=_listens)
    """Where to listen, such as ``"127.0.0.1:9464"``. Port 0 is any free one: ``coordinator.monitor_url`` says which.

    An address that other machines reach needs a token.
    """
    token: str | None = attrs.field(
        default=None, kw_only=True, repr=False, validator=fields.optional(fields.token)
    )
    """Bearer token for everything. A browser is asked for it as a password, and may only read.

    With None, ``/api/v1`` takes no orders, and without ``read_token`` anybody may read.
    """
    read_token: str | None = attrs.field(
        default=None, kw_only=True, repr=False, validator=fields.optional(fields.token)
    )
    """Bearer token that may read, and give no orders: for Prometheus, and for people who look on."""
    certificate: str | None = attrs.field(
        default=None, kw_only=True, validator=fields.optional(fields.filled)
    )
    """Path of a certificate, with those above it, to serve by TLS; None: in the clear."""
    key: str | None = attrs.field(default=None, kw_only=True, validator=fields.optional(fields.filled))
    """Path of the certificate's private key; None if it is in the certificate's file."""

    def __attrs_post_init__(self) -> None:
        if self.token is not None and self.token == self.read_token:
            raise ConfigError("invalid Page.read_token", "a token other than Page.token", "the same one")

    @property
    def host(self) -> str:
        """The host of the address, without brackets."""
        return self._parts[0]

    @property
    def port(self) -> int:
        """The port of the address."""
        return self._parts[1]

    @property
    def is_guarded(self) -> bool:
        """Whether those who ask need a token."""
        return self.token is not None or self.read_token is not None

    @property
    def is_loopback(self) -> bool:
        """Whether this machine's own processes alone can connect, as far as the text says."""
        # Unlike ``rpc.addresses`` this looks no name up: settings ask no server, and a name may mean another address by
        # the time the driver listens.
        try:
            return ipaddress.ip_address(self.host).is_loopback
        except ValueError:
            return self.host == "localhost"

    @property
    def _parts(self) -> tuple[str, int]:
        parts = address(self.address)
        assert parts is not None, "it was checked"
        return parts


def address(text: str) -> tuple[str, int] | None:
    """Return the host and the port of ``host:port`` or ``[IPv6 address]:port``; None if it is neither."""
    match = _ADDRESS.fullmatch(text)
    if match is None or int(match[3]) > 65535:
        return None
    return match[1] or match[2], int(match[3])
