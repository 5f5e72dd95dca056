"""What is to be read of a checkpoint is found, or refused with what there is."""

from __future__ import annotations

import pickle
import re
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql.types import LongType, StringType, StructType
from rocksdict import Options, Rdict

from chandy.state.errors import DefinitionError, NoSuchStateError
from chandy.state.format.keys import KeyCodec
from chandy.state.format.keyspace import LETTERS as DEAD_LETTERS
from chandy.state.format.keyspace import value_prefix
from chandy.state.format.packing import Packing
from chandy.state.format.schema import to_json
from chandy.state.format.values import StateName
from chandy.state.host.shard_snapshot import snapshot_files
from chandy.state.reader.selection import select
from chandy.state.reader.source import StateSource
from chandy.state.reader.stored import TIMERS
from chandy.storage import NothingHereError
from chandy.storage.backends.local import LocalStore
from chandy.storage.checkpoints.catalog import Catalog
from chandy.storage.checkpoints.manifest import OperatorRecord, StateRecord
from chandy.storage.checkpoints.snapshots import SnapshotWriter
from chandy.storage.disk.scratch import SCRATCH
from chandy.storage.disk.workspace import workspaces

from ...builders import make_manifest

KEY = StructType().add("k", StringType())
SCHEMA = StructType().add("n", LongType())


def commit(store: LocalStore, id: int, folder: Path, operators: dict[str, tuple[str, ...]]) -> None:
    """Commit a checkpoint whose operators hold in each state one value, in the second of three shards."""
    writer = SnapshotWriter(store, f"checkpoints/{id}/host.pack")
    for uid, states in operators.items():
        options = Options(raw_mode=True)
        directory = folder / f"{id}-{uid}"
        db = Rdict(str(directory), options, column_families={"default": options})
        for state in states:
            packing = Packing([SCHEMA], StateName(uid, state))
            db[value_prefix(state) + KeyCodec(KEY).encode((uid,))] = packing.pack_row((id,))
        db.flush()
        db.close()
        writer.add(uid, snapshot_files(directory))
    stored = writer.finish()
    records = tuple(
        OperatorRecord(
            uid,
            "q",
            to_json(KEY),
            {state: StateRecord((to_json(SCHEMA),)) for state in states},
            (None, stored[uid].handle, None),
        )
        for uid, states in operators.items()
    )
    Catalog(store).commit(make_manifest(id, queries=(), operators=records))


@pytest.fixture
def pipeline(tmp_path: Path) -> str:
    store = LocalStore(tmp_path / "store" / "p")
    Catalog(store).take_over("driver", 1.0)
    commit(store, 1, tmp_path / "files", {"one": ("s",)})
    commit(store, 2, tmp_path / "files", {"one": ("s", "t"), "two": ("s",), "timers": ()})
    return str(tmp_path / "store" / "p")


def test_what_is_the_only_one_needs_no_name(pipeline: str) -> None:
    selection = select(pipeline, 1, None, None)
    assert (selection.checkpoint, selection.state.operator, selection.state.name) == (1, "one", "s")
    assert select(pipeline, "latest", "two", None).state.name == "s"
    assert select(pipeline, "2", "timers", TIMERS).state.record is None


@pytest.mark.parametrize(
    ("operator", "state", "there", "found"),
    [
        (None, "s", ("one", "two", "timers"), "no operator"),
        ("three", "s", ("one", "two", "timers"), "'three'"),
        ("one", None, ("s", "t", TIMERS, DEAD_LETTERS), "no state"),
        ("one", "u", ("s", "t", TIMERS, DEAD_LETTERS), "'u'"),
        ("timers", None, (TIMERS, DEAD_LETTERS), "no state"),
    ],
)
def test_what_is_not_there_or_not_alone_is_refused_with_what_there_is(
    pipeline: str, operator: str | None, state: str | None, there: tuple[str, ...], found: str
) -> None:
    with pytest.raises(NoSuchStateError) as refused:
        select(pipeline, 2, operator, state)
    assert refused.value.expected == f"one of {', '.join(map(repr, there))}"
    assert refused.value.found == found
    assert "checkpoint 2" in refused.value.what


