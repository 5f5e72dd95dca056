"""Random programs of state operations and timers do what plain dicts do, over batches, retries and restarts."""
# The methods have PySpark's names.
# ruff: noqa: N802, N803

from __future__ import annotations

import copy
import functools
import json
from collections import Counter, defaultdict
from typing import Any

import attrs
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pyspark.sql.streaming import StatefulProcessor
from pyspark.sql.types import StructType

from chandy.state.format import keyspace, parts
from chandy.state.format.keys import KeyCodec
from chandy.state.format.packing import Packing, expiry_of
from chandy.state.format.values import StateName
from chandy.state.operators.expiry_index import ASLEEP_MS
from chandy.state.operators.pickling import Pickled
from chandy.state.operators.time_mode import TimeMode
from chandy.state.processors.processor import ProcessorSpec
from chandy.state.processors.timers import hidden_list, times_of
from chandy.state.rpc.messages import BatchTimes
from chandy.state.testing.tester import OperatorTester

from ...effort import examples
from ..pipeline import INPUT, KEY, OneOperator, shard_of

OUTPUT = StructType().add("k", "string").add("what", "string")
TTL = 100
KEYS = ("a", "b", "cc", "dd", "eee", "")
VALUE = StructType().add("n", "long").add("s", "string")
ENTRY = StructType().add("i", "long")
MAP_KEY = Packing([ENTRY], StateName("", ""))
CODEC = KeyCodec(KEY)


class Interprets(StatefulProcessor):
    """Does what its program says: for each key when it has rows, for each timer when it fires."""

    def __init__(self, program: dict[str, list[Any]], on_timer: list[Any], ttl: int | None) -> None:
        self.program, self.on_timer, self.ttl = program, on_timer, ttl

    def init(self, handle: Any) -> None:
        self.handle = handle
        self.value = handle.getValueState("value", VALUE, self.ttl)
        self.list = handle.getListState("list", VALUE, self.ttl)
        self.map = handle.getMapState("map", ENTRY, VALUE, self.ttl)

    def handleInputRows(self, key: Any, rows: Any, timerValues: Any) -> Any:
        yield (key[0], json.dumps([self.do(op) for op in self.program[key[0]]]))

    def handleExpiredTimer(self, key: Any, timerValues: Any, expiredTimerInfo: Any) -> Any:
        time = expiredTimerInfo.getExpiryTimeInMs()
        yield (key[0], json.dumps([time, *[self.do(op) for op in self.on_timer]]))

    def do(self, op: Any) -> Any:
        name, *args = op
        match name:
            case "value.get":
                return [self.value.exists(), self.value.get()]
            case "value.update":
                return self.value.update((args[0], args[1]))
            case "value.clear":
                return self.value.clear()
            case "list.get":
                return [self.list.exists(), list(self.list.get())]
            case "list.put":
                return self.list.put([(n, s) for n, s in args[0]])
            case "list.append":
                return self.list.appendValue((args[0], args[1]))
            case "list.extend":
                return self.list.appendList([(n, s) for n, s in args[0]])
            case "list.clear":
                return self.list.clear()
            case "map.get":
                return [self.map.containsKey((args[0],)), self.map.getValue((args[0],))]
            case "map.all":
                pairs, keys, values = self.map.iterator(), self.map.keys(), self.map.values()
                return [self.map.exists(), list(pairs), list(keys), list(values)]
            case "map.update":
                return self.map.updateValue((args[0],), (args[1], args[2]))
            case "map.remove":
                return self.map.removeKey((args[0],))
            case "map.clear":
                return self.map.clear()
            case "timer.register":
                return self.handle.registerTimer(args[0])
            case "timer.delete":
                return self.handle.deleteTimer(args[0])
            case "timer.list":
                return list(self.handle.listTimers())
        raise AssertionError(name)


