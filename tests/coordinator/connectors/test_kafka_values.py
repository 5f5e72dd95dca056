"""What ``KafkaSink`` accepts it publishes, and consumers get the same messages; a topic is known by its identity."""

from __future__ import annotations

import contextlib
import uuid
from collections.abc import Iterator
from typing import Any

import attrs
import pyarrow as pa
import pytest
from confluent_kafka import KafkaException
from hypothesis import given
from hypothesis import strategies as st

from chandy.coordinator.connectors.kafka.messages import check_columns, messages, unpublishable
from chandy.coordinator.connectors.kafka.positions import PARTITION
from chandy.coordinator.connectors.kafka.sink import KafkaSink
from chandy.coordinator.sinks.two_phase.contract import Committer, Epoch, WriteContext
from chandy.coordinator.sinks.two_phase.errors import OutputError, TargetUnavailableError
from chandy.storage import codec

from ...drawn_rows import Kind, refused_is_no_example
from ...effort import trying
from ...waiting import eventually
from .conformance import Pipeline
from .kafka_broker import Broker, Record, delete_topic, new_topic, produce, read
from .kafka_broker import kafka as kafka

pytestmark = pytest.mark.server

# --- values -------------------------------------------------------------------------------------------------

TEXTS = st.text(st.characters(exclude_categories=("Cs",)), max_size=4) | st.sampled_from(
    ["", "a\0b", "é\U0001f600"]
)
BYTES = st.binary(max_size=4)
# What Spark may have in a string: its bytes are not checked.
UNCLEAN = b"\xff"


def text_or_bytes() -> list[Kind]:
    return [
        Kind(pa.string(), TEXTS),
        Kind(pa.large_string(), TEXTS),
        Kind(pa.binary(), BYTES),
        Kind(pa.large_binary(), BYTES),
    ]


def headers(value: Kind) -> Kind:
    names = st.sampled_from(["h", "", "é", "a\0b", None])
    pair = st.fixed_dictionaries({"key": names, "value": st.none() | value.values})
    pairs = pa.struct([("key", pa.string()), ("value", value.arrow)])
    return Kind(pa.list_(pairs), st.lists(pair, max_size=3))


KINDS = {
    "value": [*text_or_bytes() * 3, Kind(pa.int64(), st.integers(0, 9))],
    "key": [*text_or_bytes(), Kind(pa.null(), st.none())],
    "partition": [
        *[Kind(pa.int32(), st.integers(0, 2))] * 6,
        Kind(pa.int32(), st.integers(-1, 2)),
        Kind(pa.int64(), st.integers(0, 2)),
    ],
    "headers": [headers(kind) for kind in text_or_bytes()],
    "topic": [Kind(pa.string(), TEXTS)],
    "other": [Kind(pa.int32(), st.integers(0, 9))],
}


@st.composite
def tables(draw: st.DrawFn) -> pa.Table:
    """Rows: some of the columns that messages have, seldom one that they do not have, in any order."""
    names = [name for name in ("headers", "key", "partition", "topic") if draw(st.booleans())]
    names = draw(st.permutations([*names, "value"]))
    # A column that is missing, twice, or none of a message.
    flaw = draw(st.sampled_from([*["none"] * 9, "missing", "twice", "other"]))
    if flaw == "missing":
        names.remove("value")
    elif flaw != "none":
        names.append(names[0] if flaw == "twice" else flaw)
    count = draw(st.integers(1, 4))
    columns = []
    for name in names:
        kind = draw(st.sampled_from(KINDS[name]))
        values = draw(st.lists(st.none() | kind.values, min_size=count, max_size=count))
        columns.append(pa.array(values, kind.arrow))
    return pa.Table.from_arrays(columns, names=names)


def as_bytes(value: str | bytes | None) -> bytes | None:
    return value.encode() if isinstance(value, str) else value


def sink_of(kafka: Broker, topic: str) -> KafkaSink:
    return KafkaSink(
        bootstrap_servers=kafka.servers,
        topic=topic,
        uid=topic,
        position_topic="positions-of-values",
        timeout="30 s",
    )


@attrs.define
class Published:
    """A topic, and which messages of it are known."""

    pipeline: Pipeline
    committer: Committer
    epochs: int = 0
    places: set[tuple[int, int]] = attrs.field(factory=set)
    """Partitions and offsets of the messages that were read."""

    def take(self, rows: pa.Table) -> list[Record]:
        """Publish rows, and return what consumers find more than before."""
        with refused_is_no_example():
            epoch = self.pipeline.accepted(self.epochs + 1, rows)
        self.epochs += 1
        self.committer.commit(epoch)
        sink = self.pipeline.sink
        assert isinstance(sink, KafkaSink)
        found = read(sink.bootstrap_servers, topic_of(self.pipeline))
        new = [one for one in found if (one.partition, one.offset) not in self.places]
        self.places.update((one.partition, one.offset) for one in new)
        return new


@pytest.fixture(scope="module")
def published(kafka: Broker, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Published]:
    pipeline = Pipeline(
        sink_of(kafka, new_topic(kafka)), f"file://{tmp_path_factory.mktemp('store')}/flights/"
    )
    with contextlib.closing(pipeline.recover()) as committer:
        yield Published(pipeline, committer)


