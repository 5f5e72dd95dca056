"""The state of Spark's ``transformWithState``, read by Spark's own reader, as snapshots of an operator's shards."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from pyspark.sql import functions as F  # noqa: N812 (its usual name)
from pyspark.sql.types import ArrayType, MapType, StructType

from ...state.format.schema import from_json, to_json
from ...state.operators.dataframe import keyed, quoted
from ...state.operators.partitioning import default_tasks
from ...state.operators.time_mode import TimeMode
from ...state.processors.adopted_state import (
    STATE,
    VALUE,
    WRITTEN,
    AdoptedVariable,
    read_entries,
)
from ...storage.checkpoints.manifest import OperatorRecord, StateKind, StateRecord
from ...storage.ids import BatchId
from ..errors import AdoptionError
from ..spark.plain_checkpoint import PlainCheckpoint, StateOperator, StateVariable
from ..spark.progress import Files
from .findings import AdoptableState

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_READER: Final = "statestore"
_MEMORY: Final = 32 * 1024 * 1024
"""Bytes that RocksDB may use while a shard is written."""
_COLUMNS: Final = {"value": "value", "list": "list_value", "map": "map_value"}


def _read(spark: SparkSession, found: PlainCheckpoint, operator: StateOperator, **options: str) -> DataFrame:
    reader = spark.read.format(_READER).option("path", f"file://{found.directory}")
    reader = reader.option("operatorId", operator.id).option("batchId", found.committed)
    for name, value in options.items():
        reader = reader.option(name, value)
    return reader.load()


def _variable(
    spark: SparkSession, found: PlainCheckpoint, operator: StateOperator, variable: StateVariable
) -> DataFrame:
    """Return the keys of a variable, and in the column ``STATE`` its state for each: a struct, an array or a map."""
    df = _read(spark, found, operator, stateVarName=variable.name, flattenCollectionTypes="false")
    return df.select("key", F.col(_COLUMNS[variable.kind]).alias(STATE))


def _timers(spark: SparkSession, found: PlainCheckpoint, operator: StateOperator) -> DataFrame:
    df = _read(spark, found, operator, readRegisteredTimers="true")
    return df.select("key", F.col("expiration_timestamp_ms").alias(STATE))


def stored(spark: SparkSession, found: PlainCheckpoint, operator: StateOperator) -> AdoptableState:
    """Return what an operator has stored, as far as its schemas go, and the number of its timers.

    Raises:
        AdoptionError: Spark cannot read the state.
    """
    try:
        variables = {}
        key = None
        for variable in operator.variables:
            schema = _variable(spark, found, operator, variable).schema
            key = schema["key"].dataType
            variables[variable.name] = _record(variable, schema[STATE].dataType)
        timers = None
        if operator.time_mode.lower() not in ("", "none"):
            df = _timers(spark, found, operator)
            key, timers = key or df.schema["key"].dataType, df.count()
    except Exception as error:
        raise AdoptionError(
            f"the state of operator {operator.id} ({operator.name}) in {found.directory} cannot be adopted",
            "state that this Spark can read",
            str(error).strip().partition("\n")[0],
            "adopt with the version of PySpark that has written it, and with its state store's settings",
        ) from error
    assert isinstance(key, StructType | None)
    return AdoptableState(key or StructType(), variables, timers)


def _record(variable: StateVariable, dtype: Any) -> StateRecord:
    map_key = None
    if isinstance(dtype, MapType):
        map_key, dtype = to_json(dtype.keyType), dtype.valueType  # type: ignore[arg-type]
    elif isinstance(dtype, ArrayType):
        dtype = dtype.elementType
    if variable.expires:
        dtype = dtype[VALUE].dataType
    return StateRecord((to_json(dtype),), StateKind(variable.kind), map_key, 0 if variable.expires else None)


def convert(
    spark: SparkSession,
    found: PlainCheckpoint,
    operator: StateOperator,
    record: OperatorRecord,
    state: AdoptableState,
    mode: str,
    folder: Path,
) -> dict[tuple[str, int], Files]:
    """Return the snapshots of an operator's shards with the state of a ``transformWithState``.

    Every shard gets one, also if it holds no key: so none counts as new, for which an initial state would be loaded.

    Args:
        spark: the session.
        found: the checkpoint.
        operator: the ``transformWithState``.
        record: the operator that takes its state over.
        state: what ``stored`` has found.
        mode: the time mode of both.
        folder: a new directory that the driver and all tasks see under this path.

    Returns:
        The files of each shard, by uid and number.
    """
    folder.mkdir(parents=True)
    shards, time_mode = len(record.shards), TimeMode.read(mode or "None")
    tasks = default_tasks(spark, shards)
    files: dict[int, list[str]] = {}

    def take(df: DataFrame, name: str | None) -> None:
        function = AdoptedVariable(
            str(folder), record.uid, record.key_schema, name, record.states[name] if name else None, time_mode
        )
        rows, key = _with_key(df, record, state.key)
        written = keyed(rows, key, shards, tasks, function, WRITTEN, "adopted_state")
        for row in written.collect():
            files.setdefault(row.shard, []).append(row.path)

    for variable in operator.variables:
        if variable.name in record.states:
            take(_variable(spark, found, operator, variable), variable.name)
    if state.timers:
        take(_timers(spark, found, operator), None)
    return {
        (record.uid, number): _snapshot(
            f"{record.uid}/{number}", files.get(number, []), found.committed, folder / str(number)
        )
        for number in range(shards)
    }


def _with_key(df: DataFrame, record: OperatorRecord, stored_key: StructType) -> tuple[DataFrame, list[str]]:
    """Return rows with the operator's key columns in front of the state, and the names of these columns."""
    names = from_json(record.key_schema).names
    columns = [
        F.col(f"key.{quoted(was)}").alias(name) for was, name in zip(stored_key.names, names, strict=True)
    ]
    return df.select(*columns, STATE), names


def _snapshot(name: str, paths: list[str], batch: BatchId, folder: Path) -> Files:
    """Write a RocksDB with the entries in files, and return the files of its snapshot."""
    # Loaded here, because most drivers never open a database.
    from ...state.host.rocksdb import RocksDatabases
    from ...state.host.shard_snapshot import snapshot_files

    database = RocksDatabases(_MEMORY).open(name, folder / "db")
    try:
        database.write(read_entries(paths), batch)
        database.checkpoint(folder / "snapshot")
        return snapshot_files(folder / "snapshot")
    finally:
        database.close()
