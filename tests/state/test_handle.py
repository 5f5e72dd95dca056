"""A processor declares its states; each state holds one value a key."""
# The methods have PySpark's names.
# ruff: noqa: N802, N803

import pytest
from pyspark.sql.streaming import StatefulProcessor
from pyspark.sql.streaming.stateful_processor import StatefulProcessorHandle, ValueState
from pyspark.sql.types import ArrayType, LongType, StringType, StructType

from chandy.state.errors import (
    DeclarationError,
    NoKeyError,
    SchemaError,
    StateTypeError,
    UnsupportedStateError,
)
from chandy.state.handle import StateHandle, declared_states
from chandy.state.schema import Schemas, to_json

COUNT = StructType().add("count", LongType())
NAMES = StructType().add("names", ArrayType(StringType()))


@pytest.fixture
def handle():
    return StateHandle("delays", Schemas(parse={"count long": COUNT}.__getitem__))


def entered(handle, schema=COUNT, data=None):
    state = handle.getValueState("totals", schema)
    state.enter(data)
    return state


def test_handle_and_state_are_those_that_pyspark_names(handle):
    assert isinstance(handle, StatefulProcessorHandle)
    assert isinstance(handle.getValueState("totals", COUNT), ValueState)


def test_an_update_is_seen_by_later_gets_and_leaves_as_bytes(handle):
    state = entered(handle)
    assert (state.exists(), state.get()) == (False, None)
    state.update((5,))
    assert (state.exists(), state.get()) == (True, (5,))
    data = state.leave()
    state.enter(data)
    assert state.get() == (5,)
    state.clear()
    assert (state.exists(), state.get(), state.leave()) == (False, None, None)


def test_changing_what_a_state_gave_or_was_given_changes_no_state(handle):
    state = entered(handle, NAMES)
    names = ["a"]
    state.update((names,))
    names.append("b")
    state.get()[0].append("c")
    assert state.get() == (["a"],)


def test_a_refused_update_leaves_the_value_as_it_was(handle):
    state = entered(handle)
    state.update((5,))
    with pytest.raises(StateTypeError):
        state.update(("5",))
    assert state.get() == (5,)


@pytest.mark.parametrize(
    "use", [lambda s: s.get(), lambda s: s.exists(), lambda s: s.update((1,)), lambda s: s.clear()]
)
def test_a_state_outside_of_any_key_cannot_be_used(handle, use):
    state = handle.getValueState("totals", COUNT)
    with pytest.raises(NoKeyError):
        use(state)
    state.enter(None)
    state.leave()
    with pytest.raises(NoKeyError):
        use(state)


def test_a_state_that_is_declared_twice_is_one_state(handle):
    assert handle.getValueState("totals", COUNT) is handle.getValueState("totals", "count long")
    assert handle.declared() == {"totals": to_json(COUNT)}


def test_a_state_that_is_declared_with_two_schemas_is_refused(handle):
    handle.getValueState("totals", COUNT)
    with pytest.raises(DeclarationError, match="it has schema"):
        handle.getValueState("totals", NAMES)


def test_a_state_that_is_declared_after_init_is_refused(handle):
    handle.seal()
    with pytest.raises(DeclarationError, match="init is over"):
        handle.getValueState("totals", COUNT)


@pytest.mark.parametrize("name", ["", None, 5])
def test_a_state_needs_a_name(handle, name):
    with pytest.raises(DeclarationError):
        handle.getValueState(name, COUNT)


@pytest.mark.parametrize(
    "use",
    [
        lambda h: h.getValueState("totals", COUNT, 1000),
        lambda h: h.getValueState("totals", COUNT, ttlDurationMs=1000),
        lambda h: h.getListState("totals", COUNT),
        lambda h: h.getMapState("totals", COUNT, COUNT),
        lambda h: h.registerTimer(5),
        lambda h: h.deleteTimer(5),
        lambda h: h.listTimers(),
        lambda h: h.deleteIfExists("totals"),
    ],
)
def test_what_there_is_not_is_refused_by_name(handle, use):
    with pytest.raises(UnsupportedStateError) as refused:
        use(handle)
    assert refused.value.operator == "delays"


def test_state_keys_of_two_states_never_meet_and_never_begin_with_a_zero_byte(handle):
    names = ["a", "ab", "a" * 40, "a" * 300, "a" * 70_000, "\x00"]
    prefixes = [handle.getValueState(name, COUNT).prefix for name in names]
    assert not any(prefix.startswith(b"\x00") for prefix in prefixes)
    for one in prefixes:
        assert [other for other in prefixes if other.startswith(one)] == [one]


class Declares(StatefulProcessor):
    def __init__(self, declare):
        self.declare = declare
        self.closed = 0

    def init(self, handle):
        self.declare(handle)

    def handleInputRows(self, key, rows, timerValues):
        return iter([])

    def close(self):
        self.closed += 1


def test_declared_states_are_those_of_init_and_the_processor_is_closed():
    processor = Declares(lambda h: (h.getValueState("b", COUNT), h.getValueState("a", NAMES)))
    assert declared_states(processor, "delays", Schemas()) == {"b": to_json(COUNT), "a": to_json(NAMES)}
    assert processor.closed == 1


def test_a_bad_declaration_fails_on_the_driver():
    with pytest.raises(SchemaError):
        declared_states(Declares(lambda h: h.getValueState("a", StructType())), "delays", Schemas())
    with pytest.raises(UnsupportedStateError):
        declared_states(Declares(lambda h: h.getListState("a", COUNT)), "delays", Schemas())