class Plain:
    """The same with dicts: what each key has, and when it expires."""

    def __init__(self) -> None:
        self.value: dict[str, Any] = {}
        self.list: dict[str, list[Any]] = defaultdict(list)
        self.map: dict[str, dict[int, Any]] = defaultdict(dict)
        self.timers: dict[str, set[int]] = defaultdict(set)

    def batch(
        self,
        program: dict[str, list[Any]],
        on_timer: list[Any],
        ttl: int | None,
        times: BatchTimes,
        mode: TimeMode,
    ) -> list[tuple[str, Any]]:
        self.now, self.ttl = times.timestamp_ms, ttl
        outputs = [(key, [self.do(key, op) for op in ops]) for key, ops in program.items()]
        due = sorted(
            (shard_of(key), time, CODEC.encode((key,)), key)
            for key, times_of in self.timers.items()
            for time in times_of
            if mode is not TimeMode.NONE and time <= mode.until(times)
        )
        for _, time, _, key in due:
            outputs.append((key, [time, *[self.do(key, op) for op in on_timer]]))
            self.timers[key].discard(time)
        return outputs

    def live(self, item: Any) -> bool:
        return item is not None and (item[1] is None or item[1] > self.now)

    def timed(self, value: Any) -> Any:
        return (value, None if self.ttl is None else self.now + self.ttl)

    def do(self, key: str, op: Any) -> Any:
        name, *args = op
        value, items, entries, timers = self.value.get(key), self.list[key], self.map[key], self.timers[key]
        alive = {k: v[0] for k, v in entries.items() if self.live(v)}
        match name:
            case "value.get":
                return [self.live(value), list(value[0]) if self.live(value) else None]
            case "value.update":
                self.value[key] = self.timed(args)
            case "value.clear":
                self.value.pop(key, None)
            case "list.get":
                found = [list(item[0]) for item in items if self.live(item)]
                return [bool(found), found]
            case "list.put":
                items[:] = [self.timed(item) for item in args[0]]
            case "list.append":
                items.append(self.timed(args))
            case "list.extend":
                items.extend(self.timed(item) for item in args[0])
            case "list.clear":
                items.clear()
            case "map.get":
                return [args[0] in alive, alive.get(args[0])]
            case "map.all":
                order = sorted(alive, key=lambda i: MAP_KEY.pack_row((i,)))
                keys, values = [[i] for i in order], [alive[i] for i in order]
                return [bool(alive), [list(pair) for pair in zip(keys, values, strict=True)], keys, values]
            case "map.update":
                entries[args[0]] = self.timed(args[1:])
            case "map.remove":
                entries.pop(args[0], None)
            case "map.clear":
                entries.clear()
            case "timer.register":
                timers.add(args[0])
            case "timer.delete":
                timers.discard(args[0])
            case "timer.list":
                return sorted(timers)
        return None

    def is_empty(self) -> bool:
        return not any(map(self.live, self.value.values())) and not any(
            any(map(self.live, items))
            for items in (*self.list.values(), *(m.values() for m in self.map.values()))
        )


def plain(value: Any) -> Any:
    return json.loads(json.dumps(value))


text = st.one_of(st.none(), st.text("xyzß", max_size=12))
number = st.one_of(st.none(), st.integers(-(1 << 63), (1 << 63) - 1))
element = st.tuples(number, text)
map_key = st.integers(-3, 25)
operation = st.one_of(
    st.just(("value.get",)),
    st.tuples(st.just("value.update"), number, text),
    st.just(("value.clear",)),
    st.just(("list.get",)),
    st.tuples(st.just("list.put"), st.lists(element, min_size=1, max_size=8)),
    st.tuples(st.just("list.append"), number, text),
    st.tuples(st.just("list.extend"), st.lists(element, min_size=1, max_size=8)),
    st.just(("list.clear",)),
    st.tuples(st.just("map.get"), map_key),
    st.just(("map.all",)),
    st.tuples(st.just("map.update"), map_key, number, text),
    st.tuples(st.just("map.update"), map_key, number, text),
    st.tuples(st.just("map.remove"), map_key),
    st.just(("map.clear",)),
)
time = st.integers(-1, 24).map(lambda step: step * 50)
timer = st.one_of(
    st.tuples(st.just("timer.register"), time),
    st.tuples(st.just("timer.register"), time),
    st.tuples(st.just("timer.delete"), time),
    st.just(("timer.list",)),
)
READ = [("value.get",), ("list.get",), ("map.all",)]


@st.composite
def runs(draw: st.DrawFn, timers: bool) -> list[Any]:
    """Batches: the program of each key and of timers, the time since the batch before, whether it is tried twice."""
    ops = st.one_of(operation, timer) if timers else operation
    batch = st.tuples(
        st.dictionaries(st.sampled_from(KEYS), st.lists(ops, max_size=12), max_size=4),
        st.lists(ops, max_size=4),
        st.integers(0, 160),
        st.booleans(),
    )
    return draw(st.lists(batch, min_size=1, max_size=7))


