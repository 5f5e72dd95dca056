"""What is in a channel, from what was seen at its ends."""

from __future__ import annotations

import json

import attrs
from hypothesis import given
from hypothesis import strategies as st

from chandy.coordinator.channels.links import Link
from chandy.coordinator.channels.logs import PublishedFile, offsets, published, read
from chandy.coordinator.channels.state import Read, Written, records, unread
from chandy.coordinator.connectors.files import log as file_log
from chandy.coordinator.connectors.files.log import DataFile
from chandy.coordinator.sinks.place import Directory, Topic
from chandy.coordinator.sinks.two_phase.contract import Position
from chandy.storage.checkpoints.manifest import (
    ChannelRecord,
    EpochRecord,
    Handle,
    Manifest,
    OutputRecord,
    QueryRecord,
    TopicPartition,
    UnreadFiles,
)

from ...builders import make_manifest

OUT = Directory("/out")
LINK = Link("a", "sink", "b", OUT)


def name(epoch: int, number: int = 0) -> str:
    return f"/out/part-{epoch:08d}-{number:05d}-0123abcd-0123456789abcdef.parquet"


def manifest(*epochs: EpochRecord, published: int | None = None) -> Manifest:
    writer = QueryRecord("a", 9, Handle(), (OutputRecord("sink", epochs, published),))
    return make_manifest(7, queries=(writer, QueryRecord("b", 3, Handle())), operators=())


def state(link: Link, at: Manifest, written: Written, seen: Read) -> ChannelRecord:
    (found,) = records([link], at, {(link.writer, link.sink): written}, {link.reader: seen})
    return found


def test_what_is_published_and_not_read_is_in_the_channel_and_so_is_what_waits() -> None:
    at = manifest(EpochRecord(6, 20), EpochRecord(7, 3), published=5)
    files = [PublishedFile(name(4), 10, 2), PublishedFile(name(5), 100, 30), PublishedFile(name(5, 1), 50, 8)]
    found = state(LINK, at, Written((files,), 5), Read((frozenset({name(4)}), frozenset({"/other"}))))
    assert found == ChannelRecord("a", "sink", "b", "/out", 5, 23, UnreadFiles(2, 150, 38))


def test_what_the_target_has_before_the_driver_knows_counts_once() -> None:
    at = manifest(EpochRecord(6, 20), EpochRecord(7, 3), published=5)
    files = [PublishedFile(name(6), 10, 20)]
    found = state(LINK, at, Written((files,), 6), Read((frozenset({name(6)}),)))
    assert (found.published, found.rows_to_publish, found.files) == (6, 3, UnreadFiles(0, 0, 0))


def test_what_later_checkpoints_have_published_meanwhile_is_not_in_a_savepoint() -> None:
    at = manifest(EpochRecord(7, 3), published=6)
    files = [PublishedFile(name(7), 10, 3), PublishedFile(name(8), 10, 5)]
    found = state(LINK, at, Written((files,), 8), Read(()))
    assert (found.rows_to_publish, found.files) == (0, UnreadFiles(1, 10, 3))


def test_before_anything_is_published_all_of_it_waits() -> None:
    found = state(LINK, manifest(EpochRecord(7, 3)), Written((), None), Read(()))
    assert (found.published, found.rows_to_publish, found.files) == (None, 3, UnreadFiles(0, 0, 0))


def test_what_was_not_seen_is_not_known() -> None:
    (found,) = records([LINK], manifest(EpochRecord(7, 3), published=6), {}, {})
    assert found == ChannelRecord("a", "sink", "b", "/out", 6, 3, None)


def test_a_file_of_spark_says_its_size_and_not_its_rows() -> None:
    link = Link("a", None, "b", OUT)
    files = [PublishedFile("/out/part-00000-x.parquet", 10), PublishedFile("/out/part-00001-x.parquet", 5)]
    plain = attrs.evolve(manifest(), queries=(QueryRecord("a", 9, Handle()), QueryRecord("b", 3, Handle())))
    found = state(link, plain, Written((files,)), Read((frozenset({files[0].path}),)))
    assert found == ChannelRecord("a", None, "b", "/out", 9, 0, UnreadFiles(1, 5, None))
    assert unread((), (), 7) == UnreadFiles(0, 0, 0)


