"""What a processor wrote for a key is one row."""

from __future__ import annotations

from collections import defaultdict
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql.types import LongType, StringType, StructType

from chandy.state.format.schema import to_json
from chandy.state.operators.time_mode import TimeMode
from chandy.state.reader import by_key
from chandy.state.reader.by_key import StoredKeys
from chandy.state.rpc.messages import BatchTimes
from chandy.storage.checkpoints.manifest import OperatorRecord, StateKind, StateRecord

from ..pipeline import KEY, SHARDS, OneOperator
from .held_state import NOW, TTL, StateHost, shard_files

ROWS = [("a" * (n % 3 + 1) if n % 9 else None, n) for n in range(1, 20)] + [
    ("large", n) for n in range(1, 500)
]


def operator(states: dict[str, StateRecord]) -> OperatorRecord:
    return OperatorRecord("delays", "q", to_json(KEY), states, (None,) * SHARDS)


def rows_of(keys: StoredKeys, directories: list[Path]) -> list[dict[str, Any]]:
    found = []
    for directory in directories:
        for batch in keys.batches(directory):
            assert batch.schema == keys.schema
            batch.validate(full=True)
            found += batch.to_pylist()
    return found


@pytest.fixture(scope="module")
def kept(tmp_path_factory: pytest.TempPathFactory) -> tuple[StoredKeys, list[Path]]:
    pipeline = OneOperator(TimeMode.PROCESSING)
    spec = pipeline.spec(StateHost())
    pipeline.batch(spec, ROWS, BatchTimes(timestamp_ms=NOW))
    directories = shard_files(pipeline.shards.held, tmp_path_factory.mktemp("shards"))
    return StoredKeys(operator(spec.states)), directories


@pytest.mark.parametrize("size", [1, 2, 10_000])
def test_a_key_has_one_row_with_all_that_was_kept(
    kept: tuple[StoredKeys, list[Path]], size: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(by_key, "ROWS", size)
    keys, directories = kept
    numbers: dict[str | None, list[int]] = defaultdict(list)
    for key, n in ROWS:
        numbers[key].append(n)
    found = {row["k"]: row for row in rows_of(keys, directories)}
    assert found.keys() == numbers.keys()
    for key, own in numbers.items():
        assert found[key] == {
            "k": key,
            "value": {"value": {"k": key, "n": own[-1]}, "expires_at_ms": None},
            "brief": {"value": {"n": own[-1]}, "expires_at_ms": NOW + TTL},
            "list": [{"value": {"n": n, "text": "x" * 100}, "expires_at_ms": None} for n in own],
            "map": found[key]["map"],
            "timers": [NOW + 1000 * n for n in own],
        }
        entries = [
            {"key": {"n": n}, "value": {"n": -n, "text": "y" * 100}, "expires_at_ms": None} for n in own
        ]
        assert sorted(found[key]["map"], key=repr) == sorted(entries, key=repr)


def test_what_a_key_does_not_have_is_null(tmp_path: Path) -> None:
    pipeline = OneOperator(TimeMode.PROCESSING)
    spec = pipeline.spec(StateHost())
    pipeline.batch(spec, [("a", 1)], BatchTimes(timestamp_ms=NOW))
    timers = {at: data for at, data in pipeline.shards.held.items() if at[1].startswith(b"\x02p")}
    assert timers
    (row,) = rows_of(StoredKeys(operator(spec.states)), shard_files(timers, tmp_path / "s"))
    assert row == {"k": "a", "value": None, "brief": None, "list": None, "map": None, "timers": [NOW + 1000]}


def test_columns_whose_names_are_taken_get_a_prefix() -> None:
    number = to_json(StructType().add("n", LongType()))
    key = to_json(StructType().add("k", StringType()).add("timers", StringType()))
    value, elements = StateRecord((number,)), StateRecord((number,), StateKind.LIST)
    states = {"K": value, "$hidden": value, "l": elements}
    keys = StoredKeys(OperatorRecord("o", "q", key, states, ()))
    assert keys.schema.names == ["k", "timers", "state_K", "l", "operator_timers"]
    assert keys.columns == {"K": "state_K", "l": "l", "$timers": "operator_timers"}
    item = pa.struct({"value": pa.struct({"n": pa.int64()}), "expires_at_ms": pa.int64()})
    assert keys.schema.field("state_K").type == item
    assert keys.schema.field("l").type == pa.list_(item)
