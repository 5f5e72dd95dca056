"""Decisions about queries that read Kafka: what the reader's options say, and what the cluster no longer has."""

from __future__ import annotations

import pytest

from chandy.coordinator.connectors.kafka.losses import Range, losses, lost, offsets_of
from chandy.coordinator.connectors.kafka.reading import KafkaReading, reading_of, translated
from chandy.coordinator.sources.errors import LostOffsets

SERVERS = {"kafka.bootstrap.servers": "a:1,b:2", "subscribe": "flights"}
JAAS = "org.apache.kafka.common.security.plain.PlainLoginModule required"


def reading(**options: str) -> KafkaReading:
    return reading_of(SERVERS | {name.replace("__", "."): value for name, value in options.items()}, "group")


# --- options ------------------------------------------------------------------------------------------------


def test_a_reader_that_sets_nothing_has_sparks_defaults_and_chandys_group() -> None:
    found = reading()
    assert (found.servers, found.settings, found.unknown) == ("a:1,b:2", {}, ())
    assert (found.group, found.fails_on_loss, found.is_level_set, found.is_assigned) == (
        "group",
        True,
        False,
        False,
    )


def test_a_reader_says_how_it_reads() -> None:
    assert not reading(failondataloss="False").fails_on_loss
    assert reading(kafka__isolation__level="read_uncommitted").is_level_set
    assert reading(assign='{"flights":[0]}').is_assigned
    assert reading(chandy__group__id="mine").group == "mine"
    assert reading(chandy__group__id="").group == ""


def test_a_password_is_found_in_the_words_of_java_and_shown_to_nobody() -> None:
    found = reading(
        kafka__security__protocol="SASL_SSL",
        kafka__sasl__mechanism="SCRAM-SHA-512",
        kafka__sasl__jaas__config=rf'{JAAS} username="me" password="very\"secret\\";',
    )
    assert found.settings == {
        "security.protocol": "SASL_SSL",
        "sasl.mechanism": "SCRAM-SHA-512",
        "sasl.username": "me",
        "sasl.password": 'very"secret\\',
    }
    assert found.unknown == ()
    assert "secret" not in repr(found)


@pytest.mark.parametrize(
    ("java", "settings"),
    [
        ({"ssl.truststore.type": "PEM", "ssl.truststore.location": "/ca"}, {"ssl.ca.location": "/ca"}),
        ({"ssl.truststore.type": "pem", "ssl.truststore.certificates": "---"}, {"ssl.ca.pem": "---"}),
        (
            {"ssl.keystore.type": "PEM", "ssl.keystore.location": "/mine", "ssl.key.password": "p"},
            {
                "ssl.certificate.location": "/mine",
                "ssl.key.location": "/mine",
                "ssl.key.password": "p",
            },
        ),
        (
            {"ssl.keystore.type": "PEM", "ssl.keystore.key": "k", "ssl.keystore.certificate.chain": "c"},
            {"ssl.key.pem": "k", "ssl.certificate.pem": "c"},
        ),
        (
            {"ssl.keystore.type": "PKCS12", "ssl.keystore.location": "/p12", "ssl.keystore.password": "p"},
            {"ssl.keystore.location": "/p12", "ssl.keystore.password": "p"},
        ),
        (
            {"ssl.endpoint.identification.algorithm": ""},
            {"ssl.endpoint.identification.algorithm": "none"},
        ),
        # Of the records, and none of the connection.
        ({"max.poll.records": "5", "fetch.max.bytes": "9"}, {}),
    ],
)
def test_settings_of_java_become_those_of_librdkafka(java: dict[str, str], settings: dict[str, str]) -> None:
    assert translated(java) == settings
    assert reading(**{f"kafka__{name}": value for name, value in java.items()}).unknown == ()


def test_what_cannot_be_translated_is_named_unless_the_user_gives_it_himself() -> None:
    jks = {"kafka__ssl__truststore__location": "/trust.jks", "kafka__ssl__truststore__password": "p"}
    assert reading(**jks).unknown == ("ssl.truststore.location",)
    kerberos = {"kafka__sasl__mechanism": "GSSAPI", "kafka__sasl__jaas__config": "Krb5LoginModule required;"}
    assert reading(**kerberos).unknown == ("sasl.jaas.config",)
    told = reading(**jks, chandy__ssl__ca__location="/ca.pem")
    assert (told.unknown, told.settings) == ((), {"ssl.ca.location": "/ca.pem"})


# --- losses -------------------------------------------------------------------------------------------------


def test_offsets_are_read_as_spark_logs_them() -> None:
    assert offsets_of('{"a":{"0":5,"10":7},"b":{"0":0}}') == {("a", 0): 5, ("a", 10): 7, ("b", 0): 0}


@pytest.mark.parametrize("text", ["5", '{"logOffset":3}', "[1]", '{"a":{"x":5}}', "?"])
def test_other_offsets_are_none_of_kafka(text: str) -> None:
    with pytest.raises(ValueError, match=r".*"):
        offsets_of(text)


@pytest.mark.parametrize(
    ("needed", "range_", "is_lost"),
    [
        (5, Range(0, 9), False),
        (5, Range(5, 9), False),
        (5, Range(0, 5), False),
        (5, Range(5, 5), False),
        (5, Range(6, 9), True),
        (5, Range(9, 9), True),
        (5, Range(0, 4), True),
        (5, None, True),
        (0, Range(0, 0), False),
        (0, None, True),
    ],
)
def test_what_lies_between_the_earliest_offset_and_the_end_is_there(
    needed: int, range_: Range | None, is_lost: bool
) -> None:
    found = {} if range_ is None else {("t", 0): range_}
    expected = LostOffsets(
        "partition 0 of topic 't'",
        needed,
        range_.earliest if range_ else None,
        range_.end if range_ else None,
    )
    assert losses({("t", 0): needed}, found, all_partitions=True) == ((expected,) if is_lost else ())


def test_a_partition_that_has_come_since_is_needed_from_its_beginning() -> None:
    found = {("t", 0): Range(0, 9), ("t", 1): Range(0, 3), ("t", 2): Range(2, 3)}
    gone = losses({("t", 0): 5}, found, all_partitions=True)
    assert [(one.part, one.needed, one.earliest) for one in gone] == [("partition 2 of topic 't'", 0, 2)]
    assert losses({("t", 0): 5}, found, all_partitions=False) == ()


def test_the_error_says_which_offsets_are_needed_what_is_there_and_what_to_do() -> None:
    needed = {("t", partition): 5 for partition in range(5)}
    found = {("t", 0): Range(8, 9), ("t", 1): Range(0, 3), ("t", 2): Range(6, 6)}
    error = lost("q", "Kafka at a:1", losses(needed, found, all_partitions=True))
    assert len(error.losses) == 5
    assert error.expected == (
        "offset 5 in partition 0 of topic 't', offset 5 in partition 1 of topic 't', "
        "offset 5 in partition 2 of topic 't', 2 more"
    )
    assert "8 as the earliest: 5 to 7 were deleted" in error.found
    assert "offsets 0 to 3, so the topic was deleted and recreated" in error.found
    assert "nothing before 6" in error.found
    assert "failOnDataLoss" in error.advice
    assert "recreated on purpose" in error.advice
    only_old = lost("q", "Kafka", losses({("t", 0): 5}, {("t", 0): Range(8, 9)}, all_partitions=True))
    assert "restore a newer checkpoint" in only_old.advice
    assert str(only_old).startswith("query 'q' cannot go on where it stood")
