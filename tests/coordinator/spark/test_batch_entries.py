"""The entries of one batch: taken out of a working directory, and put into another one."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from chandy.coordinator.errors import IncompleteDirectoryError
from chandy.coordinator.spark.batch_entries import (
    read_entry,
    watermark_after,
    watermark_of,
    write_entry,
)
from chandy.coordinator.spark.logs.source_log import files_after
from chandy.storage.checkpoints.batch_record import BatchRecord
from chandy.storage.ids import BatchId


def line(number: int) -> str:
    return json.dumps({"path": f"file:///in/ü{number}", "timestamp": 1, "batchId": number})


def plain(number: int) -> str:
    return f"v1\n{line(number)}"


def offsets(*ends: int | str) -> str:
    return "\n".join(
        [
            "v1",
            '{"batchWatermarkMs":0}',
            *(f'{{"logOffset":{end}}}' if type(end) is int else end for end in ends),
        ]
    )


def put(directory: Path, files: dict[str, str]) -> Path:
    for name, text in files.items():
        path = directory / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return directory


@pytest.fixture
def leader(tmp_path: Path) -> Path:
    """A directory whose batch 12 has no data, and whose batch 13 has two entries of the log."""
    compacted = "\n".join(["v1", *map(line, range(10))])
    return put(
        tmp_path / "leader",
        {
            **{f"offsets/{batch}": offsets(batch) for batch in range(5, 12)},
            "offsets/12": offsets(11),
            "offsets/13": offsets(13),
            "sources/0/9.compact": compacted,
            **{f"sources/0/{number}": plain(number) for number in (8, 10, 11, 12, 13, 14)},
        },
    )


def test_a_batch_has_its_offsets_and_the_entries_since_the_batch_before(leader: Path) -> None:
    assert read_entry(leader, BatchId(10)) == (offsets(10), {"sources/0/10": plain(10)})
    assert read_entry(leader, BatchId(12)) == (offsets(11), {})
    both = {"sources/0/12": plain(12), "sources/0/13": plain(13)}
    assert read_entry(leader, BatchId(13)) == (offsets(13), both)


def test_entries_are_as_they_were_before_they_were_compacted(leader: Path) -> None:
    assert read_entry(leader, BatchId(9))[1] == {"sources/0/9": plain(9)}
    # Its own file is gone, and only a compact one repeats it.
    assert read_entry(leader, BatchId(7))[1] == {"sources/0/7": plain(7)}


def test_what_a_source_logs_of_its_beginning_belongs_to_its_first_batch(tmp_path: Path) -> None:
    kafka, end = 'v1\n{"t":{"0":5}}', '{"t":{"0":9}}'
    directory = put(
        tmp_path,
        {
            "offsets/0": offsets(0, end),
            "sources/0/0": plain(0),
            "sources/1/0": kafka,
            "offsets/1": offsets(0, end),
        },
    )
    assert read_entry(directory, BatchId(0))[1] == {"sources/0/0": plain(0), "sources/1/0": kafka}
    assert read_entry(directory, BatchId(1))[1] == {}


@pytest.mark.parametrize(
    ("batch", "gone", "said"),
    [
        (10, "offsets/10", "offsets/10"),
        (5, "offsets/1", "offsets/4"),
        (13, "sources/0/13", "sources/0/13"),
        (9, "sources/0/9.compact", "sources/0/9"),
    ],
)
def test_an_entry_that_spark_has_deleted_is_named(leader: Path, batch: int, gone: str, said: str) -> None:
    (leader / gone).unlink(missing_ok=True)
    with pytest.raises(IncompleteDirectoryError, match=said):
        read_entry(leader, BatchId(batch))


def test_a_copied_batch_is_read_back_as_it_was(leader: Path, tmp_path: Path) -> None:
    shadow = put(tmp_path / "shadow", {"offsets/8": offsets(8), "sources/0/8": plain(8)})
    for batch in map(BatchId, (9, 10, 11, 12, 13)):
        offsets_, sources = read_entry(leader, batch)
        record = BatchRecord(batch, offsets_, sources)
        for _ in range(2):
            write_entry(shadow, record)
            assert read_entry(shadow, batch) == (offsets_, sources)
    assert files_after(shadow / "sources" / "0", 7) == {f"file:///in/ü{number}" for number in range(8, 14)}
    # Spark looks for a compact entry there.
    assert not (shadow / "sources" / "0" / "9").exists()


def test_a_batch_is_written_beside_what_the_directory_shares_with_others(tmp_path: Path) -> None:
    shadow = put(tmp_path / "shadow", {"offsets/0": "old", "offsets/.0.crc": "of the old text"})
    (tmp_path / "link").hardlink_to(shadow / "offsets" / "0")
    write_entry(shadow, BatchRecord(BatchId(0), "new"))
    assert (tmp_path / "link").read_text() == "old"
    assert sorted(path.name for path in (shadow / "offsets").iterdir()) == ["0"]


def test_a_batch_is_planned_with_the_watermark_that_the_one_before_has_found(tmp_path: Path) -> None:
    put(tmp_path, {"commits/3": 'v1\n{"nextBatchWatermarkMs":7000}', "commits/4": "v1\n{}"})
    assert watermark_after(tmp_path, BatchId(3)) == 7000
    assert watermark_after(tmp_path, BatchId(4)) == watermark_after(tmp_path, BatchId(-1)) == 0
    assert watermark_of(BatchRecord(BatchId(4), 'v1\n{"batchWatermarkMs":7000}\n-')) == 7000
