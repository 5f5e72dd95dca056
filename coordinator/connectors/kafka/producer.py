"""A transactional producer whose calls end in bounded time, with Chandy's errors."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final

from ...sinks.two_phase.errors import OutputError
from .cluster import Cluster, Heard, failure_of, library
from .errors import ClientFailure, Meaning, meaning, translated
from .messages import KafkaRecord, shown
from .topics import partitions

if TYPE_CHECKING:
    from confluent_kafka import Message as Delivered

_ANY: Final = -1
"""The partition that the client's partitioner chooses (``RD_KAFKA_PARTITION_UA``)."""
_TURN: Final = 0.1
"""Seconds for which the client is waited for at a time."""
_LOOK: Final = 2_000
"""How many messages are sent between two looks at what was not delivered. A look lets other threads go first, which
takes longer than to send a message."""


class TransactionalProducer:
    """A producer with an id of its own. The newest one of an id shuts out all that came before it.

    Each method may raise:
        ProducerReplacedError: it can no longer be used, most likely because there is a newer one.
        TargetUnavailableError: no answer, or one that says to try again.
        OutputError: the cluster refuses it.
    """

    def __init__(self, cluster: Cluster, transactional_id: str) -> None:
        """Connect, end what an earlier producer of the id has left open, and shut it out."""
        self._cluster = cluster
        self._heard = Heard()
        self._failed: tuple[ClientFailure, Delivered | None] | None = None
        self._partitions: dict[str, int] = {}
        self._sent = 0
        self._producer = cluster.producer(transactional_id, self._heard, self._delivered)
        try:
            self._call("did not begin", self._producer.init_transactions, cluster.timeout)
        except BaseException:
            self.close()
            raise

    def begin(self) -> None:
        """Begin a transaction."""
        self._failed = None
        self._call("did not begin a transaction", self._producer.begin_transaction)

    def send(self, message: KafkaRecord) -> None:
        """Send a message in the transaction. It waits while too much is on its way."""
        self._check_place(message)
        while not self._takes(message):
            self._await(lambda left, before: left < before)
        self._sent += 1
        if self._sent % _LOOK == 0:
            self._look()

    def _takes(self, message: KafkaRecord) -> bool:
        """Return whether the client has taken a message; if not, too much is on its way."""
        optional: dict[str, Any] = {} if message.headers is None else {"headers": message.headers}
        partition = _ANY if message.partition is None else message.partition
        try:
            self._producer.produce(message.topic, message.value, message.key, partition, **optional)
        except BufferError:
            return False
        except library().KafkaException as error:
            if (failure := failure_of(error)) and meaning(failure.name()) is Meaning.REPLACED:
                # That says only that the transaction has failed. Why, a delivery says, which may come after it, or the
                # attempt to commit, which cannot succeed any more.
                self.flush()
                topics = ", ".join(map(repr, sorted(self._partitions)))
                what = f"did not take rows in a transaction over the topics {topics}"
                self._call(what, self._producer.commit_transaction, self._cluster.timeout)
            self._look()
            what = f"did not take {message} of topic {message.topic!r}"
            raise self._cluster.error(what, error, self._heard) from None
        return True

    def flush(self) -> None:
        """Wait until the cluster has all that was sent."""
        self._await(lambda left, before: left == 0)

    def commit(self) -> None:
        """Commit the transaction. After ``TargetUnavailableError`` nobody knows whether it is."""
        self._call(
            "did not say whether it has committed", self._producer.commit_transaction, self._cluster.timeout
        )

    def abort(self) -> None:
        """Take the transaction back."""
        self._call("did not abort a transaction", self._producer.abort_transaction, self._cluster.timeout)

    def close(self) -> None:
        """Let go of the connections. It waits for nothing, and what is on its way is dropped.

        Its own ``close`` would abort an open transaction, and wait for that as long as the broker is frozen.
        """
        with suppress(library().KafkaException):
            self._producer.purge()
        del self._producer

    def _check_place(self, message: KafkaRecord) -> None:
        """Check that the topic and the partition are there: the client would wait for them to come."""
        known = self._partitions.get(message.topic)
        if known is None or (message.partition is not None and message.partition >= known):
            known = self._partitions[message.topic] = self._count(message.topic)
        if message.partition is not None and message.partition >= known:
            raise OutputError(
                f"{self._cluster.name} cannot take {message} of topic {message.topic!r}",
                f"a partition below {known}",
                str(message.partition),
                "correct the column `partition`, or add partitions to the topic",
            )

    def _count(self, topic: str) -> int:
        return partitions(self._cluster, self._producer, topic, self._heard)

    def _await(self, done: Callable[[int, int], bool]) -> None:
        """Let messages go until fewer are left, as ``done`` says, for as long as some do in time.

        Once a row is refused, those behind it in its partition may stay until the transaction ends.
        """
        before = left = len(self._producer)
        deadline = time.monotonic() + self._cluster.timeout
        while not done(left, before) and not self._is_refused:
            if time.monotonic() > deadline:
                self._look()
                raise self._cluster.unavailable("took no rows", self._heard)
            self._call("did not take rows", self._producer.flush, _TURN)
            if (now := len(self._producer)) < left:
                deadline = time.monotonic() + self._cluster.timeout
            left = now
        self._look()

    def _call(self, what: str, call: Callable[..., Any], *arguments: Any) -> None:
        try:
            call(*arguments)
            return
        except library().KafkaException as raised:
            error: Exception = raised
        # The client goes on with what it was told for as long as anything refers to it, such as this frame.
        del call
        self._look()
        raise self._cluster.error(what, error, self._heard)

    def _look(self) -> None:
        """Raise why a message was not delivered."""
        try:
            self._producer.poll(0)
        except library().KafkaException as error:
            raise self._cluster.error("did not take rows", error, self._heard) from None
        if self._failed is None:
            return
        failure, message = self._failed
        row = "rows" if message is None else _row(message)
        raise translated(self._cluster.name, f"did not take {row}", failure)

    @property
    def _is_refused(self) -> bool:
        return self._failed is not None and meaning(self._failed[0].name()) is Meaning.REFUSED

    def _delivered(self, failure: ClientFailure | None, message: Delivered) -> None:
        """Keep why a message was not delivered: the reason that stays goes before the others, the largest row first."""
        if failure is None or failure.name().startswith("_PURGE"):
            return
        if self._failed is None or _weight(failure, message) > _weight(*self._failed):
            self._failed = failure, message


def _weight(failure: ClientFailure, message: Delivered | None) -> tuple[bool, int]:
    size = len(message) if message is not None else 0
    return meaning(failure.name()) is not Meaning.UNAVAILABLE, size


def _row(message: Delivered) -> str:
    key = message.key()
    key = key.encode() if isinstance(key, str) else key
    partition = message.partition()
    where = f" for partition {partition}" if partition is not None and partition >= 0 else ""
    return f"the row with key {shown(key)}{where} of topic {message.topic()!r}"
