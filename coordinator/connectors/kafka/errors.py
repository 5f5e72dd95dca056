"""What errors of Kafka's client mean: its rows are refused, another life has taken over, or it is to be asked again."""

from __future__ import annotations

import enum
from typing import Final, Protocol

import attrs

from ...sinks.two_phase.errors import OutputError, TargetUnavailableError


class Meaning(enum.Enum):
    """What is to be done about an error."""

    REFUSED = "refused"
    """It stays as it is, however often it is tried."""
    REPLACED = "replaced"
    """The producer can no longer be used. Whether by another life, the record of positions says."""
    UNAVAILABLE = "unavailable"
    """It may go well another time."""


class ClientFailure(Protocol):
    """An error as the client describes it: a ``KafkaError``."""

    def name(self) -> str:
        """Return its name, such as ``TOPIC_AUTHORIZATION_FAILED``."""

    def str(self) -> str | None:
        """Return what it says."""


class ProducerReplacedError(Exception):
    """A transactional producer can no longer be used: another one has its id, or the broker has given it up."""


@attrs.frozen
class _Refusal:
    expected: str
    advice: str


_AUTHENTICATION: Final = _Refusal(
    "credentials that it accepts", "check the security.*, sasl.* and ssl.* settings in the sink's `options`"
)
_TOPIC: Final = _Refusal(
    "a topic and a partition that exist",
    "create the topic with enough partitions, or correct the name; topics are not created by themselves unless the "
    'sink\'s `options` have "allow.auto.create.topics": True',
)
_SIZE: Final = _Refusal(
    "messages, and batches of messages, of a size that it takes",
    "raise max.message.bytes of the topic and message.max.bytes in the sink's `options`, or make rows smaller; where "
    "each row is small enough, set batch.size in `options` to at most max.message.bytes",
)
_RECORD: Final = _Refusal(
    "a record that the topic takes", "a compacted topic takes no row without a key: give each row one"
)
_VERSION: Final = _Refusal(
    "a broker with transactions", "use Kafka 2.5 or newer; 3.6 or newer is recommended"
)

REFUSALS: Final = {
    "_AUTHENTICATION": _AUTHENTICATION,
    "SASL_AUTHENTICATION_FAILED": _AUTHENTICATION,
    "TOPIC_AUTHORIZATION_FAILED": _Refusal(
        "permission for the topic",
        "grant Write and Describe on the topic of the rows, and Read, Write, Describe and Create on the topic of "
        "positions",
    ),
    "TRANSACTIONAL_ID_AUTHORIZATION_FAILED": _Refusal(
        "permission for transactions",
        "grant Write and Describe on transactional ids that begin with the name of the topic of positions and /",
    ),
    "CLUSTER_AUTHORIZATION_FAILED": _Refusal(
        "permission in the cluster",
        "grant IdempotentWrite on the cluster, and Create if the topic of positions is missing",
    ),
    "INVALID_TRANSACTION_TIMEOUT": _Refusal(
        "a transaction.timeout.ms that the broker allows",
        "set transaction.timeout.ms in the sink's `options` to at most the broker's transaction.max.timeout.ms",
    ),
    "UNKNOWN_TOPIC_OR_PART": _TOPIC,
    "_UNKNOWN_TOPIC": _TOPIC,
    "_UNKNOWN_PARTITION": _TOPIC,
    "TOPIC_EXCEPTION": _TOPIC,
    "MSG_SIZE_TOO_LARGE": _SIZE,
    "RECORD_LIST_TOO_LARGE": _SIZE,
    "INVALID_RECORD": _RECORD,
    "INVALID_MSG": _RECORD,
    "POLICY_VIOLATION": _Refusal("what the broker's policy allows", "ask who runs the cluster"),
    "UNSUPPORTED_VERSION": _VERSION,
    "_UNSUPPORTED_FEATURE": _VERSION,
}
"""What the target will never take, by the name of the client's error."""
_REPLACED: Final = {
    "_FENCED",
    "PRODUCER_FENCED",
    "INVALID_PRODUCER_EPOCH",
    "INVALID_PRODUCER_ID_MAPPING",
    "INVALID_TXN_STATE",
    "UNKNOWN_PRODUCER_ID",
    "_FATAL",
    "_STATE",
}


def meaning(name: str) -> Meaning:
    """Return what an error means for what was tried."""
    if name in REFUSALS:
        return Meaning.REFUSED
    return Meaning.REPLACED if name in _REPLACED else Meaning.UNAVAILABLE


def described(failure: ClientFailure) -> str:
    """Return an error as text: what it says, and its name."""
    return f"{failure.str() or 'no details'} ({failure.name()})"


def translated(target: str, what: str, failure: ClientFailure) -> Exception:
    """Return the error to raise for one of the client's.

    Args:
        target: the target for messages, such as ``Kafka at broker:9092``.
        what: what it did not do, as a clause without its subject, such as ``did not take rows for topic 'a'``.
        failure: what the client says.
    """
    match meaning(failure.name()):
        case Meaning.REFUSED:
            refusal = REFUSALS[failure.name()]
            return OutputError(f"{target} {what}", refusal.expected, described(failure), refusal.advice)
        case Meaning.REPLACED:
            return ProducerReplacedError(described(failure))
        case Meaning.UNAVAILABLE:
            return TargetUnavailableError(target, f"it {what}: {described(failure)}", is_understood=True)
