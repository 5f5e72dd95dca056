"""Offsets are read as Spark has written them down, in both versions of its log."""

from __future__ import annotations

import pytest

from chandy.coordinator.spark.source_offsets import parse_offsets


@pytest.mark.parametrize(
    ("lines", "offsets"),
    [
        (["v1", "{}", '{"logOffset":4}', "-", "12"], {"0": '{"logOffset":4}', "1": None, "2": "12"}),
        (["v2", "{}", '0:{"logOffset":4}', "clicks:-"], {"0": '{"logOffset":4}', "clicks": None}),
        (["v1", ""], {}),
    ],
)
def test_offsets_are_those_of_the_log_by_source(lines: list[str], offsets: dict[str, str | None]) -> None:
    assert parse_offsets("\n".join(lines)) == offsets
