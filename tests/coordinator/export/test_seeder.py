"""What a key has goes into the states of Spark's own operator."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import attrs
import pytest
from pyspark.sql import Row
from pyspark.sql.streaming.stateful_processor import TimerValues
from pyspark.sql.types import ArrayType, LongType, MapType, StringType, StructType

from chandy.coordinator.export.seeder import Seeder, plain
from chandy.state.format.schema import to_json
from chandy.storage.manifest import StateKind, StateRecord

POINT = StructType().add("x", LongType()).add("y", LongType())
NUMBER = StructType().add("n", LongType())
NOW = 1_000


def test_structs_become_tuples_in_the_order_of_their_fields() -> None:
    nested = (
        StructType().add("at", POINT).add("path", ArrayType(POINT)).add("by", MapType(StringType(), POINT))
    )
    expected = ((1, 2), [(3, 4), None], {"a": (5, 6)})
    by_name = {"path": [{"y": 4, "x": 3}, None], "by": [("a", {"y": 6, "x": 5})], "at": {"y": 2, "x": 1}}
    assert plain(by_name, nested) == expected
    rows = Row(at=Row(x=1, y=2), path=[Row(x=3, y=4), None], by={"a": Row(x=5, y=6)})
    assert plain(rows, nested) == expected
    assert plain({"at": None, "path": None, "by": None}, nested) == (None, None, None)


@attrs.define
class Variable:
    """Records what is done to a state."""

    done: list[tuple[Any, ...]] = attrs.field(factory=list)

    def update(self, value: Any) -> None:
        self.done.append(("update", value))

    def put(self, values: Any) -> None:
        self.done.append(("put", values))

    def updateValue(self, key: Any, value: Any) -> None:  # noqa: N802
        self.done.append(("updateValue", key, value))


@attrs.define
class Handle:
    """Records what is declared, and the timers."""

    declared: dict[str, tuple[Any, ...]] = attrs.field(factory=dict)
    variables: dict[str, Variable] = attrs.field(factory=dict)
    timers: list[int] = attrs.field(factory=list)

    def _declare(self, name: str, *given: Any) -> Variable:
        self.declared[name] = given
        return self.variables.setdefault(name, Variable())

    getValueState = getListState = getMapState = _declare  # noqa: N815

    def registerTimer(self, time: int) -> None:  # noqa: N802
        self.timers.append(time)


def item(value: int, expires: int | None = None, key: int | None = None) -> dict[str, Any]:
    own = {"value": {"n": value}, "expires_at_ms": expires}
    return own if key is None else {"key": {"n": key}, **own}


@pytest.fixture
def handle() -> Handle:
    return Handle()


@pytest.fixture
def seeder(handle: Handle) -> Iterator[Seeder]:
    number = (to_json(NUMBER),)
    states = {
        "v": StateRecord(number, ttl_ms=50),
        "l": StateRecord(number, StateKind.LIST),
        "m": StateRecord(number, StateKind.MAP, map_key=to_json(NUMBER)),
    }
    made = Seeder(states, {"v": "state_v", "l": "l", "m": "m"}, "timers")
    made.init(handle)  # type: ignore[arg-type]
    yield made
    assert handle.declared == {"v": (NUMBER, 50), "l": (NUMBER, None), "m": (NUMBER, NUMBER, None)}


def seed(seeder: Seeder, **row: Any) -> None:
    seeder.handleInitialState(("k",), {"k": "k", **row}, TimerValues(NOW, -1))


def test_all_that_a_key_has_is_written(seeder: Seeder, handle: Handle) -> None:
    items = [item(2, None), item(1, NOW + 1)]
    seed(seeder, state_v=item(7), l=items, m=[item(4, key=3)], timers=[5, 6])
    assert {name: variable.done for name, variable in handle.variables.items()} == {
        "v": [("update", (7,))],
        "l": [("put", [(2,), (1,)])],
        "m": [("updateValue", (3,), (4,))],
    }
    assert handle.timers == [5, 6]


def test_what_has_expired_or_is_not_there_is_not_written(seeder: Seeder, handle: Handle) -> None:
    seed(
        seeder,
        state_v=item(7, NOW),
        l=[item(2, NOW - 1)],
        m=[item(4, NOW, key=3), item(5, NOW + 1, key=4)],
        timers=None,
    )
    seed(seeder, state_v=None, l=None, m=None, timers=None)
    assert {name: variable.done for name, variable in handle.variables.items()} == {
        "v": [],
        "l": [],
        "m": [("updateValue", (4,), (5,))],
    }
    assert handle.timers == []
