"""What a permit permits, and what it does not."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from chandy.coordinator.errors import ConfigError
from chandy.coordinator.permit import Permit, Permits

from ..permits import printed

NAMES = st.sampled_from(["totals", "totals/sink", "it's", 'a "b")'])
SPANS = st.tuples(st.integers(1, 9), st.integers(0, 4)).map(lambda ends: f"{ends[0]}-{sum(ends)}")
IDS = st.integers(0, 9)
PERMITS = st.builds(
    Permit,
    lost_output=st.dictionaries(NAMES, SPANS, max_size=2),
    repeated_output=st.dictionaries(NAMES, SPANS, max_size=2),
    new_output=st.dictionaries(NAMES, IDS, max_size=2),
    taken_output=st.dictionaries(NAMES, st.sampled_from(["s3://a@1", "s3://a@2"]), max_size=2),
    dropped_state=st.dictionaries(NAMES, st.one_of(IDS, st.just("/a path/c")), max_size=2),
    dropped_queries=st.dictionaries(NAMES, IDS, max_size=2),
    claim=st.sampled_from([None, "s3://a", "s3://b"]),
)


@given(PERMITS, PERMITS)
def test_what_an_error_prints_permits_what_was_wanted_beside_what_was_given(
    given_: Permit, wanted: Permit
) -> None:
    permits = Permits(given_)
    assert permits.use(wanted) == given_.covers(wanted)
    advised = printed(f"refused; pass {permits.advice(wanted)}, and (all) is well")
    assert advised.covers(wanted)
    assert Permits(advised).use(wanted)


@given(PERMITS)
def test_a_permit_is_printed_as_it_is_written(permit: Permit) -> None:
    assert printed(f"permit={permit!r}") == permit
    assert permit.covers(permit)
    assert permit.joined(permit) == permit


@given(PERMITS)
def test_nothing_is_permitted_by_a_permit_for_something_else(permit: Permit) -> None:
    """Of a later loss, repetition or restore, whose numbers are others, as no number comes twice."""
    for later in (
        Permit(lost_output={"totals": "1-20"}),
        Permit(lost_output={"totals": "20-20"}),
        Permit(repeated_output={"totals": "5-20"}),
        Permit(new_output={"totals": 20}),
        Permit(taken_output={"totals": "s3://a@3"}),
        Permit(dropped_state={"totals": 20}),
        Permit(dropped_queries={"totals": 20}),
        Permit(claim="s3://c"),
    ):
        assert not permit.covers(later)


def test_rows_are_permitted_that_are_named_and_no_others() -> None:
    """Whoever gives up "1-3" may have lost "1-2", and would lose the rest in silence later."""
    permit = Permit(lost_output={"q/sink": "2-4,7-9"})
    for rows in ("2-4", "7-9", "7-9,2-4"):
        assert permit.covers(Permit(lost_output={"q/sink": rows}))
    for rows in ("1-4", "2-3", "3-3", "2-9", "2-4,9-9"):
        assert not permit.covers(Permit(lost_output={"q/sink": rows}))
    assert not permit.covers(Permit(repeated_output={"q/sink": "2-4"}))
    assert not permit.covers(Permit(lost_output={"other/sink": "2-4"}))


def test_what_is_used_is_recorded_and_told(caplog: pytest.LogCaptureFixture) -> None:
    recorded: list[tuple[str, ...]] = []
    permits = Permits(Permit(lost_output={"q/sink": "1-4"}, claim="s3://a"), recorded.append)
    assert not permits.use(Permit(lost_output={"q/sink": "1-5"}))
    assert (recorded, caplog.text) == ([], "")
    assert permits.use(Permit(lost_output={"q/sink": "1-4"}))
    assert recorded == [("lost_output q/sink 1-4",)]
    assert "a permit is used" in caplog.text
    assert "lost_output q/sink 1-4" in caplog.text


@pytest.mark.parametrize(
    ("field", "wrong"),
    [
        ("lost_output", True),
        ("lost_output", {"q/sink": 4}),
        ("lost_output", {"q/sink": "4"}),
        ("lost_output", {"q/sink": "4-"}),
        ("repeated_output", ["q/sink"]),
        ("new_output", {"q": "4"}),
        ("new_output", {"q": True}),
        ("new_output", {"": 4}),
        ("taken_output", {"q/sink": ""}),
        ("dropped_state", {"q": None}),
        ("dropped_queries", ["q"]),
        ("claim", True),
    ],
)
def test_what_names_nothing_is_refused(field: str, wrong: Any) -> None:
    with pytest.raises(ConfigError, match=f"Permit.{field}"):
        Permit(**{field: wrong})
