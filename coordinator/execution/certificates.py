"""Issues the identity of one coordinator life: a certificate that its own processes have, and nobody else."""

from __future__ import annotations

import datetime

from ...state.rpc.tls import NAME, Identity
from ..extras import needs_extra

_BEFORE = datetime.timedelta(days=30)
_AFTER = datetime.timedelta(days=3650)
"""Far in both directions: the clocks of machines may be wrong. What limits the certificate is that its key is known
only to processes of this coordinator, and is gone with them."""


def issue() -> Identity:
    """Return a new identity: an authority (X.509, P-256) whose key is forgotten at once, and what it has signed.

    Raises:
        SetupError: the package that issues certificates is not installed.
    """
    what = "the driver cannot prove itself to executors on other machines"
    with needs_extra("cluster", what=what, needed="the package cryptography on the driver"):
        from cryptography import x509
        from cryptography.hazmat.primitives import hashes, serialization
        from cryptography.hazmat.primitives.asymmetric import ec
        from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID
    now = datetime.datetime.now(datetime.UTC)
    signer, own = ec.generate_private_key(ec.SECP256R1()), ec.generate_private_key(ec.SECP256R1())

    def certificate(name: str, public_key: ec.EllipticCurvePublicKey) -> x509.CertificateBuilder:
        return (
            x509.CertificateBuilder()
            .subject_name(x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)]))
            .issuer_name(x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "chandy authority")]))
            .public_key(public_key)
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - _BEFORE)
            .not_valid_after(now + _AFTER)
        )

    authority = certificate("chandy authority", signer.public_key()).add_extension(
        x509.BasicConstraints(ca=True, path_length=0), critical=True
    )
    leaf = (
        certificate(NAME, own.public_key())
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(x509.SubjectAlternativeName([x509.DNSName(NAME)]), critical=False)
        .add_extension(
            x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH, ExtendedKeyUsageOID.CLIENT_AUTH]),
            critical=False,
        )
    )
    return Identity(
        authority=authority.sign(signer, hashes.SHA256()).public_bytes(serialization.Encoding.PEM).decode(),
        certificate=leaf.sign(signer, hashes.SHA256()).public_bytes(serialization.Encoding.PEM).decode(),
        key=own.private_bytes(
            serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
        ).decode(),
    )
