"""What Chandy does for a query that reads Kafka, on a real broker: what is lost is named, and lag tools see offsets."""

from __future__ import annotations

import builtins
import json
import logging
import uuid
from collections.abc import Iterator
from typing import Any

import pytest

from benchmarks.servers import kafka as servers
from chandy.coordinator.connectors.kafka import source as kafka_source_module
from chandy.coordinator.connectors.kafka.reading import reading_of
from chandy.coordinator.connectors.kafka.source import KafkaSource, kafka_source
from chandy.coordinator.connectors.recognition import sources_of
from chandy.coordinator.sources.errors import SourceLostError
from chandy.coordinator.sources.source import Standing
from chandy.coordinator.spark.writer_facts import KAFKA, SinkFacts, SourceFacts, Trigger, WriterFacts

from ...storage.servers import free_port
from ...waiting import DEADLINE, eventually
from .kafka_broker import PASSWORD, STRANGER, Broker, new_topic
from .kafka_broker import kafka as kafka
from .reading_query import reading_query

pytestmark = pytest.mark.server


@pytest.fixture
def sources() -> Iterator[list[KafkaSource]]:
    """Those that a test has made; closed at its end."""
    made: list[KafkaSource] = []
    yield made
    for source in made:
        source.close()


@pytest.fixture
def group() -> str:
    return f"group-{uuid.uuid4().hex[:8]}"


def of(servers: str, group: str = "", **options: str) -> KafkaSource:
    named = {name.replace("__", ".").lower(): value for name, value in options.items()}
    reading = reading_of({"kafka.bootstrap.servers": servers, "kafka.isolation.level": "x", **named}, group)
    made = kafka_source(reading, "q")
    assert made is not None
    return made


def admin(kafka: Broker) -> Any:
    from confluent_kafka.admin import AdminClient

    return AdminClient({"bootstrap.servers": kafka.servers})


def fill(kafka: Broker, topic: str, partition: int, records: int) -> None:
    given = ((None, str(number).encode(), partition) for number in range(records))
    servers.produce(kafka.servers, topic, given)


def delete_records(kafka: Broker, topic: str, partition: int, before: int) -> None:
    from confluent_kafka import TopicPartition

    client = admin(kafka)
    (deleted,) = client.delete_records([TopicPartition(topic, partition, before)]).values()
    deleted.result(DEADLINE)


def logged(topic: str, *offsets: int) -> str:
    """What Spark's log has of a source that reads a topic."""
    return json.dumps({topic: {str(partition): offset for partition, offset in enumerate(offsets)}})


def group_offsets(kafka: Broker, group: str, topic: str) -> dict[int, int]:
    """What `kafka-consumer-groups --describe` shows of a group."""
    return servers.group_offsets(kafka.servers, group, topic)


# --- what is lost -------------------------------------------------------------------------------------------


def test_a_query_may_go_on_wherever_its_topic_has_what_comes_next(kafka: Broker) -> None:
    topic = new_topic(kafka, 2)
    fill(kafka, topic, 0, 10)
    delete_records(kafka, topic, 0, 4)
    source = of(kafka.servers)
    for offset in (4, 7, 10):
        source.check(Standing(logged(topic, offset, 0)))


def test_retention_past_the_offset_is_named_with_the_partition_and_what_is_left(kafka: Broker) -> None:
    topic = new_topic(kafka, 2)
    fill(kafka, topic, 1, 10)
    delete_records(kafka, topic, 1, 6)
    with pytest.raises(SourceLostError) as caught:
        of(kafka.servers).check(Standing(logged(topic, 0, 4)))
    (loss,) = caught.value.losses
    assert (loss.part, loss.needed, loss.earliest, loss.end) == (
        f"partition 1 of topic '{topic}'",
        4,
        6,
        10,
    )
    assert "6 as the earliest: 4 to 5 were deleted" in str(caught.value)
    assert kafka.servers in str(caught.value)