@functools.cache
def spec_of(mode: TimeMode, ttl: int | None) -> ProcessorSpec:
    """The operator of one time mode and time to live; its declarations do not depend on the program."""
    return OneOperator(mode, output=OUTPUT).spec(Interprets({}, [], ttl))


def interprets(mode: TimeMode, ttl: int | None, *program: Any) -> ProcessorSpec:
    return attrs.evolve(spec_of(mode, ttl), processor=Pickled.of(Interprets(*program, ttl=ttl), "op"))


def check(run: list[Any], mode: TimeMode, ttl: int | None) -> tuple[OneOperator, Plain, int]:
    pipeline, model = OneOperator(mode, output=OUTPUT), Plain()
    now = 1000 if mode is TimeMode.PROCESSING else 0
    for program, on_timer, step, twice in run:
        now += step
        times = BatchTimes(now, now) if mode is not TimeMode.EVENT else BatchTimes(10_000, now)
        rows = [(key, 0) for key in program]
        processor = interprets(mode, ttl, program, on_timer)
        expected = model.batch(program, on_timer, ttl, times, mode)
        if twice:
            tried = pipeline.attempt(processor, rows, times)
        found = pipeline.batch(processor, rows, times)
        assert not twice or tried == found
        # After rows, after timers, and when what has expired is removed: however often a key is entered.
        assert max(Counter(pipeline.shards.written).values(), default=0) <= 3
        check_index(pipeline, times.timestamp_ms)
        # Keys come in any order, timers in theirs.
        pairs = [(row["k"], json.loads(row["what"])) for row in found]
        inputs, fired = pairs[: len(program)], pairs[len(program) :]
        assert sorted(inputs, key=str) == sorted(plain(expected[: len(program)]), key=str) or dict(
            inputs
        ) == dict(plain(expected[: len(program)]))
        assert fired == [tuple(item) for item in plain(expected[len(program) :])]
    return pipeline, model, now


@pytest.fixture(autouse=True)
def tiny_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(parts, "SEGMENT", 60)


quick = settings(max_examples=examples(6))


@quick
@given(run=runs(timers=False))
def test_states_without_time_are_what_dicts_are(run: list[Any]) -> None:
    everything = dict.fromkeys(KEYS, READ)
    pipeline, model, _ = check([*run, (everything, [], 0, True)], TimeMode.NONE, None)
    clear = {key: [("value.clear",), ("list.clear",), ("map.clear",)] for key in KEYS}
    pipeline.batch(interprets(TimeMode.NONE, None, clear, []), [(key, 0) for key in KEYS])
    assert pipeline.shards.held == {}, "clear leaves no part behind"
    assert not model.timers or not any(model.timers.values())


@quick
@given(run=runs(timers=True))
def test_event_time_timers_and_states_are_what_dicts_are(run: list[Any]) -> None:
    pipeline, model, _ = check([*run, (dict.fromkeys(KEYS, READ), [], 0, True)], TimeMode.EVENT, None)
    found = {
        keyspace.split_timed(key) for _, key in pipeline.shards.held if key.startswith(keyspace.EVENT_TIMERS)
    }
    expected = {(time, CODEC.encode((key,))) for key, times in model.timers.items() for time in times}
    assert found == expected


class Sleeps(StatefulProcessor):
    """Declares none of the states."""

    def init(self, handle: Any) -> None:
        pass

    def handleInputRows(self, key: Any, rows: Any, timerValues: Any) -> Any:
        return iter(())


def stored(pipeline: OneOperator) -> dict[bytes, list[bytes]]:
    """The packed values in each value, list and map, by its key in the store."""
    found: dict[bytes, list[bytes]] = {}
    for (shard, name), data in pipeline.shards.held.items():
        prefix = keyspace.variable_of(name) if name[0] > 2 else b""
        pieces = [
            piece
            for (owner, key), piece in sorted(pipeline.shards.held.items())
            if owner == shard and key[:1] == b"\x01" and keyspace.owner_of(key) == keyspace.owner_of(name)
        ]
        match prefix[1:]:
            case b"value":
                found[name] = [data]
            case b"list":
                header = parts.ListHeader.decode(data)
                assert len(pieces) == header.stop - header.first
                found[name] = [item for piece in [*pieces, header.tail] for item in parts.split(piece)]
            case b"map":
                inline = [parts.MapHeader.decode(data).inline]
                found[name] = [item for piece in pieces or inline for item in parts.split(piece)[1::2]]
    return found


