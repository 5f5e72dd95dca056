"""How the recovery benchmark follows Chandy's driver from outside, while runs come and go and processes die."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from benchmarks.lives import runtime
from benchmarks.recovery import chandy
from benchmarks.recovery.chandy import Chandy
from benchmarks.recovery.chandy_driver import COMMIT_LOGS
from benchmarks.recovery.query import Place
from benchmarks.recovery.scenario import Course
from benchmarks.stores import StoreAt

NOBODY = 2**31 - 1
"""A number that no process has."""


# --- commits ------------------------------------------------------------------------------------------------


def commit(folder: Path, run: str, batch: int, file: int) -> None:
    """Have a run of the query commit a batch that ends with a file."""
    directory = folder / "work" / "pipeline" / run / "checkpoint"
    for log in ("offsets", "commits"):
        (directory / log).mkdir(parents=True, exist_ok=True)
    (directory / "offsets" / str(batch)).write_text(f'v1\n{{}}\n{{"logOffset":{file}}}')
    (directory / "commits" / str(batch)).touch()


def test_a_file_has_been_processed_when_any_run_has_committed_a_batch_that_ends_there_or_later(
    tmp_path: Path,
) -> None:
    place = Place(tmp_path, COMMIT_LOGS)
    assert not place.has_committed(0)
    commit(tmp_path, "1-totals", batch=0, file=0)
    assert [file for file in range(20) if place.has_committed(file)] == [0]
    # Of files 8 to 12 two were taken in one batch.
    commit(tmp_path, "2-totals", batch=11, file=12)
    assert [file for file in range(20) if place.has_committed(file)] == list(range(13))


def test_runs_that_go_while_they_are_looked_at_have_committed_nothing(
    tmp_path: Path, going: Callable[[Path], None]
) -> None:
    commit(tmp_path, "1-totals", batch=0, file=0)
    going(tmp_path / "work" / "pipeline")
    assert not Place(tmp_path, COMMIT_LOGS).has_committed(0)
    assert list((tmp_path / "work").iterdir()) == []


# --- the end ------------------------------------------------------------------------------------------------


class SilentDriver:
    """A driver that runs, and tells nothing."""

    def __init__(self, arguments: list[str], *, folder: Path, **_: Any) -> None:
        self.is_alive = True
        commit(folder, "1-totals", batch=0, file=0)

    def await_event(self, name: str) -> None:
        raise TimeoutError(f"nothing was said of {name}")

    def kill(self) -> float:
        self.is_alive = False
        return 0.0

    def __exit__(self, *_: object) -> None:
        self.kill()


@pytest.fixture
def folder(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    monkeypatch.setattr(chandy, "Life", SilentDriver)
    made = Path(tempfile.mkdtemp(prefix="chandy-"))
    yield made / "chandy"
    shutil.rmtree(made)


@pytest.mark.parametrize("log", [None, "starting", f"serving host=h pid={NOBODY}"])
def test_a_run_that_is_given_up_fails_with_its_reason_whether_there_is_a_host_or_not(
    folder: Path, log: str | None
) -> None:
    with (
        pytest.raises(TimeoutError, match="nothing was said of checkpoint"),
        closing(Chandy(Course(10), folder, StoreAt("file:///nowhere"))) as contestant,
    ):
        if log is not None:
            place = runtime(folder) / "meet" / "id"
            place.mkdir(parents=True)
            (place / "host.log").write_text(log)
        contestant.fill()
    assert not folder.exists()
