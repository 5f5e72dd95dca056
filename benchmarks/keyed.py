"""Generated input: rows on random keys, in files of which a batch takes two."""

from __future__ import annotations

from pathlib import Path

import attrs
import numpy as np
import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession

from .file_source import write_file

FILES_PER_BATCH = 2
"""Each of the two cores reads one."""
ZIPF_EXPONENT = 1.1
_MINUTE = 60_000_000
_BEGIN = 1_700_000_100_000_000
"""Microseconds; a whole number of minutes, and of windows of five."""


@attrs.frozen
class Workload:
    """The size of the batches, and how their rows are distributed over keys."""

    name: str
    rows: int
    """Rows of one batch."""
    keys: int
    """Keys of the whole stream."""
    zipf: bool = False
    """Whether a few keys get most of the rows. Otherwise all keys are equally likely."""
    value_bytes: int = 0
    """Bytes that a processor stores for each key in addition to its count."""
    timed: bool = False
    """Whether rows have a time, ``t timestamp``: a batch has those of one minute."""


def write(workload: Workload, batches: int, folder: Path, seed: int = 1) -> Path:
    """Write the files of a stream of ``batches`` batches, and return their folder."""
    folder.mkdir(parents=True)
    random = np.random.default_rng(seed)
    weights = None
    if workload.zipf:
        weights = 1 / np.arange(1, workload.keys + 1) ** ZIPF_EXPONENT
        weights /= weights.sum()
    # Scatter the keys, so that neighbours in the Zipf order are not neighbours in the state.
    names = random.permutation(workload.keys).astype(np.int64) * 2_654_435_761 % 2**40
    for number in range(batches * FILES_PER_BATCH):
        count = workload.rows // FILES_PER_BATCH
        drawn = random.choice(workload.keys, count, p=weights)
        table = pa.table({"k": names[drawn], "v": random.integers(0, 1000, count)})
        if workload.timed:
            begin = _BEGIN + number // FILES_PER_BATCH * _MINUTE
            times = pa.array(begin + random.integers(0, _MINUTE, count))
            table = table.append_column("t", times.cast(pa.timestamp("us", "UTC")))
        write_file(table, folder / f"{number:05}.parquet", number)
    return folder


def stream(spark: SparkSession, folder: Path, *, timed: bool = False) -> DataFrame:
    """Read the files as a stream of ``k long, v long``, and ``t timestamp`` if rows have a time."""
    schema = "k long, v long" + ", t timestamp" * timed
    reader = spark.readStream.schema(schema).option("maxFilesPerTrigger", FILES_PER_BATCH)
    return reader.parquet(str(folder))
