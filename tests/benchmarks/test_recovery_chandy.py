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


def commit(folder: Path, run: str, batch: int) -> Path:
    """Have a run of the query commit a batch; return its commit log."""
    log = folder / "work" / "pipeline" / run / "checkpoint" / "commits"
    log.mkdir(parents=True, exist_ok=True)
    (log / str(batch)).touch()
    return log


def test_a_batch_has_committed_when_any_run_has_it_in_its_log(tmp_path: Path) -> None:
    place = Place(tmp_path, COMMIT_LOGS)
    assert not place.has_committed(0)
    commit(tmp_path, "1-totals", 0)
    commit(tmp_path, "2-totals", 12)
    assert [batch for batch in range(20) if place.has_committed(batch)] == [0, 12]


def test_runs_that_go_while_they_are_looked_at_have_committed_nothing(
    tmp_path: Path, going: Callable[[Path], None]
) -> None:
    commit(tmp_path, "1-totals", 0)
    going(tmp_path / "work" / "pipeline")
    assert not Place(tmp_path, COMMIT_LOGS).has_committed(0)
    assert list((tmp_path / "work").iterdir()) == []


# --- the end ------------------------------------------------------------------------------------------------


class Silent:
    """A driver that runs, and tells nothing."""

    def __init__(self, arguments: list[str], *, folder: Path, **_: Any) -> None:
        self.is_alive = True
        commit(folder, "1-totals", 0)

    def await_event(self, name: str) -> None:
        raise TimeoutError(f"nothing was said of {name}")

    def kill(self) -> float:
        self.is_alive = False
        return 0.0

    def __exit__(self, *_: object) -> None:
        self.kill()


@pytest.fixture
def folder(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    monkeypatch.setattr(chandy, "Life", Silent)
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