def check_index(pipeline: OneOperator, now: int) -> None:
    """Whatever will expire has an entry in the index; a timer has an entry exactly if it is in its key's list."""
    entries = {keyspace.split_timed(key) for _, key in pipeline.shards.held if key[:2] == keyspace.EXPIRY}
    expiring = {
        name
        for name, items in stored(pipeline).items()
        if any((expiry_of(item) or 0) > now for item in items)
    }
    assert expiring <= {name for _, name in entries}
    for index in (keyspace.EVENT_TIMERS, keyspace.PROCESSING_TIMERS):
        prefix = hidden_list(index)
        lists = {
            (time, key[len(prefix) :])
            for (_, key), data in pipeline.shards.held.items()
            if key.startswith(prefix)
            for time in times_of(data)
        }
        assert lists == {keyspace.split_timed(key) for _, key in pipeline.shards.held if key[:2] == index}


lives = st.tuples(
    st.dictionaries(st.sampled_from(KEYS[:3]), st.lists(operation, max_size=8), min_size=1, max_size=3),
    st.sampled_from([None, 20, 100, 100_000]),
    st.sampled_from([True, True, True, False]),
    st.integers(0, 160),
)


@settings(max_examples=examples(8))
@given(run=st.lists(lives, min_size=2, max_size=8), untimed=st.sampled_from([TimeMode.NONE, *TimeMode]))
def test_what_has_expired_is_removed_through_every_change_of_what_is_declared(
    run: list[Any], untimed: TimeMode
) -> None:
    """Without a time to live, the operator may have any time mode."""
    pipeline, model, now = OneOperator(TimeMode.PROCESSING, output=OUTPUT), Plain(), 1000
    for program, ttl, declared, step in run:
        now += step
        rows, times = [(key, 0) for key in program], BatchTimes(now, 0)
        if declared:
            mode = untimed if ttl is None else TimeMode.PROCESSING
            expected = model.batch(program, [], ttl, times, mode)
            found = pipeline.batch(interprets(mode, ttl, program, []), rows, times)
            assert {row["k"]: json.loads(row["what"]) for row in found} == dict(plain(expected))
        else:
            pipeline.batch(Sleeps(), rows, times)
        check_index(pipeline, now)
    for later in (100_000, ASLEEP_MS, 2 * ASLEEP_MS, 3 * ASLEEP_MS):
        pipeline.batch(interprets(untimed, None, {}, []), [], BatchTimes(now + later, 0))
        check_index(pipeline, now + later)
    model.now = now + 3 * ASLEEP_MS
    live = sum(map(model.live, model.value.values()))
    live += sum(map(model.live, (i for m in model.map.values() for i in m.values())))
    left = stored(pipeline)
    assert live == sum(len(items) for name, items in left.items() if b"list" not in name[:6])
    for key, items in model.list.items():
        kept = left.get(keyspace.value_prefix("list") + CODEC.encode((key,)), [])
        forever = [item for item in kept if expiry_of(item) is None]
        assert len(forever) == sum(map(model.live, items))
        assert sum(map(len, kept)) <= 2 * sum(map(len, forever)), "what has expired is the smaller part"


STATES = ("value", "list", "map")
SCHEMAS = (VALUE, StructType().add("m", "long").add("t", "string"))
"""Neither can read what the other has written."""


class Redeclares(Interprets):
    """Declares a state with one of the schemas, deletes it, or says nothing about it."""

    def __init__(self, program: dict[str, list[Any]], given: dict[str, str], schemas: dict[str, int]) -> None:
        super().__init__(program, [], None)
        self.given, self.schemas = given, schemas

    def init(self, handle: Any) -> None:
        for name, what in self.given.items():
            schema = SCHEMAS[self.schemas[name] % 2]
            if what == "delete":
                handle.deleteIfExists(name)
            elif what == "declare" and name == "map":
                self.map = handle.getMapState(name, ENTRY, schema)
            elif what == "declare":
                setattr(self, name, getattr(handle, f"get{name.title()}State")(name, schema))


