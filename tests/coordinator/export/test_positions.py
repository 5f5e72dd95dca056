"""Where sources stand, and how a file source is told."""

from __future__ import annotations

import json

import pytest

from chandy.coordinator.export.positions import READ_BATCH, SourcePosition, positions, read_files

TIMES = '{"batchWatermarkMs":0,"batchTimestampMs":1,"conf":{}}'


def test_each_source_has_its_folder_and_its_offset() -> None:
    assert positions(f'v1\n{TIMES}\n{{"logOffset":3}}\n12\n-') == [
        SourcePosition("0", "0", '{"logOffset":3}'),
        SourcePosition("1", "1", "12"),
    ]
    assert positions(f'v2\n{TIMES}\nclicks:{{"logOffset":3}}\n1:{{"t":{{"0":7}}}}') == [
        SourcePosition("clicks", "clicks", '{"logOffset":3}'),
        SourcePosition("1", "1", '{"t":{"0":7}}'),
    ]


def test_sources_of_ticks_are_not_there_in_a_plain_query() -> None:
    found = positions(f'v1\n{TIMES}\n{{"logOffset":3}}\n{{"batch": 8}}\n{{"logOffset":5}}\n{{"batch":9}}\n7')
    assert [(one.folder, one.plain_folder) for one in found] == [("0", "0"), ("2", "1"), ("4", "2")]
    assert positions(f'v2\n{TIMES}\nchandy_ticks_61:{{"batch": 8}}') == []


@pytest.mark.parametrize(
    ("offset", "end", "topics"),
    [
        ('{"logOffset":12}', 12, False),
        ('{"logOffset":-1}', -1, False),
        ('{"logOffset":12,"more":1}', None, False),
        ('{"clicks":{"0":12,"1":0},"views":{"0":3}}', None, True),
        ('{"clicks":{"a":12}}', None, False),
        ("{}", None, False),
        ("12", None, False),
        ("not JSON", None, False),
    ],
)
def test_offsets_tell_what_source_they_are_of(offset: str, end: int | None, topics: bool) -> None:
    position = SourcePosition("0", "0", offset)
    assert (position.log_end, position.topics) == (end, topics)


def entry(*files: tuple[str, int]) -> bytes:
    lines = [json.dumps({"path": path, "timestamp": 5, "batchId": batch}) for path, batch in files]
    return "\n".join(["v1", *lines]).encode()


def test_all_files_of_a_log_have_been_read() -> None:
    log = {
        "4.compact": entry(("a", 0)),
        "9.compact": entry(("a", 0), ("b", 9)),
        "9": entry(("b", 9)),
        "10": entry(("c", 10)),
        "11": entry(),
    }
    found = read_files(log)
    assert found is not None
    head, *lines = found.decode().splitlines()
    assert head == "v1"
    read = [json.loads(line) for line in lines]
    assert [(one["path"], one["timestamp"], one["batchId"]) for one in read] == [
        ("a", 5, READ_BATCH),
        ("b", 5, READ_BATCH),
        ("c", 5, READ_BATCH),
    ]


def test_a_source_that_has_read_nothing_needs_no_log() -> None:
    assert read_files({}) is None
    assert read_files({"0": entry()}) is None
