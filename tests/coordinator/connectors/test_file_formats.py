"""Rows as files, and the lines of the directory's log, by values alone."""

from __future__ import annotations

import datetime
import decimal
import json

import attrs
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from chandy.coordinator.connectors.files import log as file_log
from chandy.coordinator.connectors.files.formats import (
    csv,
    in_partitions,
    json_lines,
    partition_folder,
    unwritable,
    unwritten,
)
from chandy.coordinator.connectors.files.layout import DirectoryLayout
from chandy.coordinator.connectors.files.log import DataFile
from chandy.coordinator.connectors.files.rewinds import Rewinds, TakenBack
from chandy.coordinator.connectors.files.sink import url_of
from chandy.coordinator.sinks import directory_log
from chandy.coordinator.sinks.two_phase.contract import Position
from chandy.coordinator.sinks.two_phase.staged import in_utc
from chandy.storage.errors import CodecError, UnfitError

from ...effort import trying


@pytest.mark.parametrize(
    ("value", "folder"),
    [
        (1, "c=1"),
        (True, "c=true"),
        (datetime.date(2026, 1, 2), "c=2026-01-02"),
        ("a b/ü=%", "c=a b%2Fü%3D%25"),
        ("..", "c=.."),
        ("\n", "c=%0A"),
        ("", "c=__HIVE_DEFAULT_PARTITION__"),
        (None, "c=__HIVE_DEFAULT_PARTITION__"),
    ],
)
def test_folders_of_partitions_are_named_as_spark_names_them(value: object, folder: str) -> None:
    assert partition_folder("c", value) == folder


def test_rows_go_to_the_folders_of_their_partitions_in_their_order() -> None:
    rows = pa.table({"a": ["x", None, "x", ""], "b": [1, 1, 1, 1], "c": [1, 2, 3, 4]})
    found = {folder: some.to_pylist() for folder, some in in_partitions(rows, ("a", "b"))}
    assert found == {
        "a=x/b=1/": [{"c": 1}, {"c": 3}],
        "a=__HIVE_DEFAULT_PARTITION__/b=1/": [{"c": 2}, {"c": 4}],
    }
    assert [folder for folder, _ in in_partitions(rows, ())] == [""]


def test_json_has_one_object_a_line_without_nulls() -> None:
    rows = pa.table(
        {
            "d": [datetime.date(2026, 1, 2), None],
            "n": [decimal.Decimal("1.50"), None],
            "b": [b"\x00", None],
            "t": [datetime.datetime(2026, 1, 2, 3, 4, 5, tzinfo=datetime.UTC), None],
            "s": ["a\nü", None],
        }
    )
    first, second = json_lines(rows).splitlines()
    assert json.loads(first) == {
        "d": "2026-01-02",
        "n": "1.50",
        "b": "AA==",
        "t": "2026-01-02T03:04:05+00:00",
        "s": "a\nü",
    }
    assert second == b"{}"


def test_json_has_maps_as_objects_and_names_what_is_no_number() -> None:
    kind = pa.struct(
        [("m", pa.map_(pa.string(), pa.float64())), ("l", pa.list_(pa.map_(pa.string(), pa.bool_())))]
    )
    value = {"m": [("a", float("nan")), ("b", None), ("c", float("-inf"))], "l": [[("1", True)], [], None]}
    rows = pa.table({"s": pa.array([value, {"m": None, "l": None}], kind), "f": [float("inf"), 1.5]})
    assert [json.loads(line) for line in json_lines(rows).splitlines()] == [
        {
            "s": {"m": {"a": "NaN", "b": None, "c": "-Infinity"}, "l": [{"1": True}, {}, None]},
            "f": "Infinity",
        },
        {"s": {}, "f": 1.5},
    ]


@pytest.mark.parametrize("kind", [pa.float32(), pa.float64()])
def test_csv_names_what_is_no_number_as_spark_does(kind: pa.DataType) -> None:
    odd = pa.chunked_array(
        [pa.array([1.5, float("nan")], kind), pa.array([float("inf"), float("-inf"), None], kind)]
    )
    assert csv(pa.table({"f": odd})).decode().split() == [
        '"f"',
        '"1.5"',
        '"NaN"',
        '"Infinity"',
        '"-Infinity"',
        '""',
    ]
    assert csv(pa.table({"f": pa.array([1.5, None], kind), "n": [1, 2]})) == b'"f","n"\n1.5,1\n,2\n'


