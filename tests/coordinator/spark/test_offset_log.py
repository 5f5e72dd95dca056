"""Where the sources of a query stood, as Spark's offset log says it."""

from __future__ import annotations

from pathlib import Path

import pytest

from chandy.coordinator.spark.offset_log import LoggedOffset, offsets_at, offsets_in

TIMES = '{"batchWatermarkMs":0,"batchTimestampMs":1,"conf":{}}'
KAFKA = '{"flights":{"0":5,"1":7}}'


@pytest.mark.parametrize(
    ("lines", "expected"),
    [
        (["v1", TIMES, KAFKA], [("0", KAFKA)]),
        (["v1", TIMES, KAFKA, '{"logOffset":3}'], [("0", KAFKA), ("1", '{"logOffset":3}')]),
        # A source that has given nothing yet keeps its number.
        (["v1", TIMES, "-", "1234"], [("1", "1234")]),
        (["v2", TIMES, f"0:{KAFKA}"], [("0", KAFKA)]),
        (["v2", TIMES, f"clicks:{KAFKA}", "views:-"], [("clicks", KAFKA)]),
        (["v1", TIMES], []),
        (["v1"], []),
        ([], []),
    ],
)
def test_each_source_stands_where_its_line_says(lines: list[str], expected: list[tuple[str, str]]) -> None:
    assert offsets_in("\n".join(lines)) == tuple(LoggedOffset(*one) for one in expected)


def test_the_entry_of_a_batch_is_read_from_the_working_directory(tmp_path: Path) -> None:
    (tmp_path / "offsets").mkdir()
    (tmp_path / "offsets" / "4").write_text(f"v1\n{TIMES}\n{KAFKA}")
    assert offsets_at(tmp_path, 4) == (LoggedOffset("0", KAFKA),)
    with pytest.raises(FileNotFoundError):
        offsets_at(tmp_path, 3)