def processor_tester(processor: Redeclares) -> OperatorTester:
    return OperatorTester.of_processor(processor, key=["k"], input=INPUT, output=OUTPUT)


versions = st.tuples(
    st.fixed_dictionaries(
        dict.fromkeys(STATES, st.sampled_from(["declare", "declare", "delete", "delete", "leave"]))
    ),
    st.dictionaries(st.sampled_from(KEYS[:2]), st.lists(operation, max_size=6)),
    st.integers(0, 2),
    st.booleans(),
)


@quick
@given(run=st.lists(versions, min_size=2, max_size=6))
def test_a_deleted_state_is_gone_whenever_checkpoints_are_taken_and_whatever_is_declared_next(
    run: list[Any],
) -> None:
    """Each version begins with a checkpoint, goes back to it or not, and runs some batches or none."""
    declared, fill = dict.fromkeys(STATES, "declare"), [("value.update", 1, "x"), ("list.append", 2, "y")]
    first, last = (
        (declared, dict.fromkeys(KEYS, ops), 1, False) for ops in ([*fill, ("map.update", 3, 4, "z")], READ)
    )
    model, schemas = Plain(), dict.fromkeys(STATES, 0)
    tester = processor_tester(Redeclares({}, declared, schemas))
    for states, program, batches, twice in (first, *run, last):
        for name in STATES:
            if states[name] == "delete":
                schemas = schemas | {name: schemas[name] + 1}
                getattr(model, name).clear()
        ops = {
            key: [op for op in ops if states[op[0].split(".")[0]] == "declare"]
            for key, ops in program.items()
        }
        point, before = tester.checkpoint(), copy.deepcopy(model)
        for _ in range(1 + twice):
            tester.restore(point, Redeclares(ops, states, schemas))
            model = copy.deepcopy(before)
            for _ in range(batches):
                expected = model.batch(ops, [], None, BatchTimes(), TimeMode.NONE)
                found = tester.batch([(key, 0) for key in ops])
                assert {row.k: json.loads(row.what) for row in found} == dict(plain(expected))


@quick
@given(run=runs(timers=True))
def test_states_with_a_time_to_live_and_processing_time_timers_are_what_dicts_are(run: list[Any]) -> None:
    pipeline, model, now = check([*run, (dict.fromkeys(KEYS, READ), [], 0, True)], TimeMode.PROCESSING, TTL)
    # Long after: nobody has touched anything, and the room is free again, but for timers that are not due.
    for later in (TTL // 2, TTL, 3 * TTL):
        pipeline.batch(interprets(TimeMode.PROCESSING, TTL, {}, []), [], BatchTimes(now + later, 0))
    left = {
        key for _, key in pipeline.shards.held if not key.startswith((keyspace.PROCESSING_TIMERS, b"\xb2$"))
    }
    assert left == set()
    assert [row for row in pipeline.shards.held if b"$" in row[1]] == [] or any(model.timers.values())


@pytest.mark.parametrize("what", ["list", "map"])
@pytest.mark.parametrize("before", [None, 30 * 86_400_000])
@pytest.mark.parametrize("pause", [False, True])
def test_what_expires_behind_something_that_lives_longer_takes_no_room_for_long(
    what: str, before: int | None, pause: bool
) -> None:
    pipeline, now = OneOperator(TimeMode.PROCESSING, output=OUTPUT), 1000

    def batch(ttl: int | None, *items: int) -> None:
        ops = [
            ("list.append", n, "x" * 30) if what == "list" else ("map.update", n, n, "x" * 30) for n in items
        ]
        pipeline.batch(interprets(TimeMode.PROCESSING, ttl, {"a": ops}, []), [("a", 0)], BatchTimes(now, 0))
        check_index(pipeline, now)

    batch(before, *range(-5, 0))
    if pause:
        # The entry in the index comes due while nothing is declared.
        now += 2 * (before or 0)
        pipeline.batch(Sleeps(), [("a", 0)], BatchTimes(now, 0))
        batch(before, *range(-5, 0))
    for n in range(40):
        now += 1000
        batch(10, n)
    (items,) = stored(pipeline).values()
    assert len(items) <= 2 * 10 + 3
