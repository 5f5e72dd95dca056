"""What the log is told of failures: where one came from once, and what it happened to each time."""

from __future__ import annotations

from typing import Any

from chandy.coordinator.recovery.failure_report import FailureReport


def test_where_a_failure_came_from_is_told_once_as_long_as_it_is_the_same() -> None:
    told: list[tuple[str, Any]] = []

    def write(summary: str, **facts: Any) -> None:
        told.append((summary, facts["exception"]))

    report = FailureReport()
    for text in ("boom\nat a", "boom\nat a", "bang\nat b", "boom\nat a", "short", "short"):
        report.tell(write, ValueError(text), restarting_in=1.0)
    assert told == [
        ("boom", "at a"),
        ("boom", ""),
        ("bang", "at b"),
        ("boom", "at a"),
        ("short", ""),
        ("short", ""),
    ]
