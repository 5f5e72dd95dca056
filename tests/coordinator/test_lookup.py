"""The state and the key that a user asks for. ``tests/integration/test_get.py`` reads values."""

from __future__ import annotations

from typing import Any

import pytest
from pyspark.sql import Row
from pyspark.sql.types import LongType, StringType, StructField, StructType

from chandy.coordinator.errors import ArgumentError, PipelineNameError
from chandy.coordinator.lookup import choose_state, values_of
from chandy.storage.checkpoints.manifest import OperatorRecord, StateRecord

ONE = StructType([StructField("k", StringType())])
TWO = StructType([StructField("k", StringType()), StructField("n", LongType())])


def operator(*states: str) -> OperatorRecord:
    return OperatorRecord("op", "q", "{}", {name: StateRecord(("{}",)) for name in states}, (None,))


def test_the_only_state_need_not_be_named() -> None:
    assert choose_state(operator("a"), None) == "a"
    assert choose_state(operator("a", "$timers"), None) == "a"
    assert choose_state(operator("a", "b"), "b") == "b"


@pytest.mark.parametrize(
    ("states", "wanted"), [(("a", "b"), None), ((), None), (("a",), "b"), (("a", "$timers"), "$timers")]
)
def test_a_state_that_cannot_be_meant_is_refused_with_those_that_can(
    states: tuple[str, ...], wanted: str | None
) -> None:
    with pytest.raises(PipelineNameError) as caught:
        choose_state(operator(*states), wanted)
    known = ", ".join(name for name in states if not name.startswith("$")) or "it has none"
    assert caught.value.expected == f"one of its states ({known})"
    assert "'op'" in str(caught.value)


@pytest.mark.parametrize(
    ("schema", "key", "values"),
    [
        (ONE, "x", ("x",)),
        (ONE, None, (None,)),
        (ONE, ("x",), ("x",)),
        (ONE, {"k": "x"}, ("x",)),
        (TWO, ("x", 1), ("x", 1)),
        (TWO, ["x", 1], ("x", 1)),
        (TWO, Row(k="x", n=1), ("x", 1)),
        (TWO, {"n": 1, "k": "x"}, ("x", 1)),
    ],
)
def test_a_key_is_a_tuple_a_dict_or_a_single_value(
    schema: StructType, key: Any, values: tuple[Any, ...]
) -> None:
    assert values_of("op", schema, key) == values


@pytest.mark.parametrize("key", ["x", ("x",), ("x", 1, 2), {"k": "x"}, {"k": "x", "m": 1}])
def test_a_key_of_other_columns_is_refused(key: Any) -> None:
    with pytest.raises(ArgumentError) as caught:
        values_of("op", TWO, key)
    assert "k, n" in str(caught.value)
