"""Who reads what another query writes, and who may not."""

from __future__ import annotations

from pathlib import Path

import pytest

from chandy.coordinator.channels.links import Link, Node, ReadingMode, links, reading
from chandy.coordinator.connectors.files.sink import FilesSink
from chandy.coordinator.connectors.kafka.sink import KafkaSink
from chandy.coordinator.errors import WriterError
from chandy.coordinator.sinks.file_sink import FileSink
from chandy.coordinator.sinks.place import Directory, Output, OutputTarget, Topic, plain_path
from chandy.coordinator.spark.writer_facts import SourceFacts

OUT = Directory("/data/out/table")
REMOTE = Directory("s3a://bucket/out/a b")
TOPIC = Topic(frozenset({"one:9092", "two:9092"}), "flights")


def files(path: str) -> SourceFacts:
    return SourceFacts("parquet", True, None, {"path": path})


def kafka(servers: str = "one:9092", level: str = "read_committed", **options: str) -> SourceFacts:
    place = {"kafka.bootstrap.servers": servers, "kafka.isolation.level": level, **options}
    return SourceFacts("kafka", True, None, place)


@pytest.mark.parametrize(
    ("place", "path", "how"),
    [
        (OUT, "/data/out/table", ReadingMode.WHOLE),
        (OUT, "/data/out/table/", ReadingMode.WHOLE),
        (OUT, "file:///data/out/table", ReadingMode.WHOLE),
        (OUT, "file:/data/in/../out/table", ReadingMode.WHOLE),
        (OUT, "/data/out/tables", ReadingMode.NOT),
        (OUT, "/data/out/tab", ReadingMode.NOT),
        (OUT, "s3a://data/out/table", ReadingMode.NOT),
        # Above it and below it, Spark finds no log.
        (OUT, "/data/out", ReadingMode.BY_LISTING),
        (OUT, "/data/out/table/day=1", ReadingMode.BY_LISTING),
        (OUT, "/data/out/table/*.parquet", ReadingMode.BY_LISTING),
        (OUT, "/data/out/t*", ReadingMode.BY_LISTING),
        (OUT, "/data/*/table", ReadingMode.BY_LISTING),
        (OUT, "/data/{in,out}/table", ReadingMode.BY_LISTING),
        (OUT, "/data/[n-p]ut/tabl?", ReadingMode.BY_LISTING),
        (OUT, "/data/{in,off}/table", ReadingMode.NOT),
        (OUT, "/data/in*", ReadingMode.NOT),
        (OUT, "/data/[/table", ReadingMode.NOT),
        (REMOTE, "s3://bucket/out/a b", ReadingMode.WHOLE),
        (REMOTE, "s3a://bucket/out/a b/", ReadingMode.WHOLE),
        (REMOTE, "s3a://other/out/a b", ReadingMode.NOT),
        (REMOTE, "s3a://bucket/*", ReadingMode.BY_LISTING),
    ],
)
def test_a_directory_is_read_by_its_log_or_by_listing(
    place: OutputTarget, path: str, how: ReadingMode
) -> None:
    assert reading(files(path), place) is how


def test_who_ignores_the_log_lists() -> None:
    assert reading(files("/data/out/table"), OUT, ignores_sink_log=True) is ReadingMode.BY_LISTING


def test_a_link_leads_to_where_it_points(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "real")
    for sink in (FilesSink(str(tmp_path / "real")), FilesSink(str(tmp_path / "link"))):
        assert reading(files(str(tmp_path / "link")), sink.place) is ReadingMode.WHOLE
    (output,) = FileSink(tmp_path / "link", "json").outputs
    assert reading(files(str(tmp_path / "real")), output.place) is ReadingMode.WHOLE
    assert output.sink is None


def test_a_directory_on_s3_is_known_by_the_name_that_readers_use() -> None:
    place = FilesSink("s3://bucket/a%20b?endpoint=http://x:1").place
    assert (place.path, place.store) == ("s3a://bucket/a b", "s3://bucket/a%20b?endpoint=http://x:1")


