from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from chandy.barrier.operator_name import function_name, operator_uid


@given(st.text())
def test_a_uid_survives_in_a_functions_name(uid: str) -> None:
    name = function_name(uid)
    assert name.isidentifier()
    assert operator_uid(name) == uid


@pytest.mark.parametrize(
    "name", ["f", "chandy_operator", "chandy_operator_xyz", "chandy_operator_ff", "<lambda>"]
)
def test_other_functions_are_no_operators(name: str) -> None:
    assert operator_uid(name) is None