@pytest.mark.parametrize("format", ["csv", "json"])
@pytest.mark.parametrize(
    "kind", [pa.date32(), pa.timestamp("us", "UTC"), pa.timestamp("us")], ids=["date", "timestamp", "local"]
)
def test_a_year_that_text_cannot_have_is_said_before_it_is_published(format: str, kind: pa.DataType) -> None:
    day = 1 if kind == pa.date32() else 86_400_000_000
    number = pa.int32() if kind == pa.date32() else pa.int64()
    good = pa.array([0, None, 2_932_896 * day], number).cast(kind)
    bad = pa.array([0, 2_932_897 * day, None], number).cast(kind)
    assert unwritten(pa.table({"d": good}), format, ()) is None
    for rows in (
        bad,
        pa.array([[one] for one in bad], pa.list_(kind)),
        pa.StructArray.from_arrays([bad], ["in"]),
    ):
        assert unwritten(pa.table({"d": rows}), format, ()) == "year 10000 in column 'd'"
        assert unwritten(pa.table({"d": rows}), "parquet", ()) is None
    assert unwritten(pa.table({"d": bad}), "parquet", ("d",)) is not None


@pytest.mark.parametrize("format", ["csv", "json", "parquet"])
@pytest.mark.parametrize("kind", [pa.duration("us"), pa.month_day_nano_interval()])
def test_no_format_takes_intervals_which_no_reader_would_know_again(format: str, kind: pa.DataType) -> None:
    assert unwritable(pa.schema([("i", kind)]), format, ())
    assert format == "csv" or unwritable(pa.schema([("i", pa.list_(kind))]), format, ())


def test_a_time_of_day_is_for_parquet_alone_and_a_map_by_what_is_no_text_not_for_json() -> None:
    taken = {
        format: [
            not unwritable(pa.schema([("c", kind)]), format, ())
            for kind in (
                pa.time64("us"),
                pa.map_(pa.struct([("a", pa.int32())]), pa.int32()),
                pa.map_(pa.int32(), pa.int32()),
                pa.map_(pa.string(), pa.int32()),
            )
        ]
        for format in ("parquet", "json", "csv")
    }
    assert taken == {
        "parquet": [True, True, True, True],
        "json": [False, False, False, True],
        "csv": [False, False, False, False],
    }


@pytest.mark.parametrize("zone", ["GMT+2", "PST", "Z", "UTC+8", "America/New_York"])
def test_rows_are_staged_in_utc_however_spark_names_the_zone(zone: str) -> None:
    moment = pa.timestamp("us", zone)
    kind = pa.struct([("t", moment), ("l", pa.list_(moment)), ("m", pa.map_(pa.string(), moment))])
    there = pa.timestamp("us", "UTC")
    wanted = pa.struct([("t", there), ("l", pa.list_(there)), ("m", pa.map_(pa.string(), there))])
    number = pa.struct(
        [("t", pa.int64()), ("l", pa.list_(pa.int64())), ("m", pa.map_(pa.string(), pa.int64()))]
    )
    values = pa.array([{"t": 1, "l": [2, None], "m": [("a", 3)]}, None], number)
    found = in_utc(pa.table({"s": values.cast(kind)}))
    assert found.schema.field("s").type == wanted
    assert found.column("s").combine_chunks().cast(number) == values


def test_csv_tells_an_empty_text_from_a_null() -> None:
    assert csv(pa.table({"a": ["", None, 'x"'], "b": [1, 2, None]})) == b'"a","b"\n"",1\n,2\n"x""",\n'


def test_what_a_format_cannot_have_is_said() -> None:
    schema = pa.schema([("l", pa.list_(pa.int64())), ("t", pa.timestamp("us")), ("s", pa.string())])
    assert unwritable(schema, "parquet", ("s",)) == []
    assert "in CSV" in unwritable(schema, "csv", ())[0]
    assert "to partition by" in unwritable(schema, "json", ("t",))[0]
    assert "no column 'x'" in unwritable(schema, "json", ("x",))[0]
    assert unwritable(pa.schema([("s", pa.string())]), "json", ("s",))


def test_every_tenth_entry_repeats_those_before_it() -> None:
    assert [directory_log.key_of(number) for number in (0, 8, 9, 10, 19)] == [
        "_spark_metadata/0",
        "_spark_metadata/8",
        "_spark_metadata/9.compact",
        "_spark_metadata/10",
        "_spark_metadata/19.compact",
    ]
    assert [directory_log.first_read(number) for number in (0, 8, 9, 18, 19, 20)] == [0, 0, 9, 9, 19, 19]
    assert [file_log.following(number) for number in (-1, 19, 20)] == [19, 20, 21]