@given(rows=tables())
@trying(40)
def test_what_is_accepted_is_published_and_read_back_as_it_was(published: Published, rows: pa.Table) -> None:
    found = published.take(rows)
    expected = [
        (
            as_bytes(row.get("key")),
            as_bytes(row["value"]),
            [(one["key"], as_bytes(one["value"])) for one in row.get("headers") or ()],
        )
        for row in rows.to_pylist()
    ]
    assert sorted(map(repr, expected)) == sorted(
        repr((one.key, one.value, one.headers or [])) for one in found
    )
    if "partition" in rows.column_names:
        wanted = [number for number in rows["partition"].to_pylist() if number is not None]
        have = [one.partition for one in found]
        assert all(have.count(number) >= wanted.count(number) for number in wanted)


@given(rows=tables())
@trying(40)
def test_what_cannot_be_published_is_said_as_well_where_rows_name_their_topics(rows: pa.Table) -> None:
    with refused_is_no_example():
        check_columns(rows.schema, None)
    refusal = unpublishable(rows, None)
    try:
        found = list(messages(rows, None))
    except OutputError:
        assert refusal is not None
        return
    names = [name for one in found for name in (one.topic, *(key for key, _ in one.headers or ()))]
    assert (refusal is not None) == any("\0" in name for name in names)


def test_names_that_are_no_utf8_are_refused_and_values_need_not_be_any(kafka: Broker, tmp_path: Any) -> None:
    def text(value: bytes) -> pa.Array:
        return pa.array([value], pa.binary()).view(pa.string())

    def staged(**columns: pa.Array) -> None:
        sink = sink_of(kafka, "never-published")
        rows = pa.table(columns)
        sink.write(iter(rows.to_batches()), WriteContext(f"file://{tmp_path}/flights/", "staged/", 0, 0))

    def header(key: bytes, value: bytes) -> pa.Array:
        pairs = pa.StructArray.from_arrays([text(key), text(value)], names=["key", "value"])
        return pa.ListArray.from_arrays([0, 1], pairs)

    staged(key=text(UNCLEAN), value=text(UNCLEAN), headers=header(b"h", UNCLEAN))
    with pytest.raises(OutputError, match="key of headers"):
        staged(value=text(b"v"), headers=header(UNCLEAN, b"v"))


# --- identity -----------------------------------------------------------------------------------------------


def position_of(pipeline: Pipeline, generation: int) -> int | None:
    with contextlib.closing(pipeline.recover(generation)) as committer:
        return committer.position


def publish(pipeline: Pipeline, generation: int, epoch: int) -> None:
    with contextlib.closing(pipeline.recover(generation)) as committer:
        committer.commit(epoch_of(pipeline, epoch))


def epoch_of(pipeline: Pipeline, number: int) -> Epoch:
    return pipeline.accepted(number, pa.table({"value": [f"{number}"]}))


@pytest.fixture
def pipeline(kafka: Broker, tmp_path: Any) -> Pipeline:
    """One that has published an epoch."""
    sink = attrs.evolve(sink_of(kafka, new_topic(kafka)), position_topic=f"positions-{uuid.uuid4().hex[:8]}")
    made = Pipeline(sink, f"file://{tmp_path}/flights/")
    publish(made, 1, 1)
    return made


def make_anew(kafka: Broker, topic: str) -> None:
    delete_topic(kafka.servers, topic)

    def is_made() -> bool:
        # The name is taken until the old topic is gone.
        with contextlib.suppress(KafkaException):
            new_topic(kafka, name=topic)
            return True
        return False

    eventually(is_made, "a new topic of the name")


def topic_of(pipeline: Pipeline) -> str:
    assert isinstance(pipeline.sink, KafkaSink)
    assert pipeline.sink.topic is not None
    return pipeline.sink.topic


def test_a_topic_that_was_made_anew_has_nothing_of_what_was_published(
    kafka: Broker, pipeline: Pipeline
) -> None:
    assert position_of(pipeline, 2) == 1
    make_anew(kafka, topic_of(pipeline))
    assert position_of(pipeline, 3) is None
    # A look changes nothing: not before something is published there.
    assert position_of(pipeline, 4) is None
    publish(pipeline, 5, 2)
    assert position_of(pipeline, 6) == 2


def test_a_topic_that_is_made_anew_while_the_sink_publishes_is_noticed(
    kafka: Broker, pipeline: Pipeline
) -> None:
    epoch = epoch_of(pipeline, 2)
    with contextlib.closing(pipeline.recover(2)) as committer:
        make_anew(kafka, topic_of(pipeline))
        with pytest.raises(TargetUnavailableError, match="made anew"):
            committer.commit(epoch)
    assert read(kafka.servers, topic_of(pipeline)) == []
    assert position_of(pipeline, 3) is None


def test_another_topic_has_nothing_and_the_first_one_keeps_its_position(
    kafka: Broker, pipeline: Pipeline
) -> None:
    assert isinstance(pipeline.sink, KafkaSink)
    other = attrs.evolve(pipeline, sink=attrs.evolve(pipeline.sink, topic=new_topic(kafka)))
    assert position_of(other, 2) is None
    # It was a mistake.
    assert position_of(pipeline, 3) == 1


def test_positions_of_an_earlier_version_count_and_a_newer_record_can_be_read_by_it(
    kafka: Broker, pipeline: Pipeline
) -> None:
    assert isinstance(pipeline.sink, KafkaSink)
    positions = pipeline.sink.position_topic
    newest = codec.parse("position", read(kafka.servers, positions)[-1].value or b"")
    assert {"store", "generation", "epoch"} < set(newest)
    del newest["target"]
    writer = read(kafka.servers, positions)[-1].key
    produce(kafka.servers, positions, [(writer, codec.canonical(newest), PARTITION)])
    make_anew(kafka, topic_of(pipeline))
    assert position_of(pipeline, 2) == 1