def test_a_checkpoint_that_is_not_there_is_refused(pipeline: str) -> None:
    with pytest.raises(NothingHereError, match="checkpoint 3"):
        select(pipeline, 3, None, None)


def test_the_source_reads_shard_by_shard_and_leaves_nothing_behind(
    pipeline: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CHANDY_RUNTIME_DIR", str(tmp_path / "run"))
    source = StateSource({"path": pipeline, "operator": "one", "state": "t"})
    reader = source.reader(source.schema())
    # To the executors.
    reader, partitions = pickle.loads(pickle.dumps((reader, reader.partitions())))
    rows = [row for part in partitions for batch in reader.read(part) for row in batch.to_pylist()]
    assert rows == [{"k": "one", "n": 2, "expires_at": None}]
    # Also not when a reader is left early.
    batches: Any = reader.read(partitions[0])
    next(batches)
    assert workspaces(tmp_path / "run" / SCRATCH, SCRATCH)
    batches.close()
    assert not workspaces(tmp_path / "run" / SCRATCH, SCRATCH)


def test_the_latest_is_that_of_the_moment_in_which_the_source_was_made(pipeline: str, tmp_path: Path) -> None:
    source = StateSource({"path": pipeline, "operator": "one", "state": "s"})
    commit(LocalStore(Path(pipeline)), 3, tmp_path / "files", {"one": ("s",)})
    source = pickle.loads(pickle.dumps(source))
    reader = source.reader(source.schema())
    (partition,) = reader.partitions()
    assert [batch.to_pylist()[0]["n"] for batch in reader.read(partition)] == [2]


def test_an_operator_that_has_never_held_anything_has_no_rows(tmp_path: Path) -> None:
    store = LocalStore(tmp_path / "p")
    Catalog(store).take_over("driver", 1.0)
    record = OperatorRecord("one", "q", to_json(KEY), {"s": StateRecord((to_json(SCHEMA),))}, (None, None))
    Catalog(store).commit(make_manifest(queries=(), operators=(record,)))
    source = StateSource({"path": str(tmp_path / "p")})
    reader = source.reader(source.schema())
    assert [list(reader.read(part)) for part in reader.partitions()] == [[]]


def read(pipeline: str, **options: str) -> list[list[dict[str, Any]]]:
    """The rows of each partition."""
    source = StateSource({"path": pipeline, "operator": "one", "state": "t", **options})
    reader = source.reader(source.schema())
    return [[row for batch in reader.read(part) for row in batch.to_pylist()] for part in reader.partitions()]


def test_some_shards_and_one_key_are_read_alone(pipeline: str) -> None:
    row = {"k": "one", "n": 2, "expires_at": None}
    assert read(pipeline, shards="1") == read(pipeline, shards="0,1,1") == [[row]]
    assert read(pipeline, shards="0,2") == [[]]
    key = KeyCodec(KEY).encode(("one",)).hex()
    assert read(pipeline, key=key) == read(pipeline, key=key, shards="1") == [[row]]
    assert read(pipeline, key=KeyCodec(KEY).encode(("two",)).hex()) == [[]]


@pytest.mark.parametrize(
    ("options", "found"),
    [
        ({"shards": "3"}, "some of the shards 0 to 2 of operator 'one', found 3"),
        ({"shards": "-1"}, "found -1"),
        ({"shards": "one"}, "numbers with commas in between, found 'one'"),
        ({"shards": ""}, "numbers with commas in between, found ''"),
        ({"key": "xyz"}, "the bytes of a key in hex, found 'xyz'"),
    ],
)
def test_shards_and_keys_that_are_none_are_refused(
    pipeline: str, options: dict[str, str], found: str
) -> None:
    with pytest.raises(DefinitionError, match=re.escape(found)):
        read(pipeline, **options)


@pytest.mark.parametrize("options", [{}, {"checkpoint": "1"}, {"path": "/nowhere", "uid": "one"}])
def test_options_that_are_not_known_are_refused(options: dict[str, str]) -> None:
    with pytest.raises(DefinitionError, match="options"):
        StateSource(options)
