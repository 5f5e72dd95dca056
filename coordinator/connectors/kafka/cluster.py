"""Kafka's clients for one cluster: what they are set to, and how to hear why they have no connection."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import ModuleType
from typing import TYPE_CHECKING, Any, Final, TypeVar

import attrs

from ....storage.logs import logger
from ...error_texts import without_secrets
from ...errors import ConfigError
from ...extras import needs_extra
from ...sinks.two_phase.errors import OutputError, TargetUnavailableError
from .errors import ClientFailure, Meaning, described, meaning, translated

T = TypeVar("T")

if TYPE_CHECKING:
    from confluent_kafka import Consumer, Producer
    from confluent_kafka.admin import AdminClient

RESERVED: Final = {
    "bootstrap.servers",
    "transactional.id",
    "enable.idempotence",
    "acks",
    "request.required.acks",
    "isolation.level",
    "group.id",
    "enable.auto.commit",
    "delivery.report.only.error",
}
"""Settings that would break the promise of the sink, or that it has fields for."""
_SHARED: Final = (
    "security.",
    "sasl.",
    "ssl.",
    "enable.ssl.",
    "enable.sasl.",
    "https.",
    "oauth",
    "socket.",
    "broker.",
    "client.",
    "connections.",
    "reconnect.",
    "api.",
    "resolver",
    "debug",
)
"""How settings begin that are meant for each client, and not for the producer alone."""
_TRANSACTION_TIMEOUT: Final = "transaction.timeout.ms"
_TRANSACTION_MS: Final = 300_000
"""For how long the broker keeps a transaction of a publisher that has died, and at most one of any."""
_LINGER_MS: Final = 100
_BUFFER_KB: Final = 65_536
_log = logger(__name__)


class _Log:
    """Hands the client's own lines on. What matters of them is in the errors that are raised."""

    def log(self, level: int, form: str, *values: object) -> None:
        _log.debug("Kafka's client says", says=form % values if values else form)


class Heard:
    """What a client has said of its connections, which its calls that fail do not say."""

    def __init__(self) -> None:
        self._said: dict[str, ClientFailure] = {}

    def __call__(self, failure: ClientFailure) -> None:
        """Take an error down. The client calls it."""
        self._said[failure.name()] = failure

    @property
    def refusal(self) -> ClientFailure | None:
        """The error that will not go away by itself, such as credentials that the broker refuses."""
        refusals = (one for name, one in self._said.items() if meaning(name) is Meaning.REFUSED)
        return next(refusals, None)

    @property
    def fatal(self) -> ClientFailure | None:
        """The error after which the producer can no longer be used."""
        replaced = (one for name, one in self._said.items() if meaning(name) is Meaning.REPLACED)
        return next(replaced, None)

    @property
    def reason(self) -> str:
        """Why there is no connection, as a text to append; empty if nothing is known."""
        # That all brokers are down says less than why the last one is.
        said = [described(one) for name, one in self._said.items() if name != "_ALL_BROKERS_DOWN"]
        return f"; {said[-1]}" if said else ""


