"""Rows as Parquet files in the pipeline's own store."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest

from chandy.coordinator.sinks.two_phase import staged
from chandy.coordinator.sinks.two_phase.contract import Epoch, Staged, WriteContext
from chandy.coordinator.sinks.two_phase.staged import StagedRows
from chandy.storage.backends.open import open_store
from chandy.storage.checkpoints.manifest import EpochRecord, Handle
from chandy.storage.errors import DamagedError, ObjectMissingError

from .sqlite_sink import SqliteSink


@pytest.fixture
def store(tmp_path: Path) -> str:
    return f"file://{tmp_path}/store/"


def write(store: str, *batches: list[int], partition: int = 0) -> Staged:
    sink = SqliteSink(Path("unused.db"), ("n",))
    records = (pa.RecordBatch.from_pydict({"n": pa.array(some, pa.int64())}) for some in batches)
    return sink.write(records, WriteContext(store, "staged/q/", 7, partition))


def epoch(store: str, *found: Staged) -> Epoch:
    files = tuple(file for one in found for file in one.files)
    return Epoch(EpochRecord(1, sum(one.rows for one in found), Handle(files)), store)


def numbers(epoch: Epoch) -> list[list[int]]:
    return [table.column("n").to_pylist() for table in StagedRows(epoch).tables()]


def test_rows_come_back_as_they_were_file_after_file(store: str) -> None:
    one, two = write(store, [1, 2], [3]), write(store, [4], partition=1)
    assert (one.rows, two.rows) == (3, 1)
    assert numbers(epoch(store, one, two)) == [[1, 2, 3], [4]]
    assert epoch(store, one, two).rows == 4


def test_a_task_begins_another_file_when_one_is_large_enough(
    store: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Eight bytes for a number.
    monkeypatch.setattr(staged, "FILE_BYTES", 32)
    found = write(store, [1, 2], [3, 4], [5, 6, 7, 8, 9], [], [10])
    assert found.rows == 10
    assert numbers(epoch(store, found)) == [[1, 2, 3, 4], [5, 6, 7, 8, 9], [10]]
    assert len({file.key for file in found.files}) == 3


def test_a_partition_without_rows_leaves_no_file(store: str) -> None:
    assert write(store) == write(store, [], []) == Staged(0)
    assert open_store(store).list() == []
    assert numbers(epoch(store)) == []


def test_two_attempts_at_a_task_share_no_file(store: str) -> None:
    first, second = write(store, [1]), write(store, [1])
    assert first.files[0].key != second.files[0].key
    assert sorted(open_store(store).list()) == sorted(one.files[0].key for one in (first, second))
    assert all(one.files[0].key.startswith("staged/q/7-0-0-") for one in (first, second))


def test_damaged_bytes_are_found_and_named_before_any_of_their_rows(store: str) -> None:
    good, bad = write(store, [1]), write(store, [2])
    (file,) = bad.files
    data = bytearray(open_store(store).read(file.key))
    data[len(data) // 2] ^= 1
    open_store(store).write(file.key, bytes(data))
    tables = StagedRows(epoch(store, good, bad)).tables()
    assert next(tables).column("n").to_pylist() == [1]
    with pytest.raises(DamagedError, match=file.sha256) as caught:
        next(tables)
    assert caught.value.key == file.key


def test_a_file_that_was_cut_off_is_damaged(store: str) -> None:
    found = write(store, [1, 2, 3])
    (file,) = found.files
    open_store(store).write(file.key, open_store(store).read(file.key)[:-1])
    with pytest.raises(DamagedError, match=f"found {file.size - 1} bytes"):
        numbers(epoch(store, found))


def test_a_file_that_is_gone_is_named(store: str) -> None:
    found = write(store, [1])
    open_store(store).delete(found.files[0].key)
    with pytest.raises(ObjectMissingError, match=found.files[0].key):
        numbers(epoch(store, found))
