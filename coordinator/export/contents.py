"""What an export has, as values: this is also what its `export.json` says."""

from __future__ import annotations

from pathlib import Path

import attrs

from ...storage.ids import BatchId


@attrs.frozen
class ExportedQuery:
    """A query of an export."""

    name: str
    batch: BatchId
    """The last batch whose effects belong to the checkpoint; -1: it had run none."""
    goes_on: bool
    """Whether plain Spark goes on with the next batch. If not, it begins with batch 0 and an initial state."""
    directory: Path | None
    """The checkpoint directory for plain Spark; None if it needs only a new one."""
    sink_log: Path | None = None
    """The log of Spark's file sink at the checkpoint; None if the query has another sink, or had run no batch."""
    notes: tuple[str, ...] = ()
    """What its user must know, a sentence or more each."""


@attrs.frozen
class ExportedOperator:
    """The state of one of Chandy's operators, as Parquet files with one row a key."""

    uid: str
    query: str
    directory: Path
    keys: int
    """The number of keys, which is that of the rows."""
    key_columns: tuple[str, ...]
    columns: dict[str, str]
    """The columns of the state variables by name, and that of the timers under ``$timers``."""


@attrs.frozen
class Exported:
    """An export: what is in its directory."""

    directory: Path
    pipeline: str
    checkpoint: int
    """Id of the checkpoint or savepoint."""
    versions: dict[str, str]
    """Versions of chandy, pyspark, rocksdict and python that wrote the checkpoint."""
    queries: tuple[ExportedQuery, ...]
    operators: tuple[ExportedOperator, ...]
