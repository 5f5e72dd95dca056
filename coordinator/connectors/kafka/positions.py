"""The topic that keeps what each writer has last published to a Kafka cluster: its newest record counts."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

import attrs

from ....storage import codec
from ....storage.errors import CodecError
from ...sinks.two_phase.contract import Position
from ...sinks.two_phase.errors import OutputError
from ..record import TargetIds
from .cluster import Cluster, Heard, failure_of, library
from .errors import Meaning, meaning, translated
from .messages import KafkaRecord
from .topics import GRACE, MAY_COME, PAUSE, is_there

if TYPE_CHECKING:
    from confluent_kafka.admin import AdminClient

PARTITION: Final = 0
"""The only partition that is used, so that its records have one order."""
SETTINGS: Final = {
    "cleanup.policy": "compact",
    # Kafka never compacts the segment that it writes to, and all that is not compacted is read at a start.
    "segment.bytes": str(1 << 20),
    "min.cleanable.dirty.ratio": "0.1",
}
"""How the topic is made."""
_TURN: Final = 0.1
"""Seconds for which a record is waited for at a time."""


@attrs.frozen
class TopicPosition(Position):
    """A writer's position, and the topic that it counts for."""

    target: str | None = None
    """``TargetIds`` of the topic that ``epoch`` was published to; None: any topic, or a version that did not say."""

    def epoch_in(self, topic: TargetIds | None) -> int | None:
        """Return the newest epoch that a topic has.

        Args:
            topic: the topic; None if the rows name theirs.
        """
        return self.epoch if topic is None or topic.is_of(self.target) else None

    def moved(self, epoch: int, topic: TargetIds | None) -> TopicPosition:
        """Return the position once an epoch is published to a topic."""
        return attrs.evolve(self, epoch=epoch, target=None if topic is None else str(topic))


def marker(topic: str, writer: str, position: TopicPosition) -> KafkaRecord:
    """Return the record that a writer's position is kept in."""
    return KafkaRecord(topic, codec.to_json(position), writer.encode(), partition=PARTITION)


def prepare(cluster: Cluster, topic: str) -> None:
    """See that the topic is there and keeps its records, and make it if it is missing.

    Raises:
        OutputError: it is missing and cannot be made, or it would lose positions.
        TargetUnavailableError: no answer.
    """
    heard = Heard()
    admin = cluster.admin(heard)
    if is_there(cluster, admin, topic, heard):
        _check(cluster, admin, topic, heard)
    else:
        _create(cluster, admin, topic, heard)


class PositionReader:
    """Reads a writer's position, and reads on from there.

    Each method may raise:
        OutputError: the topic is missing or cannot be read, or what is in it is no position.
        TargetUnavailableError: no answer.
    """

    def __init__(self, cluster: Cluster, topic: str, writer: str) -> None:
        self._cluster = cluster
        self._topic = topic
        self._writer = writer.encode()
        self._heard = Heard()
        self._admin = cluster.admin(self._heard)
        self._consumer = cluster.consumer(self._heard)
        self._found: bytes | None = None
        self._read = -1
        """The offset up to which all is read; -1 before the first."""

    def committed(self) -> TopicPosition | None:
        """Return what is committed before the first open transaction, be it this writer's or another's."""
        return self._up_to(self._end("read_committed"))

    def latest(self) -> TopicPosition | None:
        """Return the newest position, once every transaction that has begun by now has ended."""
        return self._up_to(self._end("read_uncommitted"))

    def close(self) -> None:
        """End the connection."""
        self._consumer.close()

    def _up_to(self, end: int) -> TopicPosition | None:
        kafka = library()
        if self._read < 0 and end > 0:
            self._consumer.assign([kafka.TopicPartition(self._topic, PARTITION, kafka.OFFSET_BEGINNING)])
        deadline = time.monotonic() + self._cluster.timeout
        while self._read < end and end > 0:
            if time.monotonic() > deadline:
                raise self._cluster.unavailable(
                    f"did not give topic {self._topic!r} up to offset {end}, where a transaction may be open,",
                    self._heard,
                )
            record = self._consumer.poll(_TURN)
            if record is None:
                continue
            error = record.error()
            if error is None:
                deadline = time.monotonic() + self._cluster.timeout
                if record.key() == self._writer:
                    self._found = record.value()
            elif error.name() == "_PARTITION_EOF":
                # It counts the ends of transactions, too, which are no records but have offsets.
                self._read = record.offset() or 0
            elif meaning(error.name()) is Meaning.REFUSED:
                raise translated(self._cluster.name, f"does not give topic {self._topic!r}", error)
            else:
                self._heard(error)
        return self._position()

    def _position(self) -> TopicPosition | None:
        if self._found is None:
            return None
        try:
            return codec.from_json_of_any_version(TopicPosition, self._found)
        except CodecError as error:
            raise OutputError(
                f"topic {self._topic!r} of {self._cluster.name} is not one of positions",
                f"a position as the value of {self._writer.decode()!r}",
                error.reason,
                "name another `position_topic`, or upgrade chandy",
            ) from None

    def _end(self, level: str) -> int:
        """Return the offset after the last record: of all, or of those before the first open transaction."""
        from confluent_kafka import IsolationLevel, TopicPartition
        from confluent_kafka.admin import OffsetSpec

        place = TopicPartition(self._topic, PARTITION)
        what = f"did not say where topic {self._topic!r} ends"

        def ask() -> dict[Any, Any]:
            return self._admin.list_offsets(
                {place: OffsetSpec.latest()},  # type: ignore[no-untyped-call]
                isolation_level=IsolationLevel[level.upper()],
                request_timeout=self._cluster.timeout,
            )

        return int(_answer(self._cluster, self._admin, what, ask, self._heard).offset)


