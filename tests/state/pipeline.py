"""Runs processors through the engine over shards in memory, batch after batch."""

from __future__ import annotations

import copy
from collections.abc import Iterable
from typing import Any

import pyarrow as pa
from pyspark.sql.streaming import StatefulProcessor
from pyspark.sql.types import IntegerType, StructType

from chandy.state.format.keys import KeyCodec
from chandy.state.format.schema import arrow_schema
from chandy.state.operators import engine
from chandy.state.operators.attempts import OnError
from chandy.state.operators.dataframe import SHARD
from chandy.state.operators.engine import OperatorSpec, RuntimeContext
from chandy.state.operators.time_mode import TimeMode
from chandy.state.processors.initial_state import InitialState
from chandy.state.processors.processor import ProcessorSpec, processor_spec
from chandy.state.processors.style import PandasSettings, StyleName
from chandy.state.rpc.messages import BatchTimes
from chandy.state.testing.memory import MemoryAccess, MemoryShards

SHARDS = 4
KEY = StructType().add("k", "string")
INPUT = StructType().add("k", "string").add("n", "long")
OUTPUT = StructType().add("k", "string").add("n", "long")
QUERY = "11111111-1111-1111-1111-111111111111"
RUN = "22222222-2222-2222-2222-222222222222"


def shard_of(key: str | None) -> int:
    return len(key or "") % SHARDS


def run_operator(
    spec: OperatorSpec,
    batches: Iterable[pa.RecordBatch],
    access: MemoryAccess,
    *,
    key: StructType = KEY,
    number: int = 7,
    shards: int = 16,
    on_error: OnError = "fail",
) -> list[pa.RecordBatch]:
    """Run one batch of an operator in a task that has all shards; return its output."""
    context = RuntimeContext("op", QUERY, RUN, number, 0, range(shards), access.times)
    with spec.open(context) as operator:
        return list(engine.run(operator, context, iter(batches), KeyCodec(key), SHARD, access, on_error))


class OneOperator:
    """One operator, whose processor may be another in every batch."""

    def __init__(
        self,
        mode: TimeMode = TimeMode.NONE,
        style: StyleName = StyleName.ROWS,
        schema: StructType = INPUT,
        output: StructType = OUTPUT,
        timezone: str = "UTC",
        event_time_column: str | None = None,
    ) -> None:
        self.shards = MemoryShards()
        self.mode, self.style, self.schema, self.output = mode, style, schema, output
        self.settings = PandasSettings(timezone=timezone)
        self.event_time_column = event_time_column
        self.key = ["k"]
        self.number = 0
        self.on_error: OnError = "fail"
        self.sizes: list[int] = []
        """Rows of each record batch of the last output."""

    def spec(self, processor: StatefulProcessor) -> ProcessorSpec:
        return processor_spec(
            self.schema,
            uid="delays",
            key=self.key,
            processor=processor,
            output=self.output,
            style=self.style,
            mode=self.mode,
            event_time_column=self.event_time_column,
            settings=self.settings,
        )

    def batch(
        self,
        processor: StatefulProcessor | ProcessorSpec,
        rows: Iterable[tuple[Any, ...]] = (),
        times: BatchTimes | None = None,
        initial: InitialState | None = None,
    ) -> list[dict[str, Any]]:
        """Run one batch; return its output."""
        spec = processor if isinstance(processor, ProcessorSpec) else self.spec(processor)
        object.__setattr__(spec, "initial", initial)
        output = self._attempt(spec, list(rows), times or BatchTimes())
        self.number += 1
        return output

    def attempt(self, *args: Any, **named: Any) -> list[dict[str, Any]]:
        """Run a batch as ``batch`` does, and give it up."""
        kept, number = copy.deepcopy(self.shards), self.number
        try:
            return self.batch(*args, **named)
        finally:
            self.shards, self.number = kept, number

    def _attempt(
        self, spec: ProcessorSpec, rows: list[tuple[Any, ...]], times: BatchTimes
    ) -> list[dict[str, Any]]:
        access = self.shards.begin(times, range(SHARDS))
        key = StructType([self.schema[name] for name in self.key])
        batches = self.table(rows).to_batches()
        output = run_operator(
            spec, batches, access, key=key, number=self.number, shards=SHARDS, on_error=self.on_error
        )
        self.sizes = [part.num_rows for part in output]
        return [row for part in output for row in part.to_pylist()]

    def table(self, rows: list[tuple[Any, ...]]) -> pa.Table:
        schema = StructType([*self.schema.fields]).add(SHARD, IntegerType())
        arrow = arrow_schema(schema, self.settings.timezone)
        columns = list(zip(*((*row, shard_of(row[0])) for row in rows), strict=True)) or [[] for _ in arrow]
        return pa.table(
            [pa.array(values, field.type) for values, field in zip(columns, arrow, strict=True)], arrow
        )
