"""Writes the state of one of Chandy's operators as that of Spark's own transformWithState.

Only Spark itself can write that state, and it does when a query begins with an initial state. So a query is run for one
batch, the first one, that has no rows, in a directory of its own. It has the time of the checkpoint's batch, so that
no timer is due that was not due before. What it leaves is the state at version 1. Renamed, it is the state at any other
version: a snapshot of RocksDB is known by its name alone.
"""

from __future__ import annotations

import json
import re
import shutil
import uuid
from pathlib import Path
from typing import TYPE_CHECKING, Final

import attrs
from pyspark.errors import PySparkException
from pyspark.sql import functions as F  # noqa: N812 (its usual name)

from ...state.format.schema import from_json
from ...state.operators.dataframe import quoted
from ...state.reader.by_key import StoredKeys
from ...storage.manifest import OperatorRecord
from ..spark.listing import files_below
from ..spark.progress import METADATA
from .errors import ExportError
from .seeder import Seeder

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

PROVIDER: Final = "spark.sql.streaming.stateStore.providerClass"
ROCKSDB: Final = "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"
FORMAT: Final = "spark.sql.streaming.stateStore.checkpointFormatVersion"
SETTINGS: Final = {PROVIDER: ROCKSDB, FORMAT: "1"}
"""Those of the offset log that the state needs: the only provider that has it, and the format without unique ids."""
_OF_SESSION: Final = {
    **SETTINGS,
    # A commit writes a whole snapshot.
    "spark.sql.streaming.stateStore.rocksdb.changelogCheckpointing.enabled": "false",
}
_SNAPSHOT: Final = re.compile(r"(0/\d+/)1(\.zip(?:\.crc)?)")
_VERSIONED: Final = re.compile(r"0/\d+/\d+[._].*")
_SCRATCH: Final = ".query"


@attrs.frozen
class SparkOperator:
    """How a plain query runs what was one of Chandy's operators: the arguments of its ``transformWithState``.

    They are part of its checkpoint.
    """

    time_mode: str = "None"
    """``timeMode``: "None", "ProcessingTime" or "EventTime"."""
    output_mode: str = "Append"
    """``outputMode``: "Append" or "Update"."""


@attrs.frozen
class NativeState:
    """The state of the only stateful operator of a query, to be written as that of Spark's own."""

    spark: SparkSession
    operator: OperatorRecord
    how: SparkOperator
    rows: Path
    """The directory with the state as Parquet."""

    def write(self, offsets: str, batch: int, target: Path) -> None:
        """Write it into what becomes the query's checkpoint directory.

        Args:
            offsets: the entry of the offset log of the checkpoint's batch, with ``SETTINGS``.
            batch: the checkpoint's batch.
            target: the directory.

        Raises:
            ExportError: Spark cannot write this state, for one because ``how`` does not fit it.
        """
        scratch = target.with_name(_SCRATCH)
        try:
            _prepare(scratch / "checkpoint", offsets)
            try:
                _run(self.spark, self.operator, self.how, self.rows, scratch)
            except PySparkException as error:
                raise ExportError(
                    f"the state of operator {self.operator.uid!r} cannot be written as that of Spark's own",
                    f"a state that transformWithState takes with {self.how}",
                    str(error).strip().partition("\n")[0],
                    f"correct SparkOperator for {self.operator.uid!r}; or leave it out, and the state is exported for "
                    "an initial state alone",
                ) from error
            _take_over(scratch / "checkpoint" / "state", target / "state", batch + 1)
        finally:
            shutil.rmtree(scratch, ignore_errors=True)


def _prepare(directory: Path, offsets: str) -> None:
    """Plan a first batch that has the time of another and reads no file."""
    times = offsets.splitlines()[1]
    contents = {
        METADATA: json.dumps({"id": str(uuid.uuid4())}),
        "offsets/0": f'v1\n{times}\n{{"logOffset":0}}',
        "sources/0/0": "v1",
    }
    for name, content in contents.items():
        (directory / name).parent.mkdir(parents=True, exist_ok=True)
        (directory / name).write_text(content)


def _run(
    spark: SparkSession, operator: OperatorRecord, how: SparkOperator, rows: Path, scratch: Path
) -> None:
    session = spark.newSession()
    for name, value in _OF_SESSION.items():
        session.conf.set(name, value)
    stored, schema = StoredKeys(operator), from_json(operator.key_schema)
    (scratch / "no-files").mkdir()
    nothing = session.readStream.schema(schema).parquet(str(scratch / "no-files"))
    keys = [F.col(quoted(name)) for name in schema.names]
    columns = stored.columns
    written = nothing.groupBy(*keys).transformWithState(
        Seeder(stored.states, columns, list(columns.values())[-1]),
        outputStructType=schema,
        outputMode=how.output_mode,
        timeMode=how.time_mode,
        initialState=session.read.parquet(str(rows)).groupBy(*keys),
    )
    writer = written.writeStream.format("noop").outputMode(how.output_mode).trigger(once=True)
    writer.option("checkpointLocation", str(scratch / "checkpoint")).start().awaitTermination()


def _take_over(state: Path, target: Path, version: int) -> None:
    """Move the state of the first batch to where it is that of another one."""
    for name in sorted(files_below(state)):
        found = _SNAPSHOT.fullmatch(name)
        if found is None and _VERSIONED.fullmatch(name):
            raise AssertionError(f"Spark has written {name}, and not one snapshot for each partition")
        to = target / (f"{found[1]}{version}{found[2]}" if found else name)
        to.parent.mkdir(parents=True, exist_ok=True)
        shutil.move(state / name, to)
