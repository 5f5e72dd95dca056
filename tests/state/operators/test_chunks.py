"""Keys and rows of any size are processed chunk by chunk; a value that is too large is refused by name."""

from __future__ import annotations

import json
from typing import Any

import attrs
import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyspark.sql.streaming import StatefulProcessor
from pyspark.sql.types import StructType

from chandy.state.errors import StateTooLargeError
from chandy.state.format import parts, wide
from chandy.state.format.keys import KeyCodec
from chandy.state.operators import chunks
from chandy.state.operators.arrow_processor import ArrowProcessor, ArrowResult, arrow_spec
from chandy.state.operators.chunks import cuts
from chandy.state.operators.grouping import group
from chandy.state.rpc import wire
from chandy.state.testing.memory import MemoryShards

from ..pipeline import OneOperator, run_operator

TEXT = StructType().add("s", "string")


@given(st.lists(st.integers(0, 9), max_size=20), st.integers(1, 5), st.integers(1, 20))
def test_chunks_have_all_keys_in_order_and_no_more_than_they_may(
    sizes: list[int], keys: int, most: int
) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(chunks, "CHUNK", keys)
        patch.setattr(chunks, "CHUNK_BYTES", most)
        found = list(cuts(np.array(sizes, np.int64)))
    assert [at for first, last in found for at in range(first, last)] == list(range(len(sizes)))
    for first, last in found:
        assert last - first == 1 or (last - first <= keys and sum(sizes[first:last]) <= most)


SCHEMA = pa.schema(
    [
        ("k", pa.string()),
        ("b", pa.binary()),
        ("nested", pa.list_(pa.struct([("s", pa.string()), ("m", pa.map_(pa.string(), pa.binary()))]))),
        ("shard", pa.int32()),
    ]
)
ROWS = [
    {"k": k, "b": b"x" * n, "nested": [{"s": k, "m": [(str(n), None)]}, None] if n else None, "shard": len(k)}
    for n, k in enumerate(("a", "", "bb", "a", "bb", "a"))
]


def test_columns_of_too_many_bytes_are_grouped_with_wider_offsets(monkeypatch: pytest.MonkeyPatch) -> None:
    table = pa.Table.from_batches([pa.RecordBatch.from_pylist([row], SCHEMA) for row in ROWS])
    codec = KeyCodec(StructType().add("k", "string"))
    usual = group(table, codec, "shard")
    monkeypatch.setattr(wide, "NARROW", 0)
    found = group(table, codec, "shard")
    assert found.rows.schema.types[:2] == [pa.large_string(), pa.large_binary()]
    assert "large_string" in str(found.rows.schema.types[2])
    assert found.narrowed(SCHEMA).rows.schema == found.rows.schema, "a part that is still too large"
    monkeypatch.undo()
    for part in (found.narrowed(SCHEMA), usual):
        assert part.rows.schema.types == SCHEMA.types[:3]
        assert part.rows.to_pylist() == found.rows.to_pylist()
        assert (part.keys, part.key_columns.to_pylist()) == (usual.keys, usual.key_columns.to_pylist())


class Longest(ArrowProcessor):
    """Keeps all text of a key; says how many keys came with it, and of which type."""

    states = {"text": TEXT}

    def process(self, given: Any) -> ArrowResult:
        held = given.states["text"]
        texts = [
            (held[at].as_py() or {"s": ""})["s"] + "".join(given.rows["s"].slice(low, high - low).to_pylist())
            for at, (low, high) in enumerate(zip(given.bounds, given.bounds[1:], strict=False))
        ]
        state = pa.StructArray.from_arrays([pa.array(texts)], names=["s"])
        output = pa.table(
            {
                "k": given.keys["k"],
                "s": texts,
                "type": [f"{len(given)} {given.rows.schema.field('s').type}"] * len(given),
            }
        )
        return ArrowResult(output, {"text": state})


@pytest.mark.parametrize(
    ("narrow", "most", "says"),
    [(1 << 30, 1 << 29, "3 string"), (30, 5, "1 string"), (0, 5, "1 large_string")],
)
def test_a_partition_of_any_size_gives_the_same_output(
    monkeypatch: pytest.MonkeyPatch, narrow: int, most: int, says: str
) -> None:
    monkeypatch.setattr(wide, "NARROW", narrow)
    monkeypatch.setattr(chunks, "CHUNK_BYTES", most)
    schema = StructType().add("k", "string").add("s", "string")
    spec = arrow_spec(
        StructType(schema.fields[:2]), uid="op", processor=Longest(), output=schema.add("type", "string")
    )
    shards = MemoryShards()
    for expected in ({"a": "xy", "bb": "z", None: None}, {"a": "xyxy", "bb": "zz", None: None}):
        batches = [
            pa.record_batch([[k], [s], pa.array([shard], pa.int32())], names=["k", "s", "__chandy_shard"])
            for k, s, shard in (("a", "x", 1), ("bb", "z", 2), ("a", "y", 1), ("ccc", "", 2))
        ]
        rows = [row for part in run_operator(spec, batches, shards.begin()) for row in part.to_pylist()]
        assert {row["k"]: row["s"] for row in rows} == {**{k: v for k, v in expected.items() if k}, "ccc": ""}
        assert says in {row["type"] for row in rows}


class Keeps(StatefulProcessor):
    def init(self, handle: Any) -> None:
        self.value = handle.getValueState("value", TEXT)
        self.list = handle.getListState("list", TEXT)
        self.map = handle.getMapState("map", TEXT, TEXT)

    def handleInputRows(self, key: Any, rows: Any, timerValues: Any) -> Any:  # noqa: N802, N803
        text = ("x" * next(rows).n,)
        match key[0]:
            case "value":
                self.value.update(text)
            case "list":
                self.list.appendList([text, text])
            case "map":
                self.map.updateValue(("a",), text)
        return iter(())


@pytest.mark.parametrize("state", ["value", "list", "map"])
def test_a_value_that_no_message_can_hold_is_named(monkeypatch: pytest.MonkeyPatch, state: str) -> None:
    monkeypatch.setattr(wire, "LARGEST", 1000)
    monkeypatch.setattr(parts, "SEGMENT", 100)
    pipeline = OneOperator()
    pipeline.batch(Keeps(), [(state, 400), ("other", 5000)])
    with pytest.raises(
        StateTooLargeError, match=rf"state '{state}' of operator 'op' .*key \('{state}',\)"
    ) as said:
        pipeline.batch(Keeps(), [(state, 1000)])
    assert 1000 < said.value.size < 1100
    assert json.loads(json.dumps(attrs.asdict(said.value)))["limit"] == 1000