@attrs.frozen
class Cluster:
    """A Kafka cluster and how to connect to it."""

    servers: str
    options: Mapping[str, Any] = attrs.field(repr=False)
    """Settings of librdkafka."""
    timeout: float
    """Seconds to wait for any answer."""

    @property
    def name(self) -> str:
        """The cluster, for messages."""
        return f"Kafka at {self.servers}"

    @property
    def transaction_timeout(self) -> float:
        """Seconds after which the broker ends a transaction by itself."""
        return float(self.options.get(_TRANSACTION_TIMEOUT, _TRANSACTION_MS)) / 1000

    def producer(self, transactional_id: str, heard: Heard, delivered: Callable[..., None]) -> Producer:
        """Return a producer whose transactions have an id. It is not connected yet.

        Raises:
            ConfigError: a setting is unknown or wrong.
        """
        own = {
            # As Kafka's own producer and Spark's sink choose partitions; librdkafka's default differs.
            "partitioner": "murmur2_random",
            # A topic that comes into being by a mistake in its name has the wrong settings.
            "allow.auto.create.topics": False,
            "queue.buffering.max.kbytes": _BUFFER_KB,
            # Fuller requests. Nothing waits for it: the end of an epoch is flushed, which sends what there is.
            "linger.ms": _LINGER_MS,
            _TRANSACTION_TIMEOUT: _TRANSACTION_MS,
        }
        fixed = {
            "transactional.id": transactional_id,
            "delivery.report.only.error": True,
            "on_delivery": delivered,
        }
        producer: Producer = self._made(library().Producer, own | dict(self.options) | fixed, heard)
        return producer

    def consumer(self, heard: Heard) -> Consumer:
        """Return a consumer of what is committed, to be assigned its partitions. It belongs to no group.

        Raises:
            ConfigError: a setting is wrong.
        """
        own = {
            "group.id": "chandy",
            "enable.auto.commit": False,
            "isolation.level": "read_committed",
            "enable.partition.eof": True,
            # An end of the partition is said after one answer without records.
            "fetch.wait.max.ms": 20,
        }
        consumer: Consumer = self._made(library().Consumer, self._shared() | own, heard)
        return consumer

    def observer(
        self, heard: Heard, group: str = "chandy", committed: Callable[..., None] | None = None
    ) -> Consumer:
        """Return a consumer that reads nothing: it asks what partitions have, and may commit offsets of a group.

        It does not join the group. Do not close it, which may wait for a broker that is away: it has nothing to leave.

        Args:
            heard: what the client says.
            committed: called, while the consumer is polled, with what became of a commit: an error or None, and the
                partitions, each with an error or None.

        Raises:
            ConfigError: a setting is wrong.
        """
        own: dict[str, Any] = {
            "group.id": group,
            "enable.auto.commit": False,
            # Where a partition ends, be it in an open transaction.
            "isolation.level": "read_uncommitted",
        }
        if committed is not None:
            own["on_commit"] = committed
        consumer: Consumer = self._made(library().Consumer, self._shared() | own, heard)
        return consumer

    def admin(self, heard: Heard) -> AdminClient:
        """Return a client for topics.

        Raises:
            ConfigError: a setting is wrong.
        """
        library()
        from confluent_kafka.admin import AdminClient

        return self._made(AdminClient, self._shared() | {"allow.auto.create.topics": False}, heard)

    def unavailable(self, what: str, heard: Heard) -> TargetUnavailableError | OutputError:
        """Return the error for an answer that has not come in time.

        Args:
            what: what it did not do, such as ``did not answer``.
            heard: what the client has said meanwhile.
        """
        return self._unreached(what, f"within {self.timeout:g} s", heard)

    def error(self, what: str, raised: BaseException, heard: Heard) -> Exception:
        """Return the error to raise for what a client's call has raised: a ``KafkaException`` or a time-out."""
        failure = failure_of(raised)
        if failure is None or failure.name() == "_TIMED_OUT":
            return self.unavailable(what, heard)
        if failure.name() in ("_TRANSPORT", "_ALL_BROKERS_DOWN"):
            return self._unreached(what, "before the connection was lost", heard)
        if failure.name() in ("_FATAL", "_STATE") and heard.fatal is not None:
            failure = heard.fatal
        return translated(self.name, what, failure)

    def _unreached(self, what: str, when: str, heard: Heard) -> TargetUnavailableError | OutputError:
        if refusal := heard.refusal:
            error = translated(self.name, what, refusal)
            if isinstance(error, OutputError):
                return error
        return TargetUnavailableError(self.name, f"it {what} {when}{heard.reason}", is_understood=True)

    def _shared(self) -> dict[str, Any]:
        return {name: value for name, value in self.options.items() if name.startswith(_SHARED)}

    def _made(self, client: Callable[..., T], settings: Mapping[str, Any], heard: Heard) -> T:
        connection = {"bootstrap.servers": self.servers, "error_cb": heard}
        try:
            return client(dict(settings) | connection, logger=_Log())
        except (library().KafkaException, TypeError, ValueError) as error:
            failure = failure_of(error)
            raise ConfigError(
                f"invalid settings for {self.name}",
                "settings of librdkafka",
                without_secrets(described(failure) if failure else str(error), self.options),
                "correct the sink's `options`; they are described in librdkafka's CONFIGURATION.md",
            ) from None


def failure_of(raised: BaseException) -> ClientFailure | None:
    """Return the client's own error in an exception; None if it has none."""
    failure = raised.args[0] if raised.args else None
    return failure if isinstance(failure, library().KafkaError) else None


def library() -> ModuleType:
    """Return Kafka's client library.

    Raises:
        SetupError: it is not installed.
    """
    with needs_extra("kafka", what="Kafka cannot be reached", needed="the package confluent-kafka"):
        import confluent_kafka
    module: ModuleType = confluent_kafka
    return module
