"""A processor declares its states; each holds a value, a list or a map for each key."""
# The methods have PySpark's names.
# ruff: noqa: N802, N803

import inspect

import pytest
from pyspark.errors import PySparkRuntimeError
from pyspark.sql.streaming import StatefulProcessor
from pyspark.sql.streaming.list_state_client import ListStateClient
from pyspark.sql.streaming.map_state_client import MapStateClient
from pyspark.sql.streaming.stateful_processor import (
    ListState,
    MapState,
    StatefulProcessorHandle,
    ValueState,
)
from pyspark.sql.streaming.value_state_client import ValueStateClient
from pyspark.sql.types import ArrayType, LongType, StringType, StructType, YearMonthIntervalType

from chandy.state.errors import DefinitionError, StateTypeError, StateUseError
from chandy.state.format.schema import Schemas, to_json
from chandy.state.operators.time_mode import TimeMode
from chandy.state.processors.handle import StateHandle, declarations
from chandy.storage.checkpoints.manifest import StateKind, StateRecord

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
    assert isinstance(handle.getListState("list", COUNT), ListState)
    assert isinstance(handle.getMapState("map", COUNT, COUNT), MapState)


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
    with pytest.raises(StateUseError, match=r"'totals' of operator 'delays' .* no key"):
        use(state)
    state.enter(None)
    state.leave()
    with pytest.raises(StateUseError, match="no key"):
        use(state)


def test_a_state_that_is_declared_twice_is_one_state(handle):
    assert handle.getValueState("totals", COUNT) is handle.getValueState("totals", "count long")
    assert handle.declared == {"totals": StateRecord((to_json(COUNT),))}


@pytest.mark.parametrize(
    "other",
    [
        lambda h: h.getValueState("totals", NAMES),
        lambda h: h.getListState("totals", COUNT),
        lambda h: h.getMapState("totals", NAMES, COUNT),
        lambda h: h.getValueState("totals", COUNT, 1000),
    ],
)
def test_a_state_that_is_declared_in_two_ways_is_refused(other):
    handle = StateHandle("delays", Schemas(), TimeMode.PROCESSING)
    handle.getValueState("totals", COUNT)
    with pytest.raises(DefinitionError, match="the earlier declaration as a value of struct<count:bigint>"):
        other(handle)


def test_a_state_that_is_declared_after_init_is_refused(handle):
    handle.seal()
    with pytest.raises(DefinitionError, match="init is over"):
        handle.getValueState("totals", COUNT)


@pytest.mark.parametrize("name", ["", None, 5, "$timers"])
def test_a_state_needs_a_name_that_is_not_one_of_the_operators_own(handle, name):
    with pytest.raises(DefinitionError, match=r"not begin with '\$'"):
        handle.getValueState(name, COUNT)
    with pytest.raises(DefinitionError, match=r"not begin with '\$'"):
        handle.deleteIfExists(name)


@pytest.mark.parametrize("mode", [TimeMode.NONE, TimeMode.EVENT])
def test_a_time_to_live_needs_processing_time(mode):
    handle = StateHandle("delays", Schemas(), mode)
    with pytest.raises(DefinitionError, match="time_mode 'ProcessingTime', which a time to live needs"):
        handle.getListState("totals", COUNT, 1000)
    assert handle.getValueState("totals", COUNT, 0) is handle.getValueState("totals", COUNT)


@pytest.mark.parametrize("ttl", [-1, "1 s", 1.5, True, 2**62 + 1])
def test_a_time_to_live_is_a_number_of_milliseconds(ttl):
    handle = StateHandle("delays", Schemas(), TimeMode.PROCESSING)
    with pytest.raises(DefinitionError, match="a time to live of milliseconds"):
        handle.getMapState("totals", COUNT, COUNT, ttl)


def test_a_state_that_is_deleted_cannot_be_declared_again(handle):
    handle.deleteIfExists("old")
    handle.deleteIfExists("old")
    assert handle.dropped == ["old"]
    with pytest.raises(DefinitionError, match="remove the call of deleteIfExists"):
        handle.getListState("old", COUNT)


@pytest.mark.parametrize(
    ("declare", "use"),
    [
        (lambda h: h.getValueState("old", COUNT), lambda s: s.exists()),
        (lambda h: h.getValueState("old", COUNT), lambda s: s.update((1,))),
        (lambda h: h.getListState("old", COUNT), lambda s: s.get()),
        (lambda h: h.getMapState("old", COUNT, COUNT), lambda s: s.clear()),
    ],
)
def test_a_state_that_is_declared_and_then_deleted_is_gone_and_says_so_when_it_is_used(handle, declare, use):
    kept, state = handle.getValueState("kept", COUNT), declare(handle)
    handle.deleteIfExists("old")
    assert (list(handle.variables), list(handle.declared), handle.dropped) == (["kept"], ["kept"], ["old"])
    kept.enter(None)
    with pytest.raises(
        StateUseError, match=r"'old' of operator 'delays' .* init has deleted; remove the call"
    ):
        use(state)


PYSPARKS = [
    (ValueStateClient, lambda h: h.getValueState("s", COUNT), "exists get update clear"),
    (ListStateClient, lambda h: h.getListState("s", COUNT), "exists put appendValue appendList clear"),
    (
        MapStateClient,
        lambda h: h.getMapState("s", COUNT, COUNT),
        "exists getValue containsKey updateValue removeKey clear",
    ),
]