@pytest.mark.parametrize(
    ("place", "source", "how"),
    [
        (TOPIC, kafka(subscribe="other, flights"), ReadingMode.WHOLE),
        (TOPIC, kafka("two:9092,three:9092", assign='{"flights":[0]}'), ReadingMode.WHOLE),
        (TOPIC, kafka(subscribepattern="fl.*"), ReadingMode.WHOLE),
        (TOPIC, kafka(subscribepattern="fl"), ReadingMode.NOT),
        (TOPIC, kafka(subscribepattern="("), ReadingMode.NOT),
        (TOPIC, kafka(subscribe="other"), ReadingMode.NOT),
        (TOPIC, kafka("four:9092", subscribe="flights"), ReadingMode.NOT),
        (TOPIC, kafka(level="read_uncommitted", subscribe="flights"), ReadingMode.UNCOMMITTED),
        (
            TOPIC,
            SourceFacts("kafka", True, None, {"kafka.bootstrap.servers": "one:9092", "subscribe": "flights"}),
            ReadingMode.UNCOMMITTED,
        ),
        (TOPIC, files("/data/out/table"), ReadingMode.NOT),
        (OUT, kafka(subscribe="flights"), ReadingMode.NOT),
    ],
)
def test_a_topic_is_read_whole_by_those_who_read_what_is_committed(
    place: OutputTarget, source: SourceFacts, how: ReadingMode
) -> None:
    assert reading(source, place) is how


def test_a_sink_for_kafka_says_where_it_writes() -> None:
    assert KafkaSink(bootstrap_servers="one:9092, two:9092", topic="flights").place == TOPIC
    # Rows may name any.
    assert KafkaSink(bootstrap_servers="one:9092").place is None


def node(name: str, *outputs: Output, reads: tuple[str, ...] = ()) -> Node:
    return Node(name, outputs, tuple(files(path) for path in reads))


def test_all_readers_of_all_outputs_are_found_whoever_was_started_first() -> None:
    other = Directory("/data/other")
    writer = node("a", Output(OUT, "one"), Output(other, "two"))
    both = node("b", reads=("/data/other", "/data/out/table", "/data/other/"))
    one = node("c", reads=("/elsewhere", "/data/other"))
    assert links(both, [writer]) == (Link("a", "one", "b", OUT), Link("a", "two", "b", other))
    assert links(writer, [both, one]) == (
        Link("a", "one", "b", OUT),
        Link("a", "two", "b", other),
        Link("a", "two", "c", other),
    )
    assert links(one, [both]) == ()


def test_queries_may_read_each_other_in_a_circle_through_transactional_sinks() -> None:
    there, back = Directory("/there"), Directory("/back")
    a = node("a", Output(there, "sink"), reads=("/back",))
    b = node("b", Output(back, "sink"), reads=("/there",))
    assert links(b, [a]) == (Link("a", "sink", "b", there), Link("b", "sink", "a", back))
    assert links(node("c", Output(there, "sink"), reads=("/there",)), []) == (Link("c", "sink", "c", there),)


def test_who_reads_from_sparks_own_sink_is_started_after_it() -> None:
    writer, reader = node("a", Output(OUT)), node("b", reads=("/data/out/table",))
    assert links(reader, [writer]) == (Link("a", None, "b", OUT),)
    with pytest.raises(WriterError, match="start 'a' before 'b'"):
        links(writer, [reader])


def test_who_could_see_what_never_was_published_is_refused() -> None:
    writer = node("a", Output(OUT, "sink"))
    with pytest.raises(WriterError, match=r"'b' cannot read what 'a' writes.*found /data/out/\*"):
        links(node("b", reads=("/data/out/*",)), [writer])
    with pytest.raises(WriterError, match="ignoreMetadata"):
        links(Node("b", (), (files("/data/out/table"),), ignores_sink_log=True), [writer])
    with pytest.raises(WriterError, match="read_committed"):
        links(
            Node("b", (), (kafka(level="read_uncommitted", subscribe="flights"),)),
            [node("a", Output(TOPIC, "sink"))],
        )


@pytest.mark.parametrize(
    ("uri", "path"),
    [
        ("file:///a/b%20c", "/a/b c"),
        ("file:/a/b/", "/a/b"),
        ("/a", "/a"),
        ("file:///", "/"),
        ("s3://bucket/a%3Db", "s3a://bucket/a=b"),
        ("s3n://bucket/a", "s3a://bucket/a"),
        ("hdfs://node:9000/a/", "hdfs://node:9000/a"),
    ],
)
def test_a_place_has_one_name(uri: str, path: str) -> None:
    assert plain_path(uri) == path
