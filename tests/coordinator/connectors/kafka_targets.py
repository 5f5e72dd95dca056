"""Topics of Kafka that a sink publishes to."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import attrs
import pyarrow as pa
import pytest

from chandy.coordinator.connectors.kafka.producer import TransactionalProducer
from chandy.coordinator.connectors.kafka.sink import KafkaSink
from chandy.coordinator.sinks.two_phase.contract import Staged, TwoPhaseSink, WriteContext
from chandy.testing import Row, SinkTarget

from ...waiting import DEADLINE
from .kafka_broker import Broker, new_topic, read
from .kafka_broker import kafka as kafka


@attrs.frozen
class NumberedKeys(KafkaSink):
    """Takes the rows of the conformance suite: the number is the key."""

    def check(self, schema: pa.Schema) -> None:
        super().check(_keyed(pa.RecordBatch.from_pylist([], schema=schema)).schema)

    def write(self, batches: Iterator[pa.RecordBatch], context: WriteContext) -> Staged:
        return super().write((_keyed(batch) for batch in batches), context)


def _keyed(batch: pa.RecordBatch) -> pa.RecordBatch:
    key = batch.column("k").cast(pa.string())
    return pa.RecordBatch.from_arrays([key, batch.column("v")], names=["key", "value"])


@attrs.frozen
class KafkaTarget(SinkTarget):
    kafka: Broker
    topic: str
    positions: str

    def sink(self, uid: str = "out") -> TwoPhaseSink:
        return NumberedKeys(
            bootstrap_servers=self.kafka.servers,
            topic=self.topic,
            uid=uid,
            position_topic=self.positions,
            timeout="30 s",
        )

    def rows(self) -> list[Row]:
        return [
            (int(one.key or b""), (one.value or b"").decode()) for one in read(self.kafka.servers, self.topic)
        ]

    def check_nothing_left(self) -> None:
        for topic in (self.topic, self.positions):
            end, stable = ends(self.kafka, topic)
            assert end == stable


@pytest.fixture
def topic(kafka: Broker) -> str:
    return new_topic(kafka)


def values(kafka: Broker, *topics: str) -> list[str]:
    return sorted((one.value or b"").decode() for one in read(kafka.servers, *topics))


def before(step: int, act: Callable[[], object], monkeypatch: pytest.MonkeyPatch) -> None:
    """Act once, ahead of a step of the next commit: one of ``STEPS``."""
    taken = 0
    acting = False

    def hooked(name: str) -> Callable[..., Any]:
        original = getattr(TransactionalProducer, name)

        def call(self: TransactionalProducer, *arguments: Any) -> Any:
            nonlocal taken, acting
            if acting:
                return original(self, *arguments)
            if taken == step:
                acting = True
                act()
                acting = False
            taken += 1
            return original(self, *arguments)

        return call

    for name in ("begin", "send", "flush", "commit"):
        monkeypatch.setattr(TransactionalProducer, name, hooked(name))


def ends(kafka: Broker, topic: str) -> tuple[int, int]:
    """The offset after the last record, and that before the first open transaction."""
    from confluent_kafka import IsolationLevel, TopicPartition
    from confluent_kafka.admin import AdminClient, OffsetSpec

    admin = AdminClient({"bootstrap.servers": kafka.servers})
    found = []
    for level in (IsolationLevel.READ_UNCOMMITTED, IsolationLevel.READ_COMMITTED):
        (asked,) = admin.list_offsets(
            {TopicPartition(topic, 0): OffsetSpec.latest()}, isolation_level=level
        ).values()
        found.append(asked.result(DEADLINE).offset)
    return found[0], found[1]


def topics(kafka: Broker) -> set[str]:
    from confluent_kafka.admin import AdminClient

    return set(AdminClient({"bootstrap.servers": kafka.servers}).list_topics(timeout=30).topics)
