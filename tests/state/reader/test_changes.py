"""The changes of a state between two checkpoints, as rows."""

from __future__ import annotations

import datetime
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql.types import LongType, StringType, StructType

from chandy.state.errors import DefinitionError, NoSuchStateError, StateSchemaError
from chandy.state.format import parts
from chandy.state.format.keys import KeyCodec
from chandy.state.format.keyspace import LETTERS, letter_key, value_prefix
from chandy.state.format.packing import Packing
from chandy.state.format.schema import to_json
from chandy.state.format.values import StateName
from chandy.state.operators.dead_letters import packing
from chandy.state.reader.changes import StateChanges
from chandy.state.reader.options import ChangesBetween, chosen
from chandy.state.reader.selection import selected
from chandy.state.reader.source import StateSource
from chandy.storage.checkpoints.locate import Located
from chandy.storage.checkpoints.manifest import StateKind, StateRecord

from .checkpoints import Checkpoints

KEY = StructType().add("k", StringType())
NUMBER = StructType().add("n", LongType())
NAMED = StructType().add("n", LongType()).add("name", StringType())
VALUE = {"s": StateRecord((to_json(NUMBER),))}
Row = dict[str, Any]


@pytest.fixture
def made(tmp_path: Path) -> Checkpoints:
    return Checkpoints(tmp_path)


def values(**of: int) -> dict[bytes, bytes]:
    packing = Packing([NUMBER], StateName("op", "s"))
    return {
        value_prefix("s") + KeyCodec(KEY).encode((name,)): packing.pack_row((n,)) for name, n in of.items()
    }


def commit(made: Checkpoints, id: int, *shards: Any, states: Any = None, key: StructType = KEY) -> Located:
    return made.commit(id, shards, VALUE if states is None else states, to_json(key))


def changes(
    old: Located | None, new: Located, *, before: bool = False, of: Located | None = None
) -> list[Row]:
    """The changes as rows, with the columns of the state that ``of`` has."""
    found = StateChanges(selected(of or new, "op", "s").state, before)
    rows = [
        row for part in found.parts(old, new) for batch in found.batches(part) for row in batch.to_pylist()
    ]
    for row in rows:
        assert row.pop("_completed_at") == datetime.datetime.fromtimestamp(
            new.manifest.completed_at, datetime.UTC
        )
        assert row.pop("_checkpoint") == new.manifest.id
        assert row.pop("expires_at", None) is None
    return rows


def row(k: str, n: int | None, change: str, shard: int | None = 0, **more: Any) -> Row:
    return {"k": k, "n": n, "_change": change, "_shard": shard, **more}


def test_a_row_says_what_has_happened_to_a_key(made: Checkpoints) -> None:
    old = commit(made, 1, values(a=1, b=2, d=4), values(x=1))
    new = commit(made, 2, values(b=2, c=3, d=40), values(x=1, y=2))
    assert changes(old, new) == [
        row("a", None, "delete"),
        row("c", 3, "insert"),
        row("d", 40, "update"),
        row("y", 2, "insert", 1),
    ]


def test_the_way_back_undoes_the_way_forth(made: Checkpoints) -> None:
    old, new = commit(made, 1, values(a=1, b=2)), commit(made, 2, values(b=3, c=4))
    assert changes(new, old) == [row("a", 1, "insert"), row("b", 2, "update"), row("c", None, "delete")]


def test_without_an_older_checkpoint_everything_is_read(made: Checkpoints) -> None:
    new = commit(made, 1, values(a=1), None, values(b=2))
    assert changes(None, new) == [row("a", 1, "read", 0), row("b", 2, "read", 2)]


def test_the_value_before_is_there_if_it_is_asked_for(made: Checkpoints) -> None:
    old, new = commit(made, 1, values(a=1, b=2)), commit(made, 2, values(b=3, c=4))
    assert changes(old, new, before=True) == [
        row("a", None, "delete", _before={"n": 1}),
        row("b", 3, "update", _before={"n": 2}),
        row("c", 4, "insert", _before=None),
    ]


def test_with_another_number_of_shards_all_are_compared_together(made: Checkpoints) -> None:
    old, new = commit(made, 1, values(a=1, c=3), values(b=2)), commit(made, 2, values(a=1, b=2, c=4))
    assert changes(old, new) == [row("c", 4, "update", None)]


def test_shards_with_the_same_files_are_not_read(made: Checkpoints) -> None:
    old = commit(made, 1, values(a=1), values(b=2))
    same, _ = old.manifest.operators[0].shards
    new = commit(made, 2, same, values(b=3))
    found = StateChanges(selected(new, "op", "s").state)
    assert [part.shard for part in found.parts(old, new)] == [1]


def test_a_state_that_was_not_there_is_new_even_if_the_files_are_the_same(made: Checkpoints) -> None:
    old = commit(made, 1, values(a=1), states={})
    new = commit(made, 2, *old.manifest.operators[0].shards)
    assert changes(old, new) == [row("a", 1, "insert")]


def test_an_operator_that_is_in_no_checkpoint_yet_is_empty(made: Checkpoints) -> None:
    # So is a pipeline that has started over.
    nothing, new = made.commit_records(1, ()), commit(made, 2, values(a=1), None)
    assert changes(nothing, new) == [row("a", 1, "insert")]
    assert changes(new, nothing, of=new) == [row("a", None, "delete")]
    assert changes(None, nothing, of=new) == changes(nothing, nothing, of=new) == []
    without = commit(made, 3, {}, states={})
    assert changes(None, without, of=new) == changes(nothing, without, of=new) == []


