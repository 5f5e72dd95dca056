"""What of a pipeline's events goes into the journal, and what a store that fails does to that."""

from __future__ import annotations

from pathlib import Path

import pytest
from typing_extensions import override

from chandy.coordinator.checkpoint import Checkpoint
from chandy.coordinator.monitor.journaling import JournalWriter, entry_of
from chandy.coordinator.protocol.reasons import Reason
from chandy.coordinator.recovery.metrics import RecoveryMetrics
from chandy.coordinator.recovery.pipeline_events import (
    CheckpointCompleted,
    CheckpointFailed,
    HostReplaced,
    PipelineEnded,
    PipelineEvent,
    Recovered,
    Recovering,
    StartRefused,
)
from chandy.storage.backends.local import LocalStore
from chandy.storage.checkpoints.journal import Journal, JournalEntry, read_journal
from chandy.storage.checkpoints.manifest import CheckpointKind
from chandy.storage.errors import FencedError, StoreFailedError

DONE = Checkpoint(3, CheckpointKind.MANUAL, "file:///s/p", 10.0, 12.5, 1000, 10, 2, {"q": 7})


@pytest.mark.parametrize(
    ("event", "expected"),
    [
        (CheckpointCompleted(at=1.0, checkpoint=DONE), None),
        (PipelineEnded(at=1.0, error=None), None),
        (
            CheckpointFailed(at=1.0, id=7, reason=Reason.EXPIRED, detail="slow"),
            ("checkpoint failed", "EXPIRED: slow", 7),
        ),
        # A request that was refused: there may be one every second.
        (CheckpointFailed(at=1.0, id=None, reason=Reason.EXPIRED, detail="slow"), None),
        (StartRefused(at=1.0, why="no such state"), ("start refused", "no such state", None)),
        (Recovering(at=1.0, cause="boom", in_place=True), ("restarts in place", "boom", None)),
        (Recovering(at=1.0, cause="boom", in_place=False), ("goes back", "boom", None)),
        (
            HostReplaced(at=1.0, why="host a is gone", promoted=2, reopened=1),
            ("has lost a host", "host a is gone; shards from standbys: 2, from changelogs: 1", None),
        ),
        (
            Recovered(at=1.0, query="q", recovery=RecoveryMetrics("boom", 4, False, 1.0, 1, 0, 0, 0, 1.5)),
            ("has recovered", "query q, in 2.5 s", 4),
        ),
        (PipelineEnded(at=1.0, error=ValueError("boom")), ("failed for good", "boom", None)),
    ],
)
def test_failures_and_recoveries_are_written_down(
    event: PipelineEvent, expected: tuple[str, str, int | None] | None
) -> None:
    found = entry_of(event)
    assert (found and (found.at, found.what, found.says, found.checkpoint)) == (expected and (1.0, *expected))


def test_a_successor_is_no_failure() -> None:
    found = entry_of(PipelineEnded(at=1.0, error=FencedError("file:///s/p", 3, 4, "as it has claimed")))
    assert found is not None
    assert found.what == "taken over"


class UnwritableStore(LocalStore):
    fails = False

    @override
    def write(self, key: str, data: bytes) -> None:
        if self.fails:
            raise StoreFailedError(self.uri, "write", key, "disk full", transient=False)
        super().write(key, data)


def test_what_could_not_be_written_is_written_with_the_next(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    store = UnwritableStore(tmp_path / "p")
    Journal(store, 4).add(JournalEntry(at=1.0, what="goes back", says="earlier"))
    writer = JournalWriter.of(store, 5)
    UnwritableStore.fails = True
    try:
        for number in (2, 3):
            writer.take(Recovering(at=float(number), cause=f"boom {number}", in_place=True))
    finally:
        UnwritableStore.fails = False
    assert caplog.text.count("the journal cannot be written") == 1
    assert [one.at for one in writer.known()] == [1.0, 2.0, 3.0]
    assert [one.at for one in read_journal(store)] == [1.0]
    writer.take(CheckpointFailed(at=4.0, id=1, reason=Reason.EXPIRED, detail=""))
    assert [one.at for one in read_journal(store)] == [1.0, 2.0, 3.0, 4.0]
    assert writer.known() == read_journal(store)
    assert [one.generation for one in writer.known()] == [4, 5, 5, 5]
    # Its own entries are in the store, too.
    late = JournalWriter.of(store, 6)
    late.take(Recovering(at=5.0, cause="boom", in_place=True))
    assert late.known() == read_journal(store)
