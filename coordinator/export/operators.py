"""Writes the state of Chandy's operators as Parquet files, one row a key."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Final

import pyarrow.parquet as pq

from ...state.reader.by_key import StoredKeys
from ...storage.checkpoints.manifest import OperatorRecord
from ...storage.checkpoints.restore import restore_files
from ...storage.store import Store
from .contents import ExportedOperator

STATE: Final = "state"
"""The folder with the state, a folder for each operator."""
_SCRATCH: Final = ".shard"


def write_operator(store: Store, operator: OperatorRecord, folder: Path, final: Path) -> ExportedOperator:
    """Write the state of an operator: a file for each shard that holds something, at least one.

    Args:
        store: has the operator's snapshots.
        operator: the operator at the checkpoint.
        folder: the export's folder for now.
        final: what it will be.

    Raises:
        DamagedError, ObjectMissingError: a file is not as it was written.
        StateTypeError: the stored bytes do not fit the records of the states.
    """
    stored = StoredKeys(operator)
    place = Path(STATE) / operator.uid
    (folder / place).mkdir(parents=True)
    keys = 0
    for number, handle in enumerate(operator.shards):
        # Readers learn the columns from the first file, whether it has rows or not.
        if handle is None and number > 0:
            continue
        with pq.ParquetWriter(folder / place / f"shard-{number:05}.parquet", stored.schema) as writer:
            if handle is None:
                continue
            restored = folder / _SCRATCH
            try:
                restore_files(store, handle, restored)
                for batch in stored.batches(restored):
                    writer.write_batch(batch)
                    keys += batch.num_rows
            finally:
                shutil.rmtree(restored, ignore_errors=True)
    key_columns = tuple(stored.schema.names[: len(stored.schema.names) - len(stored.columns)])
    return ExportedOperator(operator.uid, operator.query, final / place, keys, key_columns, stored.columns)
