"""The records of what was staged, in a query's working directory."""

from __future__ import annotations

from pathlib import Path

import pytest

from chandy.coordinator.sinks.two_phase.contract import Staged
from chandy.coordinator.sinks.two_phase.staging import (
    RECORDS,
    drop_records,
    read_digest,
    read_records,
    write_digest,
    write_record,
)
from chandy.storage.checkpoints.batch_record import Digest
from chandy.storage.checkpoints.manifest import FileRef

ONE = Staged(3, (FileRef("0.parquet", "staged/q/0.parquet", 10, "ab"),), "note")
TWO = Staged(0, (), "only a note")


def test_a_record_says_what_was_staged_of_each_batch(tmp_path: Path) -> None:
    write_record(tmp_path, 4, [ONE, TWO])
    write_record(tmp_path, 5, [])
    assert read_records(tmp_path, 3, 5) == {4: (ONE, TWO), 5: ()}
    assert read_records(tmp_path, 4, 5) == {5: ()}
    assert read_records(tmp_path, 5, 5) == {}


def test_the_record_of_a_batch_that_runs_again_is_replaced(tmp_path: Path) -> None:
    write_record(tmp_path, 4, [ONE])
    write_record(tmp_path, 4, [TWO])
    assert read_records(tmp_path, 3, 4) == {4: (TWO,)}
    assert [path.name for path in (tmp_path / RECORDS).iterdir()] == ["4.json"]


def test_a_record_that_is_linked_elsewhere_stays_there_as_it_was(tmp_path: Path) -> None:
    """The directory of a run that resumes shares the files of the one before."""
    before, after = tmp_path / "before", tmp_path / "after"
    write_record(before, 4, [ONE])
    (after / RECORDS).mkdir(parents=True)
    (after / RECORDS / "4.json").hardlink_to(before / RECORDS / "4.json")
    write_record(after, 4, [TWO])
    assert read_records(before, 3, 4) == {4: (ONE,)}
    assert read_records(after, 3, 4) == {4: (TWO,)}


def test_records_of_a_completed_checkpoint_are_dropped(tmp_path: Path) -> None:
    for batch in (9, 10, 11):
        write_record(tmp_path, batch, [ONE])
    (tmp_path / RECORDS / "9.tmp").write_bytes(b"half")
    drop_records(tmp_path, 10)
    assert read_records(tmp_path, 10, 11) == {11: (ONE,)}
    assert read_records(tmp_path, 9, 11) is None
    drop_records(tmp_path / "never there", 10)


@pytest.mark.parametrize("content", [None, b"", b"{", b"[]", b'{"staged": 1}', b"\xff\xfe"])
def test_without_every_record_there_is_nothing_to_go_on_with(tmp_path: Path, content: bytes | None) -> None:
    for batch in (4, 5, 6):
        write_record(tmp_path, batch, [ONE])
    path = tmp_path / RECORDS / "5.json"
    if content is None:
        path.unlink()
    else:
        path.write_bytes(content)
    assert read_records(tmp_path, 3, 6) is None
    assert read_records(tmp_path, 5, 6) == {6: (ONE,)}


def test_a_directory_without_records_has_only_what_no_batch_needs(tmp_path: Path) -> None:
    assert read_records(tmp_path, 3, 3) == {}
    assert read_records(tmp_path, 3, 4) is None


def test_the_digests_of_the_latest_batches_are_kept(tmp_path: Path) -> None:
    write_digest(tmp_path, 4, Digest.of(1, 1))
    write_digest(tmp_path, 4, Digest.of(2, 2))
    write_digest(tmp_path, 5, Digest.of(3, 3))
    assert read_digest(tmp_path, 4) == Digest.of(2, 2)
    write_digest(tmp_path, 1004, Digest.of(4, 4))
    assert [read_digest(tmp_path, batch) for batch in (4, 5, 6)] == [None, Digest.of(3, 3), None]
    for path in (tmp_path / "digests").iterdir():
        path.write_bytes(path.read_bytes()[:-1])
    assert read_digest(tmp_path, 5) is None
