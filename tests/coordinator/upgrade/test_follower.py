"""What a shadow makes of batches that fail, that take long, and that cannot be run."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import attrs
import pyarrow as pa
import pytest
from typing_extensions import override

from chandy.coordinator.errors import GivenBatchInterruptedError
from chandy.coordinator.sources.errors import SourceLostError
from chandy.coordinator.upgrade import follower
from chandy.coordinator.upgrade.follower import Follower
from chandy.coordinator.upgrade.following import Stage
from chandy.coordinator.upgrade.leader import FollowedPipeline
from chandy.coordinator.upgrade.outputs import Watermarks
from chandy.coordinator.upgrade.rerun import BatchOutcome
from chandy.coordinator.upgrade.shadow import Shadow
from chandy.coordinator.verdict import Phase, ShadowVerdict
from chandy.coordinator.verdicts import read_verdict
from chandy.storage.checkpoints.batch_record import BatchRecord, BatchRecords, Digest
from chandy.storage.checkpoints.catalog import Catalog
from chandy.storage.checkpoints.locate import Located
from chandy.storage.checkpoints.manifest import Manifest, QueryRecord
from chandy.storage.ids import BatchId, CheckpointId

from ...builders import NO_FILES, MemoryStore, make_manifest
from ...waiting import eventually

ROWS = {"out": Digest.of(2, 7)}


def manifest(id: int) -> Manifest:
    """Checkpoint n has batches up to n."""
    return make_manifest(id, queries=(QueryRecord("q", BatchId(id), NO_FILES),), operators=())


class Leader(FollowedPipeline):
    """Two checkpoints with one batch in between."""

    @override
    def stages(self) -> list[Stage]:
        record = BatchRecord(BatchId(2), "planned", outputs=ROWS)
        records = {"q": BatchRecords(BatchId(1), (record,))}
        return [
            Stage(CheckpointId(1), {"q": BatchId(1)}, {"q": BatchRecords(BatchId(0))}),
            Stage(CheckpointId(2), {"q": BatchId(2)}, records),
        ]


@attrs.define
class Engine:
    """Runs a batch as it is told, once after the other, and stops when there is nothing to do."""

    store: MemoryStore
    runs: list[Callable[[], BatchOutcome]]
    restored: list[int] = attrs.field(factory=list)

    @property
    def start(self) -> Located:
        return Located(manifest(1), self.store)

    def await_queries(self, names: Sequence[str]) -> None:
        assert names == ("q",)

    def restore(self, located: Located) -> None:
        self.restored.append(located.manifest.id)

    def run(self, query: str, record: BatchRecord) -> BatchOutcome:
        return self.runs.pop(0)()

    def checkpoint(self) -> Located:
        return Located(manifest(102), MemoryStore())

    def rest(self, seconds: float) -> bool:
        return not self.runs


def told(store: MemoryStore) -> ShadowVerdict:
    found = read_verdict(store, "shadow")
    assert found is not None
    return found


def followed(
    *runs: Callable[[], BatchOutcome],
    store: MemoryStore | None = None,
    rows: Callable[[str], Iterator[pa.Table]] = lambda key: iter(()),
) -> tuple[Engine, ShadowVerdict, Exception | None]:
    """Follow a leader from its first checkpoint to the second one."""
    store = store or MemoryStore()
    for id in (1, 2):
        Catalog(store).commit(manifest(id))
    engine = Engine(store, list(runs))
    one = Follower.of(Shadow(), "p", Leader(Catalog(store)), rows, "life")
    try:
        one.conduct(engine)
    except Exception as error:  # noqa: BLE001 (the test looks at it)
        return engine, told(store), error
    return engine, told(store), None


def equal() -> BatchOutcome:
    return BatchOutcome(ROWS)


def failing(error: Exception) -> Callable[[], BatchOutcome]:
    def run() -> BatchOutcome:
        raise error

    return run


def test_a_batch_that_was_interrupted_runs_again_from_the_checkpoint_and_is_no_difference() -> None:
    away = GivenBatchInterruptedError("q", 2, "the disk is full")
    engine, found, error = followed(failing(away), failing(away), equal)
    assert error is None and engine.restored == [1, 1]
    assert (found.batches, found.equal, found.differing, found.skipped) == (1, 1, 0, 0)


def test_rows_that_would_be_late_are_a_difference_although_the_batch_gives_the_same() -> None:
    _, found, error = followed(lambda: BatchOutcome(ROWS, watermarks=Watermarks(7000, 9000)))
    assert error is None and found.differing == 1
    assert (found.findings[0].batch, found.findings[0].what) == (2, "the watermark")


def test_a_source_that_has_lost_the_data_ends_the_shadow_by_name() -> None:
    lost = SourceLostError("query 'q' cannot go on", "file 7", "none")
    engine, found, error = followed(failing(lost), equal)
    assert error is lost and engine.restored == []
    assert (found.phase, found.differing) == (Phase.FAILED, 0)
    assert found.because.startswith("SourceLostError: query 'q' cannot go on")


def test_what_is_told_is_true_while_a_batch_does_not_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(follower, "_LOOK_SECONDS", 0.01)
    monkeypatch.setattr(follower, "_STILL_SECONDS", 0.0)
    store, meanwhile = MemoryStore(), list[ShadowVerdict]()

    def run() -> BatchOutcome:
        eventually(lambda: "batch 2" in told(store).because, "what it does")
        meanwhile.append(told(store))
        return equal()

    _, found, error = followed(run, store=store)
    assert error is None
    assert [(one.phase, one.behind, one.because) for one in meanwhile] == [
        (Phase.FOLLOWS, 1, "batch 2 of query 'q' takes long")
    ]
    assert (found.phase, found.because, found.behind, found.equal) == (Phase.ENDED, "", 0, 1)


def test_that_a_batch_was_run_is_told_together_with_what_differs_in_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(follower, "_LOOK_SECONDS", 0.01)
    monkeypatch.setattr(follower, "_STILL_SECONDS", 0.0)
    store, meanwhile = MemoryStore(), list[ShadowVerdict]()

    def rows(key: str) -> Iterator[pa.Table]:
        # The rows of the batch are read to compare them. What is told meanwhile is told by another thread.
        at = told(store).updated_at
        eventually(lambda: told(store).updated_at > at, "that it goes on telling")
        meanwhile.append(told(store))
        yield pa.table({"n": [1]})

    wrong = BatchOutcome({"out": Digest.of(2, 8)}, rows=("rows",))
    _, found, error = followed(lambda: wrong, store=store, rows=rows)
    assert error is None
    assert [(one.stood, one.differing) for one in meanwhile] == [({"q": 1}, 0)]
    assert (found.stood, found.differing) == ({"q": 2}, 1)