def test_the_newest_entry_is_the_one_with_the_highest_number() -> None:
    keys = [
        "_spark_metadata/9.compact",
        "_spark_metadata/10",
        "_spark_metadata/8",
        "part-11",
        "_spark_metadata/x",
    ]
    assert directory_log.newest_of(keys) == 10
    assert directory_log.newest_of(["part-1"]) == -1


def test_an_entry_keeps_files_and_positions() -> None:
    positions = {"a/b/c": Position("file:///s", 3, 7), "d": Position("file:///s", 1)}
    line = file_log.line_of(DataFile("file:///out/v%3D/part%20a", 12, 3), 1.5)
    rewinds = {"d": Rewinds(2, (TakenBack(None, 4), TakenBack(2, 9)))}
    layout = DirectoryLayout.of("csv", ("k",), pa.schema([pa.field("k", pa.string(), nullable=False)]))
    known = file_log.LogEntry(20, positions, rewinds, {"d": (line,)}, layout)
    entry = file_log.encode([line], known, "file:///out", 1.5)
    assert file_log.decode(20, entry) == known
    assert layout.columns == pa.schema([("k", pa.string())])
    # An older version has not said what the files have in common.
    old = attrs.evolve(known, layout=None)
    assert file_log.decode(20, file_log.encode([], old, "file:///out", 1.5)) == old
    assert entry.splitlines()[0] == b"v1"
    assert file_log.lines_of(entry) == [line]
    assert directory_log.positions_of(entry) == positions
    assert directory_log.positions_of(b"v1\n" + line.encode()) is None
    assert directory_log.positions_of(b"v1") is None
    # Spark reads past folders.
    assert json.loads(entry.splitlines()[-1])["isDir"] is True


@trying(80)
@given(at=st.integers(0, 10**6), change=st.integers(1, 255))
def test_an_entry_is_read_as_it_was_written_or_not_at_all(at: int, change: int) -> None:
    known = file_log.LogEntry(3, {"a/b/c": Position("file:///s", 3, 7)})
    lines = [file_log.line_of(DataFile(f"file:///out/{n}", 12, 3, "a/b/c", n, f"{n}"), 1.5) for n in (6, 7)]
    entry = file_log.encode(lines, known, "file:///out", 1.5)
    at %= len(entry)
    changed = entry[:at] + bytes([entry[at] ^ change]) + entry[at + 1 :]
    try:
        found = file_log.decode(3, changed)
    except (CodecError, UnfitError, ValueError):
        return
    assert found is None or (found, file_log.lines_of(changed)) == (known, lines)


def test_what_can_be_gone_back_to_and_brought_back() -> None:
    none = Rewinds()
    assert none.can_go_back(3, ())
    assert none.restored_to(3, 4, ()) is None
    once = none.rewound(5, 10)
    assert [once.can_go_back(epoch, (5, 11)) for epoch in (None, 4, 5, 6, 10, 11)] == [
        *(True, True, True, False, False, True)
    ]
    twice = once.rewound(None, 5)
    assert twice.times == 2
    # Through both, or a part of the way.
    assert twice.restored_to(None, 10, ()) == Rewinds(2, ())
    assert twice.restored_to(None, 7, ()) == Rewinds(2, (TakenBack(7, 10),))
    assert twice.restored_to(None, 3, ()) == Rewinds(2, (TakenBack(5, 10), TakenBack(3, 5)))
    assert twice.restored_to(None, 11, ()) is None
    # Something was published since.
    assert twice.restored_to(12, 13, ()) is None
    # The same numbers were taken back twice, and only what the second time took is there.
    again = once.rewound(5, 12)
    assert again.restored_to(5, 7, (11, 12)) is None
    assert again.restored_to(5, 11, (11, 12)) == Rewinds(2, (TakenBack(5, 10), TakenBack(11, 12)))


@pytest.mark.parametrize(
    ("uri", "url"),
    [
        ("file:///a/b%20c", "file:///a/b%20c"),
        ("s3://bucket/a?endpoint=http://x:1", "s3a://bucket/a"),
        ("hdfs://node:9000/a", "hdfs://node:9000/a"),
    ],
)
def test_sparks_readers_know_a_store_by_hadoops_scheme(uri: str, url: str) -> None:
    assert url_of(uri) == url


def test_a_null_alone_in_a_line_of_csv_is_no_empty_line() -> None:
    assert csv(pa.table({"a": pa.array([1, None])})) == b'"a"\n"1"\n""\n'
    text = pa.table({"a": ["x", None], "p": [1, 1]})
    assert unwritten(text, "csv", ()) is None
    assert "the only one" in str(unwritten(text, "csv", ("p",)))
    assert unwritten(text, "json", ("p",)) is None
