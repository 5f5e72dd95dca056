"""Spark's Kafka source, as the coordinator sees it: what it still has, and how far its query has come."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Final

from typing_extensions import override

from ....storage.errors import ChandyError
from ....storage.logs import logger
from ...errors import SetupError
from ...sinks.two_phase.errors import TargetUnavailableError
from ...sources.source import Source, Standing
from .cluster import Cluster, Heard, library
from .group_offsets import GroupOffsets
from .losses import Range, TopicPartition, losses, lost, offsets_of
from .reading import KafkaReading
from .topics import count

if TYPE_CHECKING:
    from confluent_kafka import Consumer

log = logger(__name__)

_SECONDS: Final = 10.0
"""How long any answer of the cluster is waited for. Nothing depends on it."""
_CLOSE_SECONDS: Final = 5.0
"""How long a stop waits for the offsets of the last checkpoint to be published."""


class KafkaSource(Source):
    """A Kafka source of a query. It needs confluent-kafka."""

    def __init__(self, reading: KafkaReading, query: str) -> None:
        """Make it. Nothing is connected yet.

        Args:
            reading: how the query reads.
            query: its name.
        """
        self._reading = reading
        self._query = query
        self._cluster = Cluster(reading.servers, reading.settings, _SECONDS)
        self._group = GroupOffsets(self._cluster, reading.group) if reading.group else None

    @override
    def check(self, standing: Standing) -> None:
        if standing.offset is None:
            return
        try:
            needed = offsets_of(standing.offset)
            found = self._ask({topic for topic, _ in needed})
        except (ChandyError, ValueError) as error:
            log.warning(
                "cannot tell whether Kafka still has what the query goes on with; Spark finds out by itself",
                query=self._query,
                error=str(error),
            )
            return
        gone = losses(needed, found, all_partitions=not self._reading.is_assigned)
        if not gone:
            return
        loss = lost(self._query, self._cluster.name, gone)
        if self._reading.fails_on_loss:
            raise loss
        log.warning(
            "records are lost, and failOnDataLoss allows it: they are counted nowhere",
            query=self._query,
            needed=loss.expected,
            found=loss.found,
        )

    @override
    def completed(self, offset: str) -> None:
        if self._group is None:
            return
        try:
            offsets = offsets_of(offset)
        except ValueError as error:
            log.warning("cannot read the offsets of a checkpoint", query=self._query, error=str(error))
            return
        self._group.publish(offsets)

    @override
    def close(self) -> None:
        if self._group is not None:
            self._group.close(_CLOSE_SECONDS)

    # --- the cluster ----------------------------------------------------------------------------------------

    def _ask(self, topics: Iterable[str]) -> dict[TopicPartition, Range]:
        """Return what the partitions of topics have; nothing of a topic that is not there.

        Raises:
            ChandyError: there is no answer.
        """
        heard = Heard()
        observer = self._cluster.observer(heard)
        return {
            (topic, partition): self._range(observer, heard, topic, partition)
            for topic in sorted(topics)
            for partition in range(count(self._cluster, observer, topic, heard))
        }

    def _range(self, observer: Consumer, heard: Heard, topic: str, partition: int) -> Range:
        kafka = library()
        place = kafka.TopicPartition(topic, partition)
        try:
            found = observer.get_watermark_offsets(place, timeout=self._cluster.timeout)
        except kafka.KafkaException as raised:
            error = self._cluster.error("did not tell its offsets", raised, heard)
            if isinstance(error, ChandyError):
                raise error from None
            raise TargetUnavailableError(self._cluster.name, str(error), is_understood=True) from None
        if found is None:
            raise self._cluster.unavailable("did not tell its offsets", heard)
        earliest, end = found
        return Range(earliest, end)


def kafka_source(reading: KafkaReading, query: str) -> KafkaSource | None:
    """Return the Kafka source of a query, and say what its options leave to be wished for.

    Args:
        reading: how the query reads.
        query: its name.

    Returns:
        None if there is nothing to ask Kafka with.
    """
    if not reading.is_level_set:
        log.warning(
            "Spark reads the records of open and aborted transactions, too; set the reader's option "
            "kafka.isolation.level to read_committed, or to read_uncommitted if they are wanted",
            query=query,
            kafka=reading.servers,
        )
    try:
        library()
    except SetupError:
        log.info(
            "with the package confluent-kafka (pip install 'chandy[kafka]'), records that Kafka has deleted are named "
            "before a query starts without them, and lag tools see how far it has come",
            query=query,
        )
        return None
    if reading.unknown:
        log.info(
            "these settings of Kafka's Java client have no counterpart in Chandy's; if it cannot connect, give the "
            "reader librdkafka's as options that begin with chandy., such as chandy.ssl.ca.location",
            query=query,
            settings=", ".join(reading.unknown),
        )
    return KafkaSource(reading, query)
