from __future__ import annotations

import threading
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest
from typing_extensions import override

from chandy.coordinator.config import CheckpointConfig
from chandy.coordinator.errors import ArgumentError
from chandy.coordinator.leadership.heir import Inheritance
from chandy.coordinator.listening import Page
from chandy.coordinator.permit import Permit
from chandy.coordinator.recovery.given_batches import BatchSupervisor
from chandy.coordinator.sinks.two_phase.contract import WriteContext
from chandy.coordinator.sources.query_sources import QuerySources
from chandy.coordinator.sources.source import Source, Standing
from chandy.coordinator.upgrade import rerun as module
from chandy.coordinator.upgrade.nowhere import Nowhere, taken
from chandy.coordinator.upgrade.requested import instead_of, requested
from chandy.coordinator.upgrade.rerun import ReadSources, Rerun
from chandy.coordinator.upgrade.unreplicated import Unreplicated
from chandy.storage.backends.open import open_store
from chandy.storage.checkpoints.catalog import Catalog
from chandy.storage.checkpoints.fencing import Claim
from chandy.storage.checkpoints.locate import Located
from chandy.storage.checkpoints.manifest import CheckpointKind
from chandy.storage.checkpoints.pins import pinned
from chandy.storage.ids import BatchId

from ...builders import MemoryStore, make_manifest
from ...waiting import DEADLINE, eventually


def rerun(tmp_path: Path) -> Rerun:
    located = Located(make_manifest(7), open_store(str(tmp_path / "store")))
    return Rerun(located, str(tmp_path / "own"), lambda _: None)


def test_one_coordinator_of_the_pipeline_runs_batches_and_no_other_one_is_made_meanwhile(
    tmp_path: Path,
) -> None:
    wanted = rerun(tmp_path)
    assert requested("p") is None
    with instead_of("p", wanted):
        with pytest.raises(ArgumentError, match="one of pipeline 'other'"):
            requested("other")
        assert requested("p") is wanted
        with pytest.raises(ArgumentError, match="a second one"):
            requested("p")
    assert requested("p") is None


def test_all_that_is_needed_is_pinned_until_the_end(tmp_path: Path) -> None:
    store = open_store(str(tmp_path / "store"))
    for id in (1, 2, 3):
        Catalog(store).commit(make_manifest(id))
    first, second, third = (Located(make_manifest(id), store) for id in (1, 2, 3))
    wanted = Rerun(first, str(tmp_path / "own"), lambda _: None, needed=[second, third])
    point = wanted.point()
    assert (point.manifest.id, point.is_savepoint, point.root) == (1, True, store.uri)
    assert pinned(store) == {1, 2, 3}
    wanted.release()
    assert not pinned(store)
    half = Located(
        make_manifest(4, kind=CheckpointKind.SAVEPOINT), open_store(str(tmp_path / "store/savepoints/half"))
    )
    wanted = Rerun(half, str(tmp_path / "own"), lambda _: None, needed=[half, third])
    assert wanted.point().root == half.store.uri
    assert pinned(store) == {3}


def test_a_coordinator_that_could_not_be_made_ends_what_it_was_to_do(tmp_path: Path) -> None:
    wanted = rerun(tmp_path)
    wanted.close()
    wanted.release()


def test_a_stop_does_not_wait_for_one_that_is_about_to_lead_and_waits_for_that_stop(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "_END_SECONDS", 2 * DEADLINE)
    stopped, begun, led = threading.Event(), threading.Event(), list[bool]()

    def conduct(one: Rerun) -> None:
        one.inherited = Inheritance(Claim(2, "shadow", 0.0), None, "life", make_manifest(7))

    def lead(_: Inheritance) -> None:
        begun.set()
        led.append(stopped.wait(DEADLINE))

    wanted = Rerun(Located(make_manifest(7), MemoryStore()), str(tmp_path), conduct)
    own: Any = SimpleNamespace(catalog=None)
    nothing: Any = SimpleNamespace()
    wanted.begin(object.__new__(BatchSupervisor), nothing, own, nothing, lead)
    assert begun.wait(DEADLINE)
    wanted.close()
    stopped.set()
    eventually(lambda: led)
    assert led == [True]


def test_what_the_program_tells_others_it_does_not_tell(tmp_path: Path) -> None:
    given = CheckpointConfig(
        page=Page("127.0.0.1:0"), on_event=print, work_dir="hdfs://there/x", traces=True, standbys=1
    )
    own = rerun(tmp_path).config(given)
    assert (own.page, own.on_event, own.work_dir, own.traces, own.standbys) == (None, None, None, False, 0)
    assert (own.interval, own.savepoints.every) == (None, None)
    assert rerun(tmp_path).permit(Permit(claim="s3://savepoint")).claim is None


def test_sources_are_checked_and_told_nothing(tmp_path: Path) -> None:
    class Told(Source):
        checked = 0

        @override
        def check(self, standing: Standing) -> None:
            self.checked += 1

        @override
        def completed(self, offset: str) -> None:
            raise AssertionError("nobody is to be told")

        @override
        def close(self) -> None:
            return

    source = Told()
    for name, text in {"offsets/0": 'v1\n{}\n{"at": 1}', "commits/0": "v1\n{}"}.items():
        (tmp_path / name).parent.mkdir()
        (tmp_path / name).write_text(text)
    with pytest.raises(AssertionError):
        QuerySources({"0": source}).completed(tmp_path, BatchId(0))
    ReadSources({"0": source}).completed(tmp_path, BatchId(0))
    ReadSources({"0": source}).check(tmp_path)
    assert source.checked == 1


@pytest.mark.parametrize("keeps", [True, False])
def test_a_sink_that_writes_nowhere_has_the_digest_of_its_rows_and_the_rows_if_they_are_kept(
    tmp_path: Path, keeps: bool
) -> None:
    sink = Nowhere("files", str(tmp_path) if keeps else None)
    rows = [pa.record_batch({"k": ["a", "b"], "v": [1, 2]}), pa.record_batch({"k": ["c"], "v": [3]})]
    context = WriteContext(str(tmp_path / "store"), "staged/q/", 4, 0)
    together = taken([sink.write(iter(rows), context)])
    apart = taken([sink.write(iter([one]), context) for one in reversed(rows)])
    assert together[0] == apart[0]
    assert (together[0].rows, bool(together[1])) == (3, keeps)
    assert all((tmp_path / key).exists() for key in together[1])
    assert not (tmp_path / "store").exists()


def test_a_replica_of_a_program_whose_batches_run_again_follows_nothing() -> None:
    replica: Any = Unreplicated("copy", "totals", None, None)
    assert replica.catch_up() == 0
    assert replica.is_stopped and not replica.status.is_active
    replica.stop()
    replica.drop()
