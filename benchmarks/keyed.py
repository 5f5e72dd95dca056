"""Made rows for measurements: keys as a stream has them, in files that make one batch each pair."""

from __future__ import annotations

import os
from pathlib import Path

import attrs
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql import DataFrame, SparkSession

FILES_PER_BATCH = 2
"""One for each core to read."""
_FIRST_FILE = 1_700_000_000
"""Seconds since 1970 of the first file; any moment would do."""
ZIPF_EXPONENT = 1.1


@attrs.frozen
class Workload:
    """How many rows of a batch fall on how many keys, and how."""

    name: str
    rows: int
    """Of one batch."""
    keys: int
    """Of the whole stream."""
    zipf: bool = False
    """Whether a few keys get most rows; else all keys get the same."""
    value_bytes: int = 0
    """Bytes that a processor keeps for each key beside its count."""


def write(workload: Workload, batches: int, folder: Path, seed: int = 1) -> Path:
    """Write the files of a stream with ``batches`` batches; return their folder."""
    folder.mkdir(parents=True)
    random = np.random.default_rng(seed)
    weights = None
    if workload.zipf:
        weights = 1 / np.arange(1, workload.keys + 1) ** ZIPF_EXPONENT
        weights /= weights.sum()
    # Neighbouring keys are not neighbours in any order that matters.
    names = random.permutation(workload.keys).astype(np.int64) * 2_654_435_761 % 2**40
    for number in range(batches * FILES_PER_BATCH):
        count = workload.rows // FILES_PER_BATCH
        drawn = random.choice(workload.keys, count, p=weights)
        table = pa.table({"k": names[drawn], "v": random.integers(0, 1000, count)})
        path = folder / f"{number:05}.parquet"
        pq.write_table(table, path)
        # Spark's file source takes files by modification time.
        os.utime(path, (_FIRST_FILE + number, _FIRST_FILE + number))
    return folder


def stream(spark: SparkSession, folder: Path) -> DataFrame:
    """The rows as a stream of ``k long, v long``."""
    reader = spark.readStream.schema("k long, v long").option("maxFilesPerTrigger", FILES_PER_BATCH)
    return reader.parquet(str(folder))
