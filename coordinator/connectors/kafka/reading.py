"""What the options of Spark's Kafka source say: where the cluster is, how to connect, and what the user wants. Pure."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final

import attrs

OWN: Final = "chandy."
"""How options of the reader begin that are for Chandy's client. Spark passes over them."""
GROUP: Final = "chandy.group.id"
"""The option that names the group whose offsets are published; empty: none are."""
_KAFKA: Final = "kafka."
_CONNECTION: Final = ("security.", "sasl.", "ssl.")
"""How settings of Kafka's Java client begin without which there may be no connection."""
_SAME: Final = (
    "security.protocol",
    "sasl.mechanism",
    "sasl.kerberos.service.name",
    "ssl.key.password",
    "ssl.endpoint.identification.algorithm",
    "client.dns.lookup",
    "client.rack",
)
"""Settings that both clients call the same."""
_HARMLESS: Final = ("ssl.truststore.type", "ssl.truststore.password", "ssl.keystore.type", "ssl.protocol")
"""Settings of the Java client without which librdkafka connects all the same."""
_JAAS: Final = re.compile(r'\b(username|password)\s*=\s*"((?:[^"\\]|\\.)*)"')
_ESCAPED: Final = re.compile(r"\\(.)")
_WITH_PASSWORD: Final = ("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512")


@attrs.frozen
class KafkaReading:
    """How a query reads Kafka."""

    servers: str
    settings: Mapping[str, str] = attrs.field(repr=False)
    """Settings of librdkafka, for Chandy's own client. Some are secret."""
    unknown: tuple[str, ...]
    """Settings of the connection that could not be translated for it."""
    group: str
    """The group whose offsets are published; empty: none."""
    fails_on_loss: bool
    """Whether records that are gone are an error, as they are to Spark: ``failOnDataLoss``."""
    is_level_set: bool
    """Whether the user has said which records to read: ``kafka.isolation.level``."""
    is_assigned: bool
    """Whether certain partitions are read, so that none is added by itself."""


def reading_of(options: Mapping[str, str], default_group: str) -> KafkaReading:
    """Return what options of Spark's Kafka source say.

    Args:
        options: of the reader, by their names in lower case.
        default_group: the group unless an option names another.
    """
    java = {name.removeprefix(_KAFKA): value for name, value in options.items() if name.startswith(_KAFKA)}
    own = {
        name.removeprefix(OWN): value
        for name, value in options.items()
        if name.startswith(OWN) and name != GROUP
    }
    known = translated(java)
    used = {"sasl.jaas.config"} if "sasl.username" in known else set()
    unknown = () if own else tuple(sorted(_unknown(java, known) - used))
    return KafkaReading(
        servers=java.get("bootstrap.servers", ""),
        settings=known | own,
        unknown=unknown,
        group=options.get(GROUP, default_group),
        fails_on_loss=options.get("failondataloss", "true").lower() != "false",
        is_level_set="kafka.isolation.level" in options,
        is_assigned="assign" in options,
    )


def translated(java: Mapping[str, str]) -> dict[str, str]:
    """Return settings of Kafka's Java client as librdkafka has them, those of the connection as far as it can."""
    found = {name: java[name] for name in _SAME if name in java}
    if "ssl.endpoint.identification.algorithm" in found:
        # Empty means to Java what librdkafka calls none.
        found["ssl.endpoint.identification.algorithm"] = (
            java["ssl.endpoint.identification.algorithm"].lower() or "none"
        )
    if java.get("sasl.mechanism", "").upper() in _WITH_PASSWORD:
        login = dict(_JAAS.findall(java.get("sasl.jaas.config", "")))
        if login.keys() >= {"username", "password"}:
            found |= {f"sasl.{name}": _ESCAPED.sub(r"\1", value) for name, value in login.items()}
    if java.get("ssl.truststore.type", "").upper() == "PEM":
        _rename(java, found, {"ssl.truststore.location": "ssl.ca.location"})
        _rename(java, found, {"ssl.truststore.certificates": "ssl.ca.pem"})
    match java.get("ssl.keystore.type", "").upper():
        case "PEM":
            # One file has the key and the certificates.
            _rename(java, found, {"ssl.keystore.location": "ssl.certificate.location"})
            _rename(java, found, {"ssl.keystore.location": "ssl.key.location"})
            _rename(java, found, {"ssl.keystore.certificate.chain": "ssl.certificate.pem"})
            _rename(java, found, {"ssl.keystore.key": "ssl.key.pem"})
        case "PKCS12":
            _rename(java, found, {"ssl.keystore.location": "ssl.keystore.location"})
            _rename(java, found, {"ssl.keystore.password": "ssl.keystore.password"})
    return found


def _rename(java: Mapping[str, str], found: dict[str, str], names: Mapping[str, str]) -> None:
    found |= {new: java[old] for old, new in names.items() if old in java}


def _unknown(java: Mapping[str, str], known: Mapping[str, str]) -> set[str]:
    """Return the settings of the connection of which the translated ones have nothing."""
    values = set(known.values())
    return {
        name
        for name, value in java.items()
        if name.startswith(_CONNECTION)
        and name not in known
        and name not in _HARMLESS
        and value not in values
    }