@given(st.integers(-1, 100))
def test_of_sparks_own_file_sink_the_newest_batch_can_be_seen_if_there_is_one(batch: int) -> None:
    writer, reader = QueryRecord("a", batch, Handle()), QueryRecord("b", -1, Handle())
    at = make_manifest(7, queries=(writer, reader), operators=())
    (found,) = records([attrs.evolve(LINK, sink=None)], at, {}, {})
    assert found.published == (batch if batch >= 0 else None)


def test_a_channel_needs_both_of_its_queries_in_the_checkpoint() -> None:
    assert records([LINK], make_manifest(7, queries=(QueryRecord("a", 9, Handle()),)), {}, {}) == ()


def test_a_topic_is_known_by_its_partitions() -> None:
    link = attrs.evolve(LINK, place=Topic(frozenset({"k:1"}), "t"))
    written = Written(offsets={("t", 0): 10, ("t", 1): 4, ("chandy-positions", 0): 3})
    seen = Read(offsets={("t", 0): 7, ("t", 2): 5, ("u", 0): 3})
    found = state(link, manifest(EpochRecord(7, 3), published=6), written, seen)
    assert found.partitions == (
        TopicPartition("t", 0, 10, 7),
        TopicPartition("t", 1, 4, None),
        TopicPartition("t", 2, None, 5),
    )
    assert (found.rows_to_publish, found.files) == (3, None)
    assert [one.unread for one in found.partitions] == [3, None, None]


# --- logs ---------------------------------------------------------------------------------------------------


def test_the_log_of_a_sink_of_chandy_names_files_with_their_rows() -> None:
    uris = [f"file://{name(3).replace('/out', '/o%20t/k%3D1')}", f"file://{name(12345678901)}"]
    added = [file_log.line_of(DataFile(uri, 10 + at, at), 1.5) for at, uri in enumerate(uris)]
    entry = file_log.encode(
        added, file_log.LogEntry(5, {"w": Position("file:///s", 3, 7)}), "file:///out", 1.5
    )
    found = published(entry)
    assert found == (
        PublishedFile(name(3).replace("/out", "/o t/k=1"), 10, 0),
        PublishedFile(name(12345678901), 11, 1),
    )
    assert [one.epoch for one in found] == [3, 12345678901]
    # One that an earlier version has written does not say its rows.
    old = json.dumps({"path": "file:///out/x", "size": 3, "isDir": False, "action": "add"})
    assert published(b"v1\n" + old.encode()) == (PublishedFile("/out/x", 3, None),)


def test_the_logs_of_spark_are_read_as_it_writes_them() -> None:
    sink = (
        b'v1\n{"path":"file:///out/part-00000-6e.c000.snappy.parquet","size":512,"isDir":false,'
        b'"modificationTime":1,"blockReplication":1,"blockSize":33554432,"action":"add"}\n'
        b'{"size":7,"path":"file:///out/b%22\\\\c","isDir":false}\n{"path":"file:///d","size":0,"isDir":true}'
    )
    assert published(sink) == (
        PublishedFile("/out/part-00000-6e.c000.snappy.parquet", 512),
        PublishedFile('/out/b"\\c', 7),
    )
    assert published(sink)[0].epoch is None
    source = b'v1\n{"path":"file:///out/a%20b","timestamp":1600000000000,"batchId":0}\n'
    assert read(source) == {"/out/a b"}
    assert read(b"v1") == read(b"") == frozenset()
    # Kafka's source has its first offsets there.
    assert read(b'\0v1\n{"t":{"0":0,"1":3}}') == frozenset()
    assert published(b"v1") == ()


def test_offsets_of_kafka_are_told_from_those_of_other_sources() -> None:
    header = '{"batchWatermarkMs":0,"batchTimestampMs":1,"conf":{"a":"1"}}'
    lines = [
        '{"t":{"0":5,"1":0},"u":{"0":7}}',
        '{"logOffset":3}',
        "17",
        "-",
        '{"v":{}}',
        '{"w":{"a":1}}',
        "{",
    ]
    found = offsets("\n".join(["v1", header, *lines]))
    assert found == {("t", 0): 5, ("t", 1): 0, ("u", 0): 7}
    assert offsets("\n".join(["v2", header, 'named:{"t":{"3":4}}'])) == {("t", 3): 4}
    assert offsets("") == {}
