"""Which topics a Kafka cluster has, with how many partitions, and what tells one from its namesakes."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any, Final

from ...sinks.two_phase.errors import TargetUnavailableError
from ..record import TargetIds
from .cluster import Cluster, Heard, library
from .errors import REFUSALS, described, translated

if TYPE_CHECKING:
    from confluent_kafka.admin import AdminClient

MAY_COME: Final = (
    "UNKNOWN_TOPIC_OR_PART",
    "LEADER_NOT_AVAILABLE",
    "NOT_LEADER_FOR_PARTITION",
    # A client that asks for the leaders by itself says so.
    "_NOENT",
)
"""What a broker says of a topic that it does not know, also of one that it will know in a moment."""
GRACE: Final = 5.0
"""Seconds for which such a topic is asked for again: it was made just now, or the broker has just started."""
PAUSE: Final = 0.1
_64_BITS: Final = (1 << 64) - 1


def partitions(cluster: Cluster, client: Any, topic: str, heard: Heard) -> int:
    """Return how many partitions a topic has. One that is missing is looked for again for some seconds.

    Args:
        cluster: where it is.
        client: any of its clients.
        topic: its name.
        heard: what the client says.

    Raises:
        OutputError: there is no such topic, or no permission to see it.
        TargetUnavailableError: there is no answer.
    """
    error, found = _looked_for(cluster, client, topic, heard)
    if found:
        return found
    if error is None:
        raise TargetUnavailableError(
            cluster.name, f"topic {topic!r} has no partitions yet", is_understood=True
        )
    raise translated(cluster.name, f"does not have topic {topic!r} for this sink", error)


def count(cluster: Cluster, client: Any, topic: str, heard: Heard) -> int:
    """Return how many partitions a topic has that is to be read; 0 if there is no such topic.

    One that is missing is looked for again for some seconds. Args are those of ``partitions``.

    Raises:
        ChandyError: there is no answer, or no permission to see it.
    """
    error, found = _looked_for(cluster, client, topic, heard)
    if error is None or error.name() == "UNKNOWN_TOPIC_OR_PART":
        return found
    raise TargetUnavailableError(
        cluster.name, f"it does not show topic {topic!r}: {described(error)}", is_understood=True
    )


def _looked_for(cluster: Cluster, client: Any, topic: str, heard: Heard) -> tuple[Any | None, int]:
    """Return the error that a topic has, and its partitions, once it is there or was looked for long enough."""
    deadline = time.monotonic() + min(GRACE, cluster.timeout)
    while True:
        error, found = _asked(cluster, client, topic, heard)
        if found or time.monotonic() > deadline or (error and error.name() not in MAY_COME):
            return error, found
        time.sleep(PAUSE)


def committed(cluster: Cluster, topic: str) -> dict[int, int]:
    """Return by partition the offset behind the last record of a topic that is committed.

    Raises:
        OutputError, TargetUnavailableError: the cluster does not say.
    """
    from confluent_kafka import IsolationLevel, TopicPartition
    from confluent_kafka.admin import OffsetSpec

    heard = Heard()
    admin = cluster.admin(heard)
    places = [TopicPartition(topic, number) for number in range(partitions(cluster, admin, topic, heard))]
    try:
        asked = admin.list_offsets(
            {place: OffsetSpec.latest() for place in places},  # type: ignore[no-untyped-call]
            isolation_level=IsolationLevel.READ_COMMITTED,
            request_timeout=cluster.timeout,
        )
        return {place.partition: int(one.result(cluster.timeout).offset) for place, one in asked.items()}
    except (library().KafkaException, TimeoutError) as error:
        raise cluster.error(f"did not say where topic {topic!r} ends", error, heard) from None


def is_there(cluster: Cluster, client: Any, topic: str, heard: Heard) -> bool:
    """Return whether there is a topic, as the broker that is asked knows it now.

    Args and errors are those of ``partitions``.
    """
    error, _ = _asked(cluster, client, topic, heard)
    if error is not None and error.name() in REFUSALS and error.name() not in MAY_COME:
        raise translated(cluster.name, f"does not have topic {topic!r} for this sink", error)
    return error is None or error.name() != "UNKNOWN_TOPIC_OR_PART"


def identity(cluster: Cluster, admin: AdminClient, positions: str, topic: str, heard: Heard) -> TargetIds:
    """Return the ids that tell a topic and the one of its positions from others that have or had their names.

    Brokers before Kafka 2.8 give no ids: one of zeros stands for all topics there.

    Args:
        cluster: where they are.
        admin: a client for topics.
        positions: name of the topic that keeps positions.
        topic: name of the topic of the rows.
        heard: what the client says.

    Raises:
        OutputError: one is missing, or there is no permission to see it.
        TargetUnavailableError: there is no answer.
    """
    from confluent_kafka import TopicCollection

    def ask(name: str) -> str:
        # It says why a topic cannot be seen, and waits for one that was made just now.
        partitions(cluster, admin, name, heard)
        asked = admin.describe_topics(TopicCollection([name]), request_timeout=cluster.timeout)
        (future,) = asked.values()
        try:
            found = future.result(cluster.timeout).topic_id
        except (library().KafkaException, TimeoutError) as error:
            raise cluster.error(f"did not say which topic {name!r} is", error, heard) from None
        halves = found.get_most_significant_bits(), found.get_least_significant_bits()
        return "".join(f"{half & _64_BITS:016x}" for half in halves)

    return TargetIds(ask(positions), ask(topic))


def _asked(cluster: Cluster, client: Any, topic: str, heard: Heard) -> tuple[Any | None, int]:
    try:
        found = client.list_topics(topic, timeout=cluster.timeout).topics[topic]
    except library().KafkaException as error:
        # What it has said of its connections comes with this.
        client.poll(0)
        raise cluster.error("did not answer", error, heard) from None
    return found.error, len(found.partitions)