def _create(cluster: Cluster, admin: AdminClient, topic: str, heard: Heard) -> None:
    from confluent_kafka.admin import NewTopic

    def ask() -> dict[Any, Any]:
        return admin.create_topics(
            [NewTopic(topic, num_partitions=1, config=SETTINGS)],
            operation_timeout=cluster.timeout,
            request_timeout=cluster.timeout,
        )

    try:
        _answer(cluster, admin, f"did not create topic {topic!r}, which keeps positions", ask, heard)
    except _ExistsError:
        # Somebody else has just made it, or this broker did not know it yet.
        _check(cluster, admin, topic, heard)
    except OutputError as error:
        settings = " ".join(f"--config {name}={value}" for name, value in SETTINGS.items())
        error.advice += f"; or create it: kafka-topics.sh --create --topic {topic} --partitions 1 {settings}"
        raise


def _check(cluster: Cluster, admin: AdminClient, topic: str, heard: Heard) -> None:
    from confluent_kafka.admin import ConfigResource, ResourceType

    def ask() -> dict[Any, Any]:
        return admin.describe_configs(
            [ConfigResource(ResourceType.TOPIC, topic)], request_timeout=cluster.timeout
        )

    try:
        settings = _answer(cluster, admin, f"did not describe topic {topic!r}", ask, heard)
    except OutputError:
        # A user who may not see the settings may still use the topic.
        return
    policy = settings["cleanup.policy"].value
    if policy != "compact":
        raise OutputError(
            f"topic {topic!r} of {cluster.name} would lose positions",
            "cleanup.policy=compact",
            f"cleanup.policy={policy}",
            "alter its settings, or name another `position_topic`",
        )


class _ExistsError(Exception):
    """The topic is there already."""


def _answer(
    cluster: Cluster, admin: AdminClient, what: str, ask: Callable[[], dict[Any, Any]], heard: Heard
) -> Any:
    """Return the answer to a question about one topic. It is asked again while the broker may come to know it."""
    deadline = time.monotonic() + min(GRACE, cluster.timeout)
    while True:
        (future,) = ask().values()
        try:
            # The client has the same limit and says more.
            return future.result(cluster.timeout + 1)
        except (library().KafkaException, TimeoutError) as error:
            raised: Exception = error
        admin.poll(0)
        failure = failure_of(raised)
        name = "" if failure is None else failure.name()
        if name == "TOPIC_ALREADY_EXISTS":
            raise _ExistsError
        if name not in MAY_COME or time.monotonic() > deadline:
            raise cluster.error(what, raised, heard)
        time.sleep(PAUSE)
