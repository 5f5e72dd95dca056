"""What users say about a shadow is checked at once."""

from __future__ import annotations

from typing import Any

import pytest

from chandy.coordinator.errors import ConfigError
from chandy.coordinator.upgrade.ignoring import Ignored
from chandy.coordinator.upgrade.shadow import Shadow


@pytest.mark.parametrize(
    "given",
    [
        {"name": "../leader"},
        {"ignore": ["updated"]},
        {"ignore": ["totals."]},
        {"ignore": "totals.updated"},
        {"ignore": [3]},
        {"switch_after": "500 batches"},
        {"switch_after": 500},
        {"most_behind": 0},
        {"compare_state_every": "often"},
        {"may_write": "yes"},
    ],
    ids=str,
)
def test_what_cannot_be_used_is_refused_by_name(given: dict[str, Any]) -> None:
    (field,) = given
    with pytest.raises(ConfigError, match=rf"invalid Shadow\.{field}"):
        Shadow(**given)


def test_a_number_of_equal_batches_is_read() -> None:
    assert Shadow(switch_after="500 equal batches").equal_batches == 500
    assert Shadow(switch_after="1 equal batch").equal_batches == 1
    assert Shadow().equal_batches is None


def test_an_ignored_name_is_a_field_of_all_states_of_an_operator_or_of_one_and_a_column_of_a_sink() -> None:
    ignored = Ignored.of(["totals.updated", "totals.total.seen", "a.b.at"])
    assert ignored.fields("totals", "total") == {"updated", "seen"}
    assert ignored.fields("totals", "recent") == {"updated"}
    assert ignored.columns("totals") == {"updated"}
    # Uids may have dots.
    assert ignored.columns("a.b") == ignored.fields("a", "b") == {"at"}
    assert ignored.fields("counts", "total") == frozenset()
