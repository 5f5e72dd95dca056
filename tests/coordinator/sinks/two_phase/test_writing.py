"""Rows that a target could never take fail their batch, whichever sink of the query it is that says so."""

from __future__ import annotations

from pathlib import Path
from typing import ClassVar

import attrs
import pyarrow as pa
import pytest

from chandy.coordinator.sinks.two_phase.contract import Committer, Fence, WriteContext
from chandy.coordinator.sinks.two_phase.errors import OutputError
from chandy.coordinator.sinks.two_phase.limits import Limits
from chandy.coordinator.sinks.two_phase.staged import StagedSink
from chandy.coordinator.sinks.two_phase.writing import Writing

ROWS = pa.RecordBatch.from_pydict(
    {"k": [1, 2], "text": ["ab", None], "texts": [["é\U0001f600"], ["abc", None]]}
)
NESTED = pa.table(
    {
        "bytes": [b"ab", None],
        "struct": [{"a": None, "list": [b"abc"]}, None],
        "map": pa.array([[("a", 1)], [("b", None)]], pa.map_(pa.string(), pa.int64())),
    }
)


def part(name: str, type: pa.DataType) -> pa.Field:
    return pa.field(name, type, nullable=False)


@attrs.frozen
class Picky(StagedSink):
    uid: str
    refuses: str | None = None
    target: ClassVar[str] = "Nothing"

    def unpublishable(self, rows: pa.Table) -> str | None:
        return self.refuses

    def recover(self, fence: Fence) -> Committer:
        raise NotImplementedError


@pytest.mark.parametrize(
    ("limits", "broken"),
    [
        (Limits(), None),
        (Limits(frozenset({"k", "other"}), {"text": 2, "texts": 3, "k": 0, "other": 0}), None),
        (Limits(frozenset({"k", "text"})), "null in column 'text'"),
        (Limits(lengths={"text": 1}), "a text of 2 characters in column 'text', which takes 1"),
        (Limits(lengths={"texts": 2}), "a text of 3 characters in column 'texts', which takes 2"),
        (Limits(columns=(part("texts", pa.list_(pa.string())),)), None),
        (Limits(columns=(part("text", pa.string()),)), "null in column 'text'"),
        (
            Limits(columns=(pa.field("texts", pa.list_(part("element", pa.string()))),)),
            "null in a list in column 'texts'",
        ),
        (Limits(columns=(pa.field("bytes", pa.binary(2)),)), None),
        (Limits(columns=(pa.field("bytes", pa.binary(3)),)), "2 bytes instead of 3 in column 'bytes'"),
        (
            Limits(columns=(pa.field("struct", pa.struct([part("list", pa.list_(pa.binary(3)))])),)),
            None,
        ),
        (
            Limits(columns=(pa.field("struct", pa.struct([part("list", pa.list_(pa.binary(2)))])),)),
            "3 bytes in a list as 'list' instead of 2 in column 'struct'",
        ),
        (
            Limits(columns=(pa.field("struct", pa.struct([part("a", pa.int64())])),)),
            "null as 'a' in column 'struct'",
        ),
        (
            Limits(columns=(pa.field("map", pa.map_(pa.string(), part("value", pa.int64()))),)),
            "null as a value of a map in column 'map'",
        ),
    ],
)
def test_limits_are_those_of_values_also_nested(limits: Limits, broken: str | None) -> None:
    rows = pa.Table.from_batches([ROWS])
    for column in NESTED.schema:
        rows = rows.append_column(column, NESTED.column(column.name))
    assert limits.broken_by(rows) == broken


@pytest.mark.parametrize("refusing", [0, 1, 2])
@pytest.mark.parametrize("by_limits", [False, True])
def test_what_one_sink_could_never_publish_none_stages(
    refusing: int, by_limits: bool, tmp_path: Path
) -> None:
    def context(number: int) -> WriteContext:
        return WriteContext(f"file://{tmp_path}/{number}/", "staged/", 7, 0)

    sinks = [Picky(str(number)) for number in range(3)]
    assert Writing(tuple(sinks)).write(iter([ROWS]), context(0)).rows == 2
    limits = {}
    if by_limits:
        limits[str(refusing)] = Limits(frozenset({"text"}))
    else:
        sinks[refusing] = attrs.evolve(sinks[refusing], refuses="it")
    with pytest.raises(OutputError, match=f"sink '{refusing}' cannot take batch 7"):
        Writing(tuple(sinks), limits).write(iter([ROWS]), context(1))
    assert not list(tmp_path.glob("1/staged/*"))
