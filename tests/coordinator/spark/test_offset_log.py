"""Where the sources of a query stood, as Spark's offset log says it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from chandy.coordinator.spark.logs.offset_log import (
    LoggedOffset,
    log_end,
    offsets_at,
    offsets_in,
    read_between,
)

TIMES = '{"batchWatermarkMs":0,"batchTimestampMs":1,"conf":{}}'
KAFKA = '{"flights":{"0":5,"1":7}}'


@pytest.mark.parametrize(
    ("lines", "expected"),
    [
        (["v1", TIMES, KAFKA], [("0", KAFKA)]),
        (["v1", TIMES, KAFKA, '{"logOffset":3}'], [("0", KAFKA), ("1", '{"logOffset":3}')]),
        (["v1", TIMES, "-", "1234"], [("0", None), ("1", "1234")]),
        (["v2", TIMES, f"0:{KAFKA}"], [("0", KAFKA)]),
        (["v2", TIMES, f"clicks:{KAFKA}", "views:-"], [("clicks", KAFKA), ("views", None)]),
        # A later version is read as the newest that is known.
        (["v3", TIMES, "clicks:12"], [("clicks", "12")]),
        (["v1", TIMES], []),
        (["v1"], []),
        ([], []),
    ],
)
def test_each_source_stands_where_its_line_says(
    lines: list[str], expected: list[tuple[str, str | None]]
) -> None:
    assert [(one.source, one.offset) for one in offsets_in("\n".join(lines))] == expected


def test_a_batch_is_read_from_where_the_one_before_has_ended(tmp_path: Path) -> None:
    log = tmp_path / "offsets"
    log.mkdir()
    (log / "0").write_text(f"v1\n{TIMES}\n5\n-")
    (log / "1").write_text(f"v1\n{TIMES}\n{KAFKA}\n8")
    assert json.loads(read_between(tmp_path, 0)) == {"0": [None, "5"], "1": [None, None]}
    assert json.loads(read_between(tmp_path, 1)) == {"0": ["5", KAFKA], "1": [None, "8"]}
    # Neither an entry that Spark has deleted nor one that is too long is worth a batch.
    assert read_between(tmp_path, 3) == ""
    (log / "2").write_text(f"v1\n{TIMES}\n{'9' * 20_000}")
    assert read_between(tmp_path, 2) == ""


def test_the_entry_of_a_batch_is_read_from_the_working_directory(tmp_path: Path) -> None:
    (tmp_path / "offsets").mkdir()
    (tmp_path / "offsets" / "4").write_text(f"v1\n{TIMES}\n{KAFKA}")
    assert offsets_at(tmp_path, 4) == (LoggedOffset("0", KAFKA),)
    with pytest.raises(FileNotFoundError):
        offsets_at(tmp_path, 3)


def test_a_file_source_stands_at_an_entry_of_its_log() -> None:
    logged = offsets_in(f'v1\n{TIMES}\n{{"logOffset": 3}}\n{KAFKA}\n-')
    assert [log_end(one.offset) for one in logged] == [3, None, None]
