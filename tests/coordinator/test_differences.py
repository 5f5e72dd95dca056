"""`chandy diff` tells what changed between two checkpoints: batches, offsets and state."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result
from pyspark.sql.types import LongType, StringType, StructType

from chandy.coordinator.cli import main
from chandy.state.format.keys import KeyCodec
from chandy.state.format.keyspace import EVENT_TIMERS, timed_key, value_prefix
from chandy.state.format.packing import Packing
from chandy.state.format.schema import to_json
from chandy.state.format.values import StateName
from chandy.storage.backends.local import LocalStore
from chandy.storage.checkpoints.manifest import Handle, OperatorRecord, QueryRecord, StateRecord
from chandy.storage.checkpoints.savepoint import claim_savepoint, commit_savepoint

from ..builders import make_manifest
from ..state.reader.checkpoints import Checkpoints

KEY = StructType().add("k", StringType())
NUMBER = StructType().add("n", LongType())
V1 = 'v1\n{"batchWatermarkMs":0,"conf":{}}'


def values(**of: int) -> dict[bytes, bytes]:
    packing, codec = Packing([NUMBER], StateName("totals", "n")), KeyCodec(KEY)
    return {value_prefix("n") + codec.encode((name,)): packing.pack_row((n,)) for name, n in of.items()}


def operator(made: Checkpoints, *shards: Any) -> OperatorRecord:
    record = StateRecord((to_json(NUMBER),))
    return OperatorRecord("totals", "q", to_json(KEY), {"n": record}, made.store_shards(shards))


@pytest.fixture
def made(tmp_path: Path) -> Checkpoints:
    made = Checkpoints(tmp_path)
    timer = {timed_key(EVENT_TIMERS, 1_000, KeyCodec(KEY).encode(("a",))): b""}
    first = operator(made, values(a=1, b=2), values(c=3))
    unchanged = first.shards[1]
    made.commit_records(
        1,
        (first,),
        (made.query("q", 4, f'{V1}\n{{"logOffset":4}}\n-'), made.query("old", 2, f"{V1}\n7")),
    )
    made.commit_records(
        2,
        (operator(made, values(a=10, **{f"d{n:02}": n for n in range(30)}) | timer, unchanged),),
        (
            made.query("q", 9, f'{V1}\n{{"logOffset":9}}\n{{"t":{{"0":5}}}}'),
            QueryRecord("new", -1, Handle()),
        ),
    )
    return made


def run(*arguments: str) -> Result:
    return CliRunner().invoke(main, ["diff", *arguments])


def run_json(*arguments: str) -> Any:
    result = run(*arguments, "--json")
    assert result.exit_code == 0, result.output
    return json.loads(result.stdout)


def test_batches_and_offsets_are_told_query_by_query(made: Checkpoints) -> None:
    lines = run(str(made.folder / "store"), "1", "2").stdout.splitlines()
    assert lines[:6] == [
        "query q: batch 4 -> batch 9",
        '  source 0: {"logOffset":4} -> {"logOffset":9}',
        '  source 1: nothing -> {"t":{"0":5}}',
        "query old: batch 2 -> none",
        "  source 0: 7 -> nothing",
        "query new: none -> batch -1",
    ]
    queries = run_json(str(made.folder / "store"), "1", "latest")["queries"]
    assert queries[0] == {
        "name": "q",
        "change": "changed",
        "batches": [4, 9],
        "sources": [
            {"source": "0", "old": '{"logOffset":4}', "new": '{"logOffset":9}'},
            {"source": "1", "old": None, "new": '{"t":{"0":5}}'},
        ],
    }
    assert [query["change"] for query in queries] == ["changed", "removed", "added"]


def test_state_is_told_key_by_key(made: Checkpoints) -> None:
    output = run(str(made.folder / "store"), "1", "2", "--limit", "3").stdout
    assert "operator totals of query q: 2 shards, 2 read" in output
    rows = [[cell.strip() for cell in line.split("│")[1:-1]] for line in output.splitlines() if "│" in line]
    assert rows == [
        ["n", "value", "30", "1", "1"],
        ["$timers", "timers", "1", "0", "0"],
        ["changed", 'k="a"', "n=1", "n=10"],
        ["removed", 'k="b"', "n=2", ""],
        ["added", 'k="d00"', "", "n=0"],
        ["added", 'k="a"', 'mode="event", timer="1970-01-01T00:00:01+00:00"'],
    ]
    assert "totals, n, the first 3 of 32" in output
    (found,) = run_json(str(made.folder / "store"), "1", "2", "--state", "n", "--limit", "1")["operators"]
    assert found == {
        "uid": "totals",
        "query": "q",
        "change": None,
        "shards": [2, 2],
        "read": 2,
        "states": [
            {
                "name": "n",
                "kind": "value",
                "added": 30,
                "removed": 1,
                "changed": 1,
                "shown": [
                    {"change": "changed", "key": {"k": "a"}, "place": {}, "old": {"n": 1}, "new": {"n": 10}}
                ],
            }
        ],
    }


def test_what_does_not_differ_is_said_to_be_the_same(made: Checkpoints) -> None:
    result = run(str(made.folder / "store"), "2", "latest")
    assert result.stdout.splitlines() == [
        "query q: batch 9, the same",
        "query new: batch -1, the same",
        "operator totals of query q: 2 shards, all the same",
    ]
    assert result.exit_code == 0


def test_a_savepoint_is_named_by_its_folder(
    made: Checkpoints, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    elsewhere = Checkpoints(tmp_path / "elsewhere")
    shards = elsewhere.store_shards([values(a=1), values(c=4)])
    (tmp_path / "elsewhere" / "store" / "p").rename(tmp_path / "save")
    store = LocalStore(tmp_path / "save")
    for key in store.list("generations/"):
        store.delete(key)
    claim_savepoint(store, "driver")
    record = OperatorRecord("totals", "q", to_json(KEY), {"n": StateRecord((to_json(NUMBER),))}, shards)
    commit_savepoint(store, make_manifest(7, queries=(), operators=(record,)))
    monkeypatch.chdir(tmp_path)
    for place in (store.uri, str(tmp_path / "save"), "save"):
        found = run_json("store", "1", place)
        assert found["new"] == {"id": 7, "store": store.uri}
        (changed,) = (
            one for one in found["operators"][0]["states"][0]["shown"] if one["change"] == "changed"
        )
        assert (changed["key"], changed["old"], changed["new"]) == ({"k": "c"}, {"n": 3}, {"n": 4})


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (("1", "3"), "no checkpoint 3"),
        (("1", "2", "--operator", "sums"), "'totals'"),
        (("1", "2", "--state", "sum"), "'n', '$timers'"),
        (("1", "nowhere"), "no savepoint"),
    ],
)
def test_what_is_not_there_is_an_error_in_one_line(
    made: Checkpoints, arguments: tuple[str, ...], told: str
) -> None:
    result = run(str(made.folder / "store"), *arguments)
    assert result.exit_code == 1
    assert told in result.stderr
    assert len(result.stderr.splitlines()) == 1