@pytest.mark.parametrize(
    ("client", "declare", "call"),
    [(client, declare, call) for client, declare, calls in PYSPARKS for call in calls.split()],
)
def test_a_state_that_cannot_be_used_is_pysparks_error_with_its_words(handle, client, declare, call):
    state = declare(handle)
    handle.deleteIfExists("s")
    method = getattr(state, call)
    given = [[(1,)]] if call in ("put", "appendList") else [(1,)] * len(inspect.signature(method).parameters)
    with pytest.raises(PySparkRuntimeError, match="Error ") as failed:
        method(*given)
    assert isinstance(failed.value, StateUseError)
    assert str(failed.value) in failed.value.getMessage()
    words = str(failed.value).partition(":")[0]
    assert f'f"{words}: ' in inspect.getsource(client)


TIMER_CALLS = [lambda h: h.registerTimer(5), lambda h: h.deleteTimer(5), lambda h: h.listTimers()]


@pytest.mark.parametrize("use", TIMER_CALLS)
def test_timers_need_a_time_mode(handle, use):
    handle.current.index = 0
    with pytest.raises(
        StateUseError, match="expected time mode 'ProcessingTime' or 'EventTime', found 'None'"
    ):
        use(handle)


@pytest.mark.parametrize("use", TIMER_CALLS)
def test_timers_belong_to_a_key(use):
    handle = StateHandle("delays", Schemas(), TimeMode.EVENT)
    with pytest.raises(StateUseError, match=r"the timers of operator 'delays' .* no key"):
        use(handle)


@pytest.mark.parametrize(
    "use",
    [
        lambda h: h.getListState("list", COUNT).get(),
        lambda h: h.getListState("list", COUNT).exists(),
        lambda h: h.getListState("list", COUNT).put([(1,)]),
        lambda h: h.getListState("list", COUNT).appendValue((1,)),
        lambda h: h.getListState("list", COUNT).clear(),
        lambda h: h.getMapState("map", COUNT, COUNT).exists(),
        lambda h: h.getMapState("map", COUNT, COUNT).getValue((1,)),
        lambda h: h.getMapState("map", COUNT, COUNT).iterator(),
        lambda h: h.getMapState("map", COUNT, COUNT).updateValue((1,), (1,)),
        lambda h: h.getMapState("map", COUNT, COUNT).removeKey((1,)),
        lambda h: h.getMapState("map", COUNT, COUNT).clear(),
    ],
)
def test_a_list_or_a_map_outside_of_any_key_cannot_be_used(handle, use):
    with pytest.raises(StateUseError, match="no key"):
        use(handle)


@pytest.mark.parametrize("method", ["put", "appendList"])
def test_a_list_cannot_be_given_no_elements(handle, method):
    state = handle.getListState("list", COUNT)
    state.enter(None)
    state.appendValue((5,))
    with pytest.raises(StateTypeError, match="at least one element"):
        getattr(state, method)([])
    with pytest.raises(StateTypeError, match="expected bigint"):
        getattr(state, method)([(1,), ("2",)])
    assert list(state.get()) == [(5,)]


def test_an_iterator_over_a_list_shows_it_as_it_was_when_the_first_element_was_taken(handle):
    state = handle.getListState("list", COUNT)
    state.enter(None)
    elements = state.get()
    state.put([(1,), (2,)])
    assert next(elements) == (1,)
    state.clear()
    assert list(elements) == [(2,)]
    assert list(state.get()) == []


def test_the_value_of_a_map_is_a_row_and_its_iterators_show_the_map_as_it_was(handle):
    state = handle.getMapState("map", COUNT, StructType().add("n", LongType()))
    state.enter(None)
    for n in range(3):
        state.updateValue((n,), (n * n,))
    assert state.getValue((2,)).n == 4
    before = state.iterator()
    assert next(before) == ((0,), (0,))
    state.removeKey((1,))
    assert list(before) == [((1,), (1,)), ((2,), (4,))]
    assert list(state.keys()) == [(0,), (2,)]


def test_the_driver_has_no_batch_yet(handle):
    info = handle.getQueryInfo()
    assert (info.getBatchId(), info.getQueryId().int, info.getRunId().int) == (-1, 0, 0)


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


def test_what_is_declared_is_that_of_init_and_the_processor_is_closed():
    processor = Declares(
        lambda h: (h.getValueState("b", COUNT), h.getMapState("a", COUNT, NAMES, 9), h.deleteIfExists("c"))
    )
    declared = declarations(processor, "delays", Schemas(), TimeMode.PROCESSING)
    assert declared.states == {
        "b": StateRecord((to_json(COUNT),)),
        "a": StateRecord((to_json(NAMES),), StateKind.MAP, to_json(COUNT), 9),
    }
    assert declared.dropped == ("c",)
    assert processor.closed == 1


def test_a_bad_declaration_fails_on_the_driver():
    interval = StructType().add("i", YearMonthIntervalType())
    for says, declare in [
        ("at least one field", lambda h: h.getValueState("a", StructType())),
        ("map keys of state 'a' .* at least one field", lambda h: h.getMapState("a", StructType(), COUNT)),
        ("interval year to month in field 'i'", lambda h: h.getListState("a", interval)),
        ("interval year to month in field 'i'", lambda h: h.getMapState("a", interval, COUNT)),
    ]:
        with pytest.raises(DefinitionError, match=says):
            declarations(Declares(declare), "delays", Schemas(), TimeMode.NONE)
