"""Which runs can be resumed."""

from __future__ import annotations

from typing import Any

import attrs
import pytest

from chandy.coordinator.restore.resume import Candidate, resume_point, resume_points
from chandy.state.shards import NotResumable, ResumePoint

GOOD = Candidate("id", restored=2, committed=5, obstacle=None)

GAP = NotResumable("has a changelog without batch 4")


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        ({}, ResumePoint("id", 2, 5)),
        ({"committed": 2}, ResumePoint("id", 2, 2)),
        ({"restored": -1, "committed": -1}, ResumePoint("id", -1, -1)),
        ({"committed": 1}, NotResumable("has committed batch 1, and the checkpoint has batch 2")),
        ({"obstacle": GAP}, GAP),
        # It resumed there and failed before its next commit: it would do so again.
        (
            {"resumed_at": 5},
            NotResumable("had resumed after batch 5 before, and failed before the next batch"),
        ),
        ({"resumed_at": 4}, ResumePoint("id", 2, 5)),
    ],
)
def test_a_run_is_resumed_if_nothing_of_it_is_missing_and_else_it_is_said_why(
    change: dict[str, Any], expected: ResumePoint | NotResumable
) -> None:
    assert resume_point(attrs.evolve(GOOD, **change)) == expected


def test_all_queries_resume_or_none() -> None:
    broken, other = attrs.evolve(GOOD, obstacle=GAP), attrs.evolve(GOOD, query_id="other")
    assert resume_points({"q": GOOD, "r": other}) == {"q": resume_point(GOOD), "r": resume_point(other)}
    assert resume_points({"q": GOOD, "r": broken}) == {
        "q": NotResumable("stood at one cut with query 'r'"),
        "r": GAP,
    }
    assert resume_points({}) == {}
