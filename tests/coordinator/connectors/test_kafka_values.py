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
from chandy.testing import SinkPipeline

from ...drawn_rows import Kind, refused_is_no_example
from ...effort import trying
from ...waiting import eventually
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
        Kind(pa.int32(), st.integers(-1, 3)),
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


PLACES = ["plain", "compacted", "named"]
"""Where a sink publishes: to a topic, to a compacted one, or to those that rows name."""


@st.composite
def published_to(draw: st.DrawFn) -> tuple[str, pa.Table]:
    """Where rows go, and rows; those that name their topics name mostly such as there are."""
    place = draw(st.sampled_from(PLACES))
    rows = draw(tables())
    if place == "named" and rows.column_names.count("topic") == 1:
        names = st.sampled_from([*PLACES[:2] * 4, "missing", "", None])
        topics = draw(st.lists(names, min_size=rows.num_rows, max_size=rows.num_rows))
        rows = rows.set_column(rows.column_names.index("topic"), "topic", pa.array(topics, pa.string()))
    return place, rows


def as_bytes(value: str | bytes | None) -> bytes | None:
    return value.encode() if isinstance(value, str) else value


def sink_of(kafka: Broker, topic: str | None) -> KafkaSink:
    return KafkaSink(
        bootstrap_servers=kafka.servers,
        topic=topic,
        uid=topic or "named",
        position_topic="positions-of-values",
        timeout="30 s",
    )


@attrs.define
class Columns:
    """What a sink looks at of the rows of a query."""

    columns: list[str]


@attrs.define
class TwoTopics:
    """Sinks that publish to two topics, and which messages of them are known."""

    servers: str
    topics: dict[str, str]
    """The topics by their place."""
    pipelines: dict[str, SinkPipeline]
    committers: dict[str, Committer]
    epochs: int = 0
    read: set[tuple[str, int, int]] = attrs.field(factory=set)
    """Topics, partitions and offsets of the messages that were read."""

    def take(self, place: str, rows: pa.Table) -> list[tuple[str, Record]]:
        """Publish rows, and return what consumers find more than before, with its topic."""
        pipeline = self.pipelines[place]
        with refused_is_no_example():
            sink = pipeline.sink.for_rows(Columns(rows.column_names))  # type: ignore[arg-type]
            epoch = attrs.evolve(pipeline, sink=sink).accepted(self.epochs + 1, rows)
        self.epochs += 1
        self.committers[place].commit(epoch)
        found = [(topic, one) for topic in self.topics.values() for one in read(self.servers, topic)]
        new = [one for one in found if (one[0], one[1].partition, one[1].offset) not in self.read]
        self.read.update((topic, one.partition, one.offset) for topic, one in new)
        return new


@pytest.fixture(scope="module")
def published(kafka: Broker, tmp_path_factory: pytest.TempPathFactory) -> Iterator[TwoTopics]:
    compact = {"cleanup.policy": "compact,delete", "segment.ms": "3600000"}
    topics = {"plain": new_topic(kafka), "compacted": new_topic(kafka, **compact)}
    store = f"file://{tmp_path_factory.mktemp('store')}/flights/"
    pipelines = {place: SinkPipeline(sink_of(kafka, topics.get(place)), store) for place in PLACES}
    with contextlib.ExitStack() as open_:
        committers = {
            place: open_.enter_context(contextlib.closing(one.recover())) for place, one in pipelines.items()
        }
        yield TwoTopics(kafka.servers, topics, pipelines, committers)


@given(drawn=published_to())
@trying(15)
def test_what_is_accepted_is_published_and_read_back_as_it_was(
    published: TwoTopics, drawn: tuple[str, pa.Table]
) -> None:
    place, rows = drawn
    if place == "named" and rows.column_names.count("topic") == 1:
        names = [published.topics.get(name, name) for name in rows["topic"].to_pylist()]
        rows = rows.set_column(rows.column_names.index("topic"), "topic", pa.array(names, pa.string()))
    found = published.take(place, rows)
    expected = [
        (
            row["topic"] if place == "named" else published.topics[place],
            as_bytes(row.get("key")),
            as_bytes(row["value"]),
            [(one["key"], as_bytes(one["value"])) for one in row.get("headers") or ()],
        )
        for row in rows.to_pylist()
    ]
    assert sorted(map(repr, expected)) == sorted(
        repr((topic, one.key, one.value, one.headers or [])) for topic, one in found
    )
    if "partition" in rows.column_names:
        wanted = [number for number in rows["partition"].to_pylist() if number is not None]
        have = [one.partition for _, one in found]
        assert all(have.count(number) >= wanted.count(number) for number in wanted)


