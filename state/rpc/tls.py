"""Mutual TLS between driver and executors: one identity for all processes of a coordinator, under one fixed name."""

from __future__ import annotations

from typing import Any, Final

import attrs
from pyarrow import flight

SCHEME: Final = "grpc+tls"
"""Scheme of the Arrow Flight locations that want a certificate on both sides."""
NAME: Final = "chandy"
"""The DNS name in the certificate. It is checked instead of the address, which nobody knows when it is issued."""


@attrs.frozen
class Identity:
    """What proves that a process belongs to one coordinator: PEM texts. A process that has it is trusted.

    It is sent with the token and lives as long: one life of a coordinator.
    """

    authority: str
    """Certificate of the authority that has signed ``certificate`` and nothing else."""
    certificate: str
    key: str = attrs.field(repr=False)

    def of_server(self) -> dict[str, Any]:
        """Return the options of a Flight server that answers only clients with this identity."""
        return {
            "tls_certificates": [(self.certificate.encode(), self.key.encode())],
            "verify_client": True,
            "root_certificates": self.authority.encode(),
        }

    def of_client(self) -> dict[str, Any]:
        """Return the options of a Flight client that talks only to servers with this identity."""
        return {
            "tls_root_certs": self.authority.encode(),
            "cert_chain": self.certificate.encode(),
            "private_key": self.key.encode(),
            "override_hostname": NAME,
        }


_DIRECT: Final = [("grpc.enable_http_proxy", 0)]
"""Executors and driver reach each other without a proxy, also where the environment names one for the web."""


def connect(address: str, identity: Identity | None) -> flight.FlightClient:
    """Return a client of a Flight location, which proves itself if the location wants that."""
    proves = identity is not None and address.startswith(SCHEME + ":")
    options = identity.of_client() if identity is not None and proves else {}
    return flight.FlightClient(address, generic_options=_DIRECT, **options)
