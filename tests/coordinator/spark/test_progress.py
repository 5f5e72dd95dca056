"""Working directories that are written by hand in Spark's format. The integration tests use Spark's own."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from chandy.coordinator.errors import IncompleteDirectoryError
from chandy.coordinator.spark import progress


@pytest.fixture
def work(tmp_path: Path) -> Path:
    folder = tmp_path / "work"
    write(folder / "metadata", '{"id":"0c7d"}')
    for batch in range(5):
        write(folder / "offsets" / str(batch), offsets(batch))
        write(folder / "offsets" / f".{batch}.crc")
        write(folder / "sources" / "0" / str(batch))
    for batch in range(4):
        write(folder / "commits" / str(batch))
    return folder


def offsets(entry: int, *, version: int = 1, name: str = "") -> str:
    """The offset log's file of a batch that ends with an entry of the log of a file source."""
    return f'v{version}\n{{"batchWatermarkMs":0}}\n{name}{{"logOffset":{entry}}}'


def write(path: Path, content: str = "x") -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(content)


def test_the_logs_tell_the_newest_batches(work: Path, tmp_path: Path) -> None:
    assert (progress.newest_planned(work), progress.newest_committed(work)) == (4, 3)
    assert progress.is_committed(work, 3)
    assert not progress.is_committed(work, 4)
    assert (progress.newest_planned(tmp_path / "none"), progress.newest_committed(tmp_path / "none")) == (
        -1,
        -1,
    )


def test_the_id_of_a_query_is_known_once_it_was_started(work: Path, tmp_path: Path) -> None:
    assert progress.query_id(work) == "0c7d"
    assert progress.query_id(tmp_path) is None


def test_the_least_files_of_a_batch_are_named(work: Path) -> None:
    files = progress.files_at(work, 2)
    assert list(files) == [
        "commits/2",
        "metadata",
        "offsets/1",
        "offsets/2",
        "sources/0/0",
        "sources/0/1",
        "sources/0/2",
    ]
    assert all(path.is_file() for path in files.values())


@pytest.mark.parametrize(
    ("version", "source", "name"), [(1, "0", ""), (2, "0", "0:"), (2, "clicks", "clicks:")]
)
def test_a_source_goes_as_far_as_its_offset_says_though_it_is_ahead_of_the_batch(
    work: Path, version: int, source: str, name: str
) -> None:
    # Killed before batch 2 was planned, the query has taken entries 2 and 3 in one batch.
    (work / "sources" / "0").rename(work / "sources" / source)
    write(work / "offsets" / "2", offsets(3, version=version, name=name))
    sources = [name for name in progress.files_at(work, 2) if name.startswith("sources")]
    assert sources == [f"sources/{source}/{entry}" for entry in range(4)]


def test_a_source_without_a_log_of_files_goes_by_the_batch(work: Path) -> None:
    write(work / "offsets" / "2", 'v1\n{"batchWatermarkMs":0}\n-\n1234')
    sources = [name for name in progress.files_at(work, 2) if name.startswith("sources")]
    assert sources == ["sources/0/0", "sources/0/1", "sources/0/2"]


def test_before_the_first_batch_nothing_is_needed(work: Path) -> None:
    assert progress.files_at(work, -1) == {}


def test_the_batch_before_is_the_last_that_was_logged(work: Path) -> None:
    (work / "offsets" / "2").unlink()
    assert "offsets/1" in progress.files_at(work, 3)


def test_a_batch_that_has_not_committed_is_refused(work: Path) -> None:
    with pytest.raises(IncompleteDirectoryError) as caught:
        progress.files_at(work, 4)
    assert caught.value.found == "no commits/4"
    assert "minBatchesToRetain" in str(caught.value)


def test_held_files_outlive_those_that_were_listed(work: Path, tmp_path: Path) -> None:
    held = progress.hold(lambda: progress.files_at(work, 2), tmp_path / "held")
    names = set(progress.files_at(work, 2))
    for path in list(work.rglob("*")):
        if path.is_file():
            path.unlink()
    assert set(held) == names
    assert held["metadata"].read_text() == '{"id":"0c7d"}'


def test_a_listing_is_repeated_when_a_clean_up_came_between(work: Path, tmp_path: Path) -> None:
    log = work / "sources" / "0"

    def compact() -> None:
        (log / "0").unlink()
        (log / "1").rename(log / "1.compact")

    late = iter([compact, lambda: None])

    def listing() -> progress.Files:
        files = progress.files_at(work, 2)
        clean_up: Callable[[], None] = next(late)
        clean_up()
        return files

    held = progress.hold(listing, tmp_path / "held")
    assert "sources/0/0" not in held
    assert not (tmp_path / "held" / "sources" / "0" / "0").exists()
    assert held["sources/0/1.compact"].exists()


def test_a_log_of_a_file_source_with_a_gap_is_never_kept(work: Path) -> None:
    """Spark could not start from it."""
    (work / "sources" / "0" / "1").unlink()
    with pytest.raises(IncompleteDirectoryError, match="sources/0/1"):
        progress.files_at(work, 2)


def test_what_is_gone_for_good_is_an_error(work: Path, tmp_path: Path) -> None:
    (work / "commits" / "2").unlink()
    with pytest.raises(IncompleteDirectoryError):
        progress.hold(lambda: progress.files_at(work, 2), tmp_path / "held")
    with pytest.raises(IncompleteDirectoryError, match=r"never.* 5 times in a row"):
        progress.hold(lambda: {"a": work / "never"}, tmp_path / "held")
