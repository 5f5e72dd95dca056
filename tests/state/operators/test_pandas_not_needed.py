"""A worker that runs aggregates has no use for pandas, and pyarrow must not be led to import it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pyarrow as pa

_PROGRAM = '''
import sys
from importlib.abc import MetaPathFinder


class NoPandas(MetaPathFinder):
    def find_spec(self, name, path, target=None):
        # No ImportError: pyarrow would go on without it.
        assert name != "pandas", "pandas is imported"


sys.meta_path.insert(0, NoPandas())
import pyarrow as pa
from pyspark.sql.types import DoubleType, LongType, StringType, StructType
from chandy.state.aggregation.aggregate_operator import aggregation
from chandy.state.format.arrow import BYTES
from chandy.state.format.keys import KeyCodec
from chandy.state.rpc.messages import BatchTimes
from chandy.state.rpc.metrics import OperatorMetrics
from chandy.state.operators import engine, shuffle_packing
from chandy.state.operators.dataframe import SHARD


class OneShard:
    """One shard, whose keys are those of the batch before, in their order."""

    times, fresh, values = BatchTimes(), frozenset(), None

    def begin(self):
        self.metrics = OperatorMetrics()
        return self

    def fetch(self, shards, keys):
        return pa.nulls(len(keys), BYTES) if self.values is None else self.values

    def scan(self, start, stop):
        return iter(())

    def apply(self, entries):
        (one,) = entries
        self.values = one.values


with pa.ipc.open_stream(sys.argv[1]) as reader:
    (rows,) = reader
key = StructType().add("k", StringType())
schema = StructType().add("k", StringType()).add("v", LongType()).add("x", DoubleType())
functions = {name: ("v", name) for name in ("count", "sum", "min", "max", "avg", "first", "last", "stddev")}
columns = {**functions, "rows": ("*", "count"), "least": ("x", "min"), "total": ("x", "sum"), "word": ("k", "max")}
for combine in (False, True):
    made = aggregation(schema, ["k"], columns, uid="op", combine=combine)
    (batch,) = made.arrow_rows(pa.Table.from_batches([rows])).to_batches()
    shard = OneShard()
    context = engine.RuntimeContext("op", "query", "run", 0, 0, range(1), shard.times)
    for _ in range(2):
        batches = iter([batch])
        if made.combiner is not None:
            packed = shuffle_packing.Packer(SHARD, 1, 1)(made.combiner.function(batches))
            batches = shuffle_packing.unpack(packed)
        with made.spec.open(context) as operator:
            output = list(engine.run(operator, context, batches, KeyCodec(key), SHARD, shard.begin(), "fail"))
        assert sum(map(len, output)) == 3
print("done")
'''


def test_aggregates_are_computed_without_pandas(tmp_path: Path) -> None:
    keys, values = ["a", "b", None, "a"], [1, None, 3, 4]
    batch = pa.record_batch(
        {
            "k": pa.array(keys, pa.string()),
            "v": pa.array(values, pa.int64()),
            "x": pa.array([1.0, None, 3.0, 4.0], pa.float64()),
            "__chandy_shard": pa.array([0] * 4, pa.int32()),
        }
    )
    with pa.OSFile(str(tmp_path / "rows"), "wb") as file, pa.ipc.new_stream(file, batch.schema) as writer:
        writer.write_batch(batch)
    program = [sys.executable, "-c", _PROGRAM, str(tmp_path / "rows")]
    found = subprocess.run(program, capture_output=True, text=True, check=False)
    assert found.stderr == ""
    assert (found.stdout.split(), found.stderr) == (["done"], "")