@pytest.mark.parametrize(
    ("place", "columns", "words"),
    [
        ("compacted", {"value": ["v"]}, "a column 'key' of text or bytes for the compacted topic"),
        ("compacted", {"key": ["k", None], "value": ["v", "w"]}, "null in column 'key'"),
        ("plain", {"value": ["v"], "partition": [3]}, "partition 3 of topic '.*', which has 3"),
        ("named", {"value": ["v"], "topic": ["missing"]}, "topic 'missing', which the cluster does not have"),
        (
            "named",
            {"value": ["v"], "topic": ["compacted"]},
            "a row without a key for topic '.*', which is compacted",
        ),
        (
            "named",
            {"value": ["v"], "topic": ["plain"], "partition": [7]},
            "partition 7 of topic '.*', which has 3",
        ),
    ],
)
def test_what_no_topic_takes_is_refused_by_name_before_it_is_staged(
    published: TwoTopics, place: str, columns: dict[str, list[Any]], words: str
) -> None:
    if "topic" in columns:
        columns = columns | {"topic": [published.topics.get(name, name) for name in columns["topic"]]}
    rows = pa.table(columns)
    if "partition" in columns:
        rows = rows.set_column(
            rows.column_names.index("partition"), "partition", rows["partition"].cast(pa.int32())
        )
    pipeline = published.pipelines[place]
    with pytest.raises(OutputError, match=words):
        sink = pipeline.sink.for_rows(Columns(rows.column_names))  # type: ignore[arg-type]
        attrs.evolve(pipeline, sink=sink).accepted(1, rows)


@pytest.mark.parametrize("topic", ["plain", "compacted"])
def test_rows_that_name_topics_which_are_there_are_taken(published: TwoTopics, topic: str) -> None:
    columns = {"key": ["k"], "value": ["v"], "topic": [published.topics[topic]]}
    (found,) = published.take("named", pa.table(columns))
    assert (found[0], found[1].key, found[1].value) == (published.topics[topic], b"k", b"v")


def test_a_cluster_that_is_away_refuses_nothing_and_holds_no_batch_up_for_long() -> None:
    sink = KafkaSink(bootstrap_servers="127.0.0.1:1", uid="away")
    rows = pa.table({"value": ["v"], "topic": ["t"]})
    assert sink.for_rows(Columns(rows.column_names)).unpublishable(rows) is None  # type: ignore[arg-type]


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


def position_of(pipeline: SinkPipeline, generation: int) -> int | None:
    with contextlib.closing(pipeline.recover(generation)) as committer:
        return committer.position


def publish(pipeline: SinkPipeline, generation: int, epoch: int) -> None:
    with contextlib.closing(pipeline.recover(generation)) as committer:
        committer.commit(epoch_of(pipeline, epoch))


def epoch_of(pipeline: SinkPipeline, number: int) -> Epoch:
    return pipeline.accepted(number, pa.table({"value": [f"{number}"]}))


@pytest.fixture
def pipeline(kafka: Broker, tmp_path: Any) -> SinkPipeline:
    """One that has published an epoch."""
    sink = attrs.evolve(sink_of(kafka, new_topic(kafka)), position_topic=f"positions-{uuid.uuid4().hex[:8]}")
    made = SinkPipeline(sink, f"file://{tmp_path}/flights/")
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


def topic_of(pipeline: SinkPipeline) -> str:
    assert isinstance(pipeline.sink, KafkaSink)
    assert pipeline.sink.topic is not None
    return pipeline.sink.topic


def test_a_topic_that_was_made_anew_has_nothing_of_what_was_published(
    kafka: Broker, pipeline: SinkPipeline
) -> None:
    assert position_of(pipeline, 2) == 1
    make_anew(kafka, topic_of(pipeline))
    assert position_of(pipeline, 3) is None
    # A look changes nothing: not before something is published there.
    assert position_of(pipeline, 4) is None
    publish(pipeline, 5, 2)
    assert position_of(pipeline, 6) == 2


def test_a_topic_that_is_made_anew_while_the_sink_publishes_is_noticed(
    kafka: Broker, pipeline: SinkPipeline
) -> None:
    epoch = epoch_of(pipeline, 2)
    with contextlib.closing(pipeline.recover(2)) as committer:
        make_anew(kafka, topic_of(pipeline))
        with pytest.raises(TargetUnavailableError, match="recreated"):
            committer.commit(epoch)
    assert read(kafka.servers, topic_of(pipeline)) == []
    assert position_of(pipeline, 3) is None


def test_another_topic_has_nothing_and_the_first_one_keeps_its_position(
    kafka: Broker, pipeline: SinkPipeline
) -> None:
    assert isinstance(pipeline.sink, KafkaSink)
    other = attrs.evolve(pipeline, sink=attrs.evolve(pipeline.sink, topic=new_topic(kafka)))
    assert position_of(other, 2) is None
    # It was a mistake.
    assert position_of(pipeline, 3) == 1


def test_positions_of_an_earlier_version_count_and_a_newer_record_can_be_read_by_it(
    kafka: Broker, pipeline: SinkPipeline
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
