from __future__ import annotations

import pickle
from typing import Any

import pyarrow as pa
import pytest

from chandy.coordinator.connectors.kafka.errors import Meaning, meaning
from chandy.coordinator.connectors.kafka.messages import KafkaRecord, check_columns, messages, shown
from chandy.coordinator.connectors.kafka.sink import KafkaSink
from chandy.coordinator.errors import ConfigError
from chandy.coordinator.sinks.two_phase.errors import OutputError

HEADERS = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))


def table(**columns: pa.Array) -> pa.Table:
    return pa.table(columns)


# --- columns ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "columns",
    [
        {"value": pa.string()},
        {"value": pa.binary(), "key": pa.string()},
        {"value": pa.large_string(), "key": pa.large_binary()},
        {"value": pa.string(), "key": pa.null(), "headers": pa.null(), "partition": pa.null()},
        {"value": pa.string(), "headers": HEADERS, "partition": pa.int32(), "topic": pa.string()},
    ],
)
def test_the_columns_of_sparks_own_sink_are_taken(columns: dict[str, pa.DataType]) -> None:
    check_columns(pa.schema(list(columns.items())), "t")


@pytest.mark.parametrize(
    ("columns", "topic", "expected", "found"),
    [
        ({"key": pa.string()}, "t", "a column 'value'", "columns key"),
        ({"value": pa.string()}, None, "a column 'topic'", "columns value"),
        ({"value": pa.int64()}, "t", "column 'value' of type string or binary", "type int64"),
        ({"value": pa.string(), "header": HEADERS}, "t", "headers", "column 'header'"),
        ({"value": pa.string(), "partition": pa.int64()}, "t", "of type int", "type int64"),
        ({"value": pa.string(), "topic": pa.binary()}, "t", "of type string", "type binary"),
        ({"value": pa.string(), "headers": pa.list_(pa.string())}, "t", "array<struct<key", "list<"),
    ],
)
def test_other_columns_are_refused_by_name(
    columns: dict[str, pa.DataType], topic: str | None, expected: str, found: str
) -> None:
    with pytest.raises(OutputError) as error:
        check_columns(pa.schema(list(columns.items())), topic)
    assert expected in error.value.expected
    assert found in error.value.found
    assert error.value.advice


# --- rows ---------------------------------------------------------------------------------------------------


def test_strings_are_sent_as_utf_8_and_bytes_as_they_are() -> None:
    rows = table(key=pa.array(["é", None]), value=pa.array([b"\xff\x00", None], pa.binary()))
    assert list(messages(rows, "t")) == [
        KafkaRecord("t", b"\xff\x00", "é".encode()),
        KafkaRecord("t", None, None),
    ]


@pytest.mark.parametrize("type_", [pa.string(), pa.large_string(), pa.binary(), pa.large_binary()])
def test_each_type_of_value_arrives(type_: pa.DataType) -> None:
    rows = table(value=pa.array([b"a", b""], pa.binary()).cast(type_))
    assert [message.value for message in messages(rows, "t")] == [b"a", b""]


def test_the_sinks_topic_goes_before_the_rows_own() -> None:
    rows = table(topic=pa.array(["a", "b"]), value=pa.array(["1", "2"]))
    assert [message.topic for message in messages(rows, None)] == ["a", "b"]
    assert [message.topic for message in messages(rows, "t")] == ["t", "t"]


def test_headers_keep_their_order_and_may_come_twice() -> None:
    pairs = [{"key": "h", "value": b"1"}, {"key": "h", "value": None}]
    rows = table(value=pa.array(["v", "w", "x"]), headers=pa.array([pairs, [], None], HEADERS))
    assert [message.headers for message in messages(rows, "t")] == [[("h", b"1"), ("h", None)], [], None]


def test_a_partition_is_taken_where_one_is_given() -> None:
    rows = table(value=pa.array(["v", "w"]), partition=pa.array([2, None], pa.int32()))
    assert [message.partition for message in messages(rows, "t")] == [2, None]


@pytest.mark.parametrize(
    ("column", "topic", "expected"),
    [
        ({"topic": pa.array([None], pa.string())}, None, "a topic"),
        ({"topic": pa.array([""])}, None, "a topic"),
        ({"partition": pa.array([-1], pa.int32())}, "t", "a partition of 0 or more"),
        ({"headers": pa.array([[{"key": None, "value": b""}]], HEADERS)}, "t", "headers with a key"),
        ({"headers": pa.array([[None]], HEADERS)}, "t", "headers with a key"),
    ],
)
def test_a_row_that_is_no_message_is_named_by_its_key(
    column: dict[str, pa.Array], topic: str | None, expected: str
) -> None:
    rows = table(key=pa.array(["ua"]), value=pa.array(["v"]), **column)
    with pytest.raises(OutputError, match="the row with key 'ua'") as error:
        list(messages(rows, topic))
    assert expected in error.value.expected


@pytest.mark.parametrize(
    ("key", "text"),
    [(None, "null"), (b"a", "'a'"), (b"\xff", "'\\\\xff'"), (b"a" * 100, f"'{'a' * 59}... (100 bytes)")],
)
def test_a_key_is_shown_in_short(key: bytes | None, text: str) -> None:
    assert shown(key) == text


# --- errors and settings ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("MSG_SIZE_TOO_LARGE", Meaning.REFUSED),
        ("TOPIC_AUTHORIZATION_FAILED", Meaning.REFUSED),
        ("_FENCED", Meaning.REPLACED),
        ("INVALID_PRODUCER_EPOCH", Meaning.REPLACED),
        ("_TIMED_OUT", Meaning.UNAVAILABLE),
        ("NOT_ENOUGH_REPLICAS", Meaning.UNAVAILABLE),
        ("SOME_ERROR_OF_A_LATER_VERSION", Meaning.UNAVAILABLE),
    ],
)
def test_what_is_not_known_to_be_final_is_tried_again(name: str, expected: Meaning) -> None:
    assert meaning(name) is expected


def test_the_sink_is_a_value_that_shows_no_secrets() -> None:
    sink = KafkaSink(bootstrap_servers="b:9092", topic="t", options={"sasl.password": "hush"})
    assert pickle.loads(pickle.dumps(sink)) == sink
    assert "hush" not in repr(sink)


@pytest.mark.parametrize(
    "fields",
    [
        {"bootstrap_servers": ""},
        {"topic": ""},
        {"uid": ""},
        {"position_topic": ""},
        {"timeout": "0 s"},
        {"options": {"transactional.id": "mine"}},
        {"options": ["sasl.password", "hush"]},
    ],
)
def test_a_field_that_cannot_be_used_is_refused(fields: dict[str, Any]) -> None:
    with pytest.raises(ConfigError) as error:
        KafkaSink(**{"bootstrap_servers": "b:9092", **fields})
    assert f"KafkaSink.{next(iter(fields))}" in error.value.what
    assert "hush" not in str(error.value)
