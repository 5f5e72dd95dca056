"""Which runs can be resumed."""

from __future__ import annotations

from typing import Any

import attrs
import pytest

from chandy.coordinator.restore.resume import Candidate, resume_point, resume_points
from chandy.state.shards import ResumePoint

GOOD = Candidate("id", restored=2, committed=5, sink_is_ahead=False, has_changelogs=True)


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        ({}, ResumePoint("id", 2, 5)),
        ({"committed": 2}, ResumePoint("id", 2, 2)),
        ({"restored": -1, "committed": -1}, ResumePoint("id", -1, -1)),
        ({"committed": 1}, None),
        ({"sink_is_ahead": True}, None),
        ({"has_changelogs": False}, None),
        # It resumed there and failed before its next commit: it would do so again.
        ({"resumed_at": 5}, None),
        ({"resumed_at": 4}, ResumePoint("id", 2, 5)),
    ],
)
def test_a_run_is_resumed_if_nothing_of_it_is_missing(
    change: dict[str, Any], expected: ResumePoint | None
) -> None:
    assert resume_point(attrs.evolve(GOOD, **change)) == expected


def test_all_queries_resume_or_none() -> None:
    broken = attrs.evolve(GOOD, has_changelogs=False)
    assert resume_points({"q": GOOD, "r": attrs.evolve(GOOD, query_id="other")}).keys() == {"q", "r"}
    assert resume_points({"q": GOOD, "r": broken}) == {}
    assert resume_points({}) == {}