def test_a_topic_that_was_deleted_and_one_made_anew_are_named(
    kafka: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic = new_topic(kafka, 2)
    fill(kafka, topic, 0, 10)
    client = admin(kafka)
    (deleted,) = client.delete_topics([topic]).values()
    deleted.result(DEADLINE)
    source = of(kafka.servers)
    with pytest.raises(SourceLostError, match="no such partition") as caught:
        source.check(Standing(logged(topic, 10, 0)))
    assert [one.earliest for one in caught.value.losses] == [None, None]
    from confluent_kafka.admin import NewTopic

    (made,) = client.create_topics([NewTopic(topic, 2)]).values()
    made.result(DEADLINE)
    fill(kafka, topic, 0, 3)
    with pytest.raises(SourceLostError, match="deleted and recreated") as caught:
        source.check(Standing(logged(topic, 10, 0)))
    assert [(one.needed, one.end) for one in caught.value.losses] == [(10, 3)]


def test_a_new_partition_is_needed_from_its_beginning_unless_partitions_are_assigned(kafka: Broker) -> None:
    topic = new_topic(kafka, 2)
    fill(kafka, topic, 1, 5)
    of(kafka.servers).check(Standing(logged(topic, 0)))
    delete_records(kafka, topic, 1, 2)
    with pytest.raises(SourceLostError) as caught:
        of(kafka.servers).check(Standing(logged(topic, 0)))
    assert [(one.needed, one.earliest) for one in caught.value.losses] == [(0, 2)]
    of(kafka.servers, assign=json.dumps({topic: [0]})).check(Standing(logged(topic, 0)))


def test_a_loss_that_the_user_allows_is_logged_and_no_error(
    kafka: Broker, caplog: pytest.LogCaptureFixture
) -> None:
    topic = new_topic(kafka, 1)
    fill(kafka, topic, 0, 5)
    delete_records(kafka, topic, 0, 3)
    of(kafka.servers, failOnDataLoss="false").check(Standing(logged(topic, 1)))
    assert "records are lost, and failOnDataLoss allows it" in caplog.text
    assert "1 to 2 were deleted" in caplog.text


def test_what_cannot_be_told_is_left_to_spark(
    kafka: Broker, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kafka_source_module, "_SECONDS", 0.5)
    of(f"127.0.0.1:{free_port()}").check(Standing(logged("t", 1)))
    assert "cannot tell whether Kafka still has" in caplog.text
    caplog.clear()
    with kafka.frozen():
        of(kafka.servers).check(Standing(logged("t", 1)))
    assert "cannot tell whether Kafka still has" in caplog.text
    caplog.clear()
    of(kafka.servers).check(Standing("no offsets"))
    assert "cannot tell whether Kafka still has" in caplog.text


def test_the_words_of_java_connect(
    kafka: Broker, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic = new_topic(kafka, 1)
    jaas = f'org.apache...PlainLoginModule required username="{STRANGER}" password="{PASSWORD}";'
    options = {
        "kafka__security__protocol": "SASL_PLAINTEXT",
        "kafka__sasl__mechanism": "PLAIN",
        "kafka__sasl__jaas__config": jaas,
    }
    of(f"127.0.0.1:{kafka.sasl}", **options).check(Standing(logged(topic, 0)))
    # The broker knows the user, who may not see the topic.
    assert "TOPIC_AUTHORIZATION_FAILED" in caplog.text
    assert PASSWORD not in caplog.text


# --- offsets for lag tools ----------------------------------------------------------------------------------


def test_the_offsets_of_completed_checkpoints_are_those_of_the_group(
    kafka: Broker, group: str, sources: list[KafkaSource]
) -> None:
    topic = new_topic(kafka, 2)
    fill(kafka, topic, 0, 10)
    sources.append(of(kafka.servers, group))
    sources[0].completed(logged(topic, 4, 0))
    eventually(lambda: group_offsets(kafka, group, topic) == {0: 4, 1: 0})
    sources[0].completed(logged(topic, 10, 0))
    # A stop waits for those of the last checkpoint.
    sources[0].close()
    assert group_offsets(kafka, group, topic) == {0: 10, 1: 0}


def test_a_query_goes_back_and_so_do_the_offsets_of_its_group(
    kafka: Broker, group: str, sources: list[KafkaSource]
) -> None:
    topic = new_topic(kafka, 1)
    fill(kafka, topic, 0, 10)
    for offset in (10, 4):
        sources.append(of(kafka.servers, group))
        sources[-1].completed(logged(topic, offset))
        sources[-1].close()
        assert group_offsets(kafka, group, topic) == {0: offset}


def test_a_broker_that_is_away_holds_nobody_up_and_gets_the_newest_offsets_later(
    kafka: Broker,
    group: str,
    sources: list[KafkaSource],
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    caplog.set_level(logging.INFO)
    monkeypatch.setattr(kafka_source_module, "_SECONDS", 0.5)
    topic = new_topic(kafka, 1)
    fill(kafka, topic, 0, 10)
    sources.append(of(kafka.servers, group))
    failed = "cannot be published for lag tools"
    with kafka.frozen():
        for offset in range(9):
            sources[0].completed(logged(topic, offset))
            eventually(lambda: failed in caplog.text)
    eventually(lambda: sources[0]._group._newest.is_idle)  # type: ignore[union-attr]
    assert caplog.text.count(failed) == 1
    sources[0].completed(logged(topic, 10))
    eventually(lambda: group_offsets(kafka, group, topic) == {0: 10})
    eventually(lambda: "offsets are published again" in caplog.text)
    assert caplog.text.count(failed) == 1


def test_a_group_that_has_members_keeps_its_offsets(
    kafka: Broker, group: str, sources: list[KafkaSource], caplog: pytest.LogCaptureFixture
) -> None:
    from confluent_kafka import Consumer, TopicPartition

    topic = new_topic(kafka, 1)
    fill(kafka, topic, 0, 10)
    member = Consumer(
        {
            "bootstrap.servers": kafka.servers,
            "group.id": group,
            "enable.auto.commit": False,
            "auto.offset.reset": "earliest",
        }
    )
    try:
        member.subscribe([topic])
        eventually(lambda: member.poll(0.1) is not None, "a record for the member")
        member.commit(offsets=[TopicPartition(topic, 0, 3)], asynchronous=False)
        sources.append(of(kafka.servers, group))
        for offset in (7, 8):
            sources[0].completed(logged(topic, offset))
            eventually(lambda: sources[0]._group._newest.is_idle)  # type: ignore[union-attr]
        assert caplog.text.count("the group has members") == 1
        assert group_offsets(kafka, group, topic) == {0: 3}
    finally:
        member.close()


def test_a_group_without_a_name_is_not_made(kafka: Broker) -> None:
    topic = new_topic(kafka, 1)
    source = of(kafka.servers, "", chandy__group__id="")
    source.completed(logged(topic, 0))
    source.close()
    assert source._group is None


# --- what a start says --------------------------------------------------------------------------------------


def facts(**options: str) -> WriterFacts:
    given = {"kafka.bootstrap.servers": "nowhere:1"} | {
        name.replace("__", "."): value for name, value in options.items()
    }
    return WriterFacts(
        SinkFacts("noop"),
        "append",
        Trigger.PROCESSING_TIME,
        sources=(SourceFacts("rate", True), SourceFacts(KAFKA, True, options=given, label="orders")),
    )


def test_a_source_is_known_by_its_number_and_its_name() -> None:
    found = sources_of(facts(), reading_query())
    assert list(found.sources) == ["1", "orders"]
    assert found.sources["1"] is found.sources["orders"]


def test_a_reader_that_does_not_say_which_records_it_reads_is_told_once(
    caplog: pytest.LogCaptureFixture,
) -> None:
    sources_of(facts(), reading_query())
    assert caplog.text.count("read_committed") == 1
    caplog.clear()
    sources_of(facts(kafka__isolation__level="read_uncommitted"), reading_query())
    assert "read_committed" not in caplog.text


def test_without_the_client_a_query_runs_and_one_line_says_what_it_would_get(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    caplog.set_level(logging.INFO)
    right = builtins.__import__

    def without(name: str, *rest: Any, **named: Any) -> Any:
        if name.startswith("confluent_kafka"):
            raise ImportError(name)
        return right(name, *rest, **named)

    monkeypatch.setattr(builtins, "__import__", without)
    assert sources_of(facts(kafka__isolation__level="read_committed"), reading_query()).sources == {}
    assert caplog.text.count("chandy[kafka]") == 1


def test_settings_that_chandys_client_does_not_know_are_named(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    sources_of(facts(kafka__ssl__truststore__location="/trust.jks"), reading_query())
    assert "ssl.truststore.location" in caplog.text
    assert "/trust.jks" not in caplog.text