def test_a_dead_letter_is_known_by_its_time_batch_number_and_key(made: Checkpoints) -> None:
    def letters(*some: tuple[str, int, int]) -> dict[bytes, bytes]:
        packed = packing().pack_row(("in a test", "ValueError: no", "at line 1", b"rows", None))
        return {
            letter_key(1000, batch, number, KeyCodec(KEY).encode((k,))): packed for k, batch, number in some
        }

    # The key's rows did not fit into one letter.
    old = commit(made, 1, letters(("a", 1, 0), ("a", 1, 1)) | values(a=1), states={})
    new = commit(made, 2, letters(("a", 1, 1), ("b", 2, 0)) | values(a=2), states={})
    state = selected(new, "op", LETTERS).state
    assert state.key_columns == ("k", "time", "batch", "number")
    found = StateChanges(state)

    def told(old: Located | None, new: Located) -> list[tuple[Any, ...]]:
        rows = [
            row
            for part in found.parts(old, new)
            for batch in found.batches(part)
            for row in batch.to_pylist()
        ]
        return [
            (row["_change"], *(row[name] for name in ("k", "batch", "number", "error", "rows")))
            for row in rows
        ]

    error = ("ValueError: no", b"rows")
    assert told(None, old) == [("read", "a", 1, 0, *error), ("read", "a", 1, 1, *error)]
    assert told(old, new) == [("delete", "a", 1, 0, None, None), ("insert", "b", 2, 0, *error)]
    assert told(new, new) == []


def test_a_map_has_a_row_for_each_entry(made: Checkpoints) -> None:
    named = StructType().add("m", StringType())
    packing, keys = (Packing([schema], StateName("op", "s")) for schema in (NUMBER, named))

    def shard(**entries: int) -> dict[bytes, bytes]:
        items = (
            one for name, n in entries.items() for one in (keys.pack_row((name,)), packing.pack_row((n,)))
        )
        header = parts.MapHeader(inline=parts.join(items))
        return {value_prefix("s") + KeyCodec(KEY).encode(("a",)): header.encode()}

    record = StateRecord((to_json(NUMBER),), StateKind.MAP, to_json(named))
    old = commit(made, 1, shard(one=1, two=2), states={"s": record})
    new = commit(made, 2, shard(two=3, three=3), states={"s": record})
    assert changes(old, new) == [
        row("a", None, "delete", m="one"),
        row("a", 3, "update", m="two"),
        row("a", 3, "insert", m="three"),
    ]


def test_columns_that_were_added_later_are_left_out(made: Checkpoints) -> None:
    old = commit(made, 1, values(a=1, b=2))
    packing = Packing([NUMBER, NAMED], StateName("op", "s"))
    key = value_prefix("s") + KeyCodec(KEY).encode(("b",))
    wider = {"s": StateRecord((to_json(NUMBER), to_json(NAMED)))}
    new = commit(made, 2, values(a=1) | {key: packing.pack_row((3, "three"))}, states=wider)
    assert changes(old, new, of=old, before=True) == [row("b", 3, "update", _before={"n": 2})]
    # A reader that begins now has them. What was there before has none.
    (found,) = changes(old, new, before=True)
    assert found == row("b", 3, "update", name="three", _before={"n": 2, "name": None})


@pytest.mark.parametrize(
    ("states", "key", "error"),
    [
        ({}, KEY, NoSuchStateError),
        ({"s": StateRecord((to_json(NUMBER),), StateKind.LIST)}, KEY, StateSchemaError),
        (VALUE, StructType().add("other", StringType()), StateSchemaError),
    ],
)
def test_a_state_that_has_become_another_one_has_no_changes(
    made: Checkpoints, states: Any, key: StructType, error: type[Exception]
) -> None:
    old, new = commit(made, 1, values(a=1)), commit(made, 2, {}, states=states, key=key)
    with pytest.raises(error, match="end before checkpoint 2"):
        changes(old, new, of=old)


def test_timers_and_columns_of_the_same_names_are_refused(made: Checkpoints) -> None:
    record = {"s": StateRecord((to_json(StructType().add("_change", StringType())),))}
    new = commit(made, 1, {}, states=record)
    with pytest.raises(DefinitionError, match="found _change"):
        changes(None, new)
    with pytest.raises(DefinitionError, match="read_state"):
        StateChanges(selected(new, "op", "$timers").state)


def test_spark_reads_the_changes_between_two_checkpoints(made: Checkpoints) -> None:
    commit(made, 1, values(a=1), values(b=1))
    commit(made, 2, values(a=2), values(b=1))
    path = made.store.uri
    source = StateSource({"path": path, "changes_from": "1"})
    reader = source.reader(source.schema())
    rows = [row for part in reader.partitions() for batch in reader.read(part) for row in batch.to_pylist()]
    assert [(row["k"], row["n"], row["_change"]) for row in rows] == [("a", 2, "update")]
    same = chosen({"path": path, "changes_from": "latest", "changes_to": "latest"})
    assert isinstance(same, ChangesBetween)
    assert not same.parts


@pytest.mark.parametrize(
    ("options", "found"),
    [
        ({"changes_to": "1"}, "the checkpoint with which the changes begin"),
        ({"changes_from": "1", "checkpoint": "1"}, "found checkpoint"),
        ({"changes_from": "1", "before": "yes"}, "'true' or 'false'"),
        ({"reader": "r", "key": "00"}, "found key"),
        ({"reader": "r", "release": "never"}, "'batch' or 'checkpoint'"),
        ({"reader": "r", "shards_per_batch": "0"}, "a number above 0"),
    ],
)
def test_options_without_meaning_are_refused(made: Checkpoints, options: dict[str, str], found: str) -> None:
    commit(made, 1, values(a=1))
    with pytest.raises(DefinitionError, match=found):
        StateSource({"path": made.store.uri, **options})
