"""A coordinator hands its pipeline over, or leads on what it has run as a shadow: its queries stay what they are."""

from __future__ import annotations

from pathlib import Path

import attrs
import pytest

from chandy.coordinator.coordinator import CheckpointCoordinator
from chandy.coordinator.errors import WriterError
from chandy.coordinator.leadership import offering
from chandy.coordinator.leadership.heir import Heir, Inheritance
from chandy.coordinator.protocol.life import LifePhase
from chandy.coordinator.query_starter import QueryRequest
from chandy.coordinator.supervised_run import Exit
from chandy.coordinator.upgrade.rerun import Rerun
from chandy.coordinator.upgrade.shadow import Shadow
from chandy.storage.backends.local import LocalStore
from chandy.storage.checkpoints.catalog import Catalog
from chandy.storage.checkpoints.layout import manifest_key, pin_key, shadow_folder
from chandy.storage.checkpoints.manifest import Manifest
from chandy.storage.checkpoints.offers import asked
from chandy.storage.checkpoints.pins import pins, reader_of
from chandy.storage.errors import (
    ChandyError,
    DamagedCheckpointError,
    FencedError,
    NothingHereError,
    StoreFailedError,
)
from chandy.storage.ids import BatchId, CheckpointId

from ..waiting import DEADLINE, eventually
from .stand_in_pipeline import Coordinated, OtherThread, cluster, made
from .stand_in_pipeline import pipeline as pipeline

ITS = {reader_of("next"): (1,)}
"""The pins of the shadow that asks."""


def catalog_of(coordinator: CheckpointCoordinator) -> Catalog:
    return coordinator._taken.catalog


def inherited(pipeline: Coordinated) -> Inheritance:
    """What a coordinator leads on with that has run its own pipeline until now, as if it had been the shadow of it."""
    catalog = catalog_of(pipeline.coordinator)
    taken = catalog.read(pipeline.coordinator.checkpoint().result(DEADLINE).id)
    for key in sorted(taken.keys()):
        catalog.store.write(shadow_folder("life") + key, catalog.store.read(key))
    catalog.store.write(shadow_folder("life") + "left", b"")
    claim = catalog.claim_after(catalog.newest_generation(), "shadow", 0.0)
    assert claim is not None
    return Inheritance(claim, None, "life", taken)


def test_who_waits_for_a_query_of_a_shadow_waits_for_it_when_it_leads(pipeline: Coordinated) -> None:
    query = pipeline.start("q")
    waits = OtherThread(query.awaitTermination)
    given = inherited(pipeline)
    seen: list[object] = []
    pipeline.on_start = lambda: seen.append((pipeline.coordinator.queries, query.isActive))
    pipeline.coordinator._lead(given)
    # Whoever looks meanwhile, as `run` does, does not see that all queries have ended.
    assert seen == [((query,), True)]
    (run, again) = pipeline.runs
    assert run.stopped.is_set() and not again.stopped.is_set()
    assert pipeline.coordinator.queries == (query,) and query.isActive and not waits.ended
    assert not pipeline.ends, "it goes on"
    assert pipeline.coordinator.life.phase is LifePhase.RUNNING
    restored = pipeline.coordinator.restored
    assert restored is not None and restored.id == given.state.id + 1, "the graft"
    assert pipeline.coordinator.checkpoint().result(DEADLINE).id == restored.id + 1
    left = catalog_of(pipeline.coordinator).store.list(shadow_folder("life"))
    assert shadow_folder("life") + "left" not in left
    query.stop()
    assert waits.end().error is None


def test_a_shadow_that_cannot_lead_says_so_to_who_waits_for_its_queries(
    pipeline: Coordinated, monkeypatch: pytest.MonkeyPatch
) -> None:
    query = pipeline.start("q")
    waits = OtherThread(query.awaitTermination)
    given = inherited(pipeline)
    # Another one was faster, by what it has heard of the claim.
    catalog_of(pipeline.coordinator).claim("a standby", 0.0)
    with pytest.raises(FencedError):
        pipeline.coordinator._lead(given)
    assert isinstance(waits.end().error, FencedError)
    pipeline.coordinator.stop()
    (end,) = pipeline.ends
    assert not query.isActive and isinstance(end.error, FencedError)


def test_what_a_shadow_would_lead_with_and_nobody_can_read_is_named_with_what_to_restore_instead(
    pipeline: Coordinated, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    query = pipeline.start("q")
    waits, given = OtherThread(query.awaitTermination), inherited(pipeline)
    commit = Catalog.commit

    def damaged(catalog: Catalog, manifest: Manifest) -> None:
        commit(catalog, manifest)
        key = manifest_key(manifest.id)
        flipped = bytes([catalog.store.read(key)[0] ^ 1]) + catalog.store.read(key)[1:]
        catalog.store.write(key, flipped)

    with monkeypatch.context() as patch:
        patch.setattr(Catalog, "commit", damaged)
        with pytest.raises(DamagedCheckpointError) as raised:
            pipeline.coordinator._lead(given)
    assert raised.value.key == manifest_key(CheckpointId(given.state.id + 1))
    assert raised.value.intact == given.state.id, "the last checkpoint of the driver before"
    assert waits.end().error is raised.value
    pipeline.coordinator.stop()
    again = made(cluster(), tmp_path, restore=str(raised.value.intact))
    assert again.restored is not None and again.restored.id == given.state.id
    again.stop(timeout="1 s")


def handed_over(pipeline: Coordinated, seconds: float, passed: int = 1000, keep_old: float = 0.0) -> Heir:
    """Ask the leader, as a shadow that has passed the checkpoints up to one."""
    catalog = catalog_of(pipeline.coordinator)
    # As every shadow, it keeps a checkpoint of its leader.
    catalog.store.write(pin_key(reader_of("next"), CheckpointId(1)), b"")
    pipeline.coordinator._parts.recording.look()
    heir = Heir(catalog, "life", seconds, "next", keep_old)
    heir.ask(catalog.newest_generation(), CheckpointId(passed))
    return heir


def claimed(heir: Heir) -> Manifest:
    """Have the shadow claim what it is offered, and lead; return the last checkpoint of the driver before."""
    catalog, offer = heir.catalog, heir.offered()
    assert offer is not None
    last = catalog.read(offer.checkpoint)
    given = heir.claim(last, 0.0)
    assert given is not None
    first = catalog.start(given.claim).next_id
    # What it leads with, and the first one of its own.
    for id in (first, first + 1):
        catalog.commit(attrs.evolve(last, id=CheckpointId(id), generation=2))
    return last


@pytest.mark.parametrize("comes", [True, False])
def test_batches_go_on_until_the_shadow_has_come_near(pipeline: Coordinated, comes: bool) -> None:
    pipeline.start("q")
    heir = handed_over(pipeline, 0.0, passed=0)
    looks = OtherThread(pipeline.coordinator._offering.look)
    eventually(lambda: catalog_of(pipeline.coordinator).list_ids() or looks.ended, "a checkpoint")
    (run,) = pipeline.runs
    assert not run.stopped.is_set() and heir.offered() is None and not looks.ended
    if comes:
        heir.has_passed(CheckpointId(1000))
    else:
        heir.give_up()
    assert looks.end().error is None
    assert run.stopped.is_set() == comes


@pytest.mark.parametrize(
    "case", ["is kept", "leads again", "is not kept", "cannot follow", "lost to another"]
)
def test_a_leader_stands_still_until_it_sees_the_claim_and_follows_who_has_asked(
    case: str, pipeline: Coordinated, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def prepared(rerun: Rerun, request: QueryRequest) -> QueryRequest:
        if case == "cannot follow":
            raise WriterError("it cannot run again", "a sink", "a function")
        return request

    monkeypatch.setattr(Rerun, "prepared", prepared)
    coordinator, catalog = pipeline.coordinator, catalog_of(pipeline.coordinator)
    query = pipeline.start("q")
    keep_old = 0.0 if case == "is not kept" else DEADLINE
    waits, heir = OtherThread(query.awaitTermination), handed_over(pipeline, DEADLINE, keep_old=keep_old)
    looks = OtherThread(coordinator._offering.look)
    eventually(lambda: heir.offered() or looks.ended, "an offer")
    assert pipeline.runs[0].stopped.is_set() and query.isActive
    offer = heir.offered()
    assert offer is not None and catalog.latest() is not None
    kept = {"shadow-before-next": (offer.checkpoint,)} if keep_old else {}
    assert pins(catalog.store) == ITS | kept
    if case == "lost to another":
        catalog.claim("another", 0.0)
    else:
        last = claimed(heir)
    assert looks.end().error is None
    if case in ("is kept", "leads again"):
        assert query.isActive and coordinator.life.phase is LifePhase.RUNNING and not waits.ended
        assert coordinator.verdict is not None and coordinator.verdict.shadow == "before-next"
        assert not pipeline.ends, "it goes on"
        assert coordinator._rerun.exit(Exit.DONE) is Exit.FENCED, "its program must not start again"
        assert not [one for one in caplog.records if one.levelname == "ERROR"], "nothing has failed"
    if case == "leads again":
        state = catalog_of(coordinator).read(coordinator.checkpoint().result(DEADLINE).id)
        claim = catalog.claim_after(2, "the old version", 0.0)
        assert claim is not None
        coordinator._lead(Inheritance(claim, None, coordinator._rerun.pipeline, state))
        assert query.isActive and not waits.ended and coordinator.verdict is None
        assert coordinator.restored is not None and coordinator.restored.id == last.id + 3
        coordinator.stop()
        (end,) = pipeline.ends
        assert waits.end().error is end.error is None and len(pipeline.runs) == 2
        return
    if case == "is kept":
        coordinator._rerun._until = 0.0
    assert isinstance(waits.end().error, FencedError)
    eventually(lambda: coordinator.life.phase is LifePhase.FENCED, "its end")
    assert isinstance(query.exception(), FencedError) and len(pipeline.runs) == 1
    coordinator.stop()
    (end,) = pipeline.ends
    assert isinstance(end.error, FencedError) and pins(catalog.store) == ITS
    error = coordinator.life.error
    assert isinstance(error, FencedError) and (error.store, error.by) == (catalog.store.uri, 2)
    assert catalog.leader(1) is None, "it has stepped down"


def test_a_leader_goes_on_if_the_shadow_does_not_come_or_gives_up(pipeline: Coordinated) -> None:
    query = pipeline.start("q")
    for seconds in (0.0, DEADLINE):
        runs = len(pipeline.runs)
        heir = handed_over(pipeline, seconds)
        looks = OtherThread(pipeline.coordinator._offering.look)
        if seconds:
            eventually(lambda heir=heir, looks=looks: heir.offered() or looks.ended, "an offer")  # type: ignore[misc]
            heir.give_up()
        assert looks.end().error is None
        assert len(pipeline.runs) == runs + 1 and not pipeline.runs[-1].stopped.is_set()
        assert query.isActive and pipeline.coordinator.life.phase is LifePhase.RUNNING
        assert heir.offered() is None
        assert asked(catalog_of(pipeline.coordinator).store, 1) is None


def test_a_stop_ends_the_wait_for_a_shadow(pipeline: Coordinated) -> None:
    query = pipeline.start("q")
    heir = handed_over(pipeline, DEADLINE)
    looks = OtherThread(pipeline.coordinator._offering.look)
    eventually(lambda: heir.offered() or looks.ended, "an offer")
    pipeline.coordinator.stop()
    assert looks.end().error is None
    assert not query.isActive and pipeline.coordinator.life.phase is LifePhase.STOPPED


def test_a_leader_that_nobody_follows_does_not_look_who_asks(pipeline: Coordinated) -> None:
    pipeline.start("q")
    heir = handed_over(pipeline, 0.0)
    catalog = catalog_of(pipeline.coordinator)
    catalog.store.delete(pin_key(reader_of("next"), CheckpointId(1)))
    pipeline.coordinator.checkpoint().result(DEADLINE)
    pipeline.coordinator._offering.look()
    assert not heir.is_in_vain() and not pipeline.runs[0].stopped.is_set()


def test_what_a_shadow_tells_too_late_is_forgotten_so_that_another_can_ask(pipeline: Coordinated) -> None:
    pipeline.start("q")
    heir = handed_over(pipeline, 0.0)
    pipeline.coordinator._offering.look()
    assert heir.is_in_vain()
    # It has looked a moment before.
    heir.has_passed(CheckpointId(2000))
    pipeline.coordinator._offering.look()
    other = Heir(catalog_of(pipeline.coordinator), "other life", 0.0, "other")
    assert other.ask(1, CheckpointId(1)) and len(pipeline.runs) == 2


@pytest.mark.parametrize("comes", [True, False])
def test_what_is_asked_for_while_a_shadow_is_to_take_over_comes_to_its_end(
    pipeline: Coordinated, comes: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Rerun, "prepared", staticmethod(lambda request: request))
    coordinator = pipeline.coordinator
    query = pipeline.start("q")
    heir = handed_over(pipeline, DEADLINE, keep_old=DEADLINE)
    looks = OtherThread(coordinator._offering.look)
    eventually(lambda: heir.offered() or looks.ended, "an offer")
    asked_for = {
        "savepoint": OtherThread(lambda: coordinator.savepoint(str(tmp_path / "savepoint")).result(DEADLINE)),
        "checkpoint": OtherThread(lambda: coordinator.checkpoint().result(DEADLINE)),
        "drain": OtherThread(lambda: coordinator.drain("a machine", "1 min")),
        "rescale": OtherThread(lambda: coordinator.rescale("totals", 2)),
        "start": pipeline.meanwhile(lambda: pipeline.start("another")),
    }
    claimed(heir) if comes else heir.give_up()
    assert looks.end().error is None
    for what, one in asked_for.items():
        error = one.end().error
        assert error is None or isinstance(error, ChandyError), f"{what}: {error!r}"
    assert query.isActive and (coordinator.verdict is not None) is comes
    if not comes:
        coordinator.checkpoint().result(DEADLINE)


@pytest.mark.parametrize("standby", [False, True])
def test_the_program_of_a_shadow_leads_from_its_claim_on_until_another_one_does(
    standby: bool, tmp_path: Path
) -> None:
    catalog = Catalog(LocalStore(tmp_path / "store" / "p"))
    first = catalog.claim("the driver of a shadow", 0.0, "next")
    if standby:
        catalog.start(first)
    for shadow in (Shadow(name="next"), Shadow(name="next"), None):
        one = made(cluster(), tmp_path, shadow=shadow, standby=standby)
        assert one.verdict is None
        claim = catalog.claimed(catalog.newest_generation())
        assert claim is not None and claim.shadow == ("" if shadow is None else "next")
        one.stop(timeout="1 s")
    with pytest.raises(NothingHereError, match="has no checkpoint"):
        made(cluster(), tmp_path, shadow=Shadow(name="next"))


def test_a_leader_goes_on_without_its_storage_and_a_shadow_that_comes_later_is_a_successor_like_any(
    pipeline: Coordinated, monkeypatch: pytest.MonkeyPatch
) -> None:
    query = pipeline.start("q")
    heir = handed_over(pipeline, DEADLINE)
    looks = OtherThread(pipeline.coordinator._offering.look)
    eventually(lambda: heir.offered() or looks.ended, "an offer")

    def is_away(*_: object) -> None:
        raise StoreFailedError("s3://bucket", "generations/", "read", "connection reset")

    with monkeypatch.context() as patch:
        for call in ("asked", "withdraw"):
            patch.setattr(offering, call, is_away)
        assert looks.end().error is None
        assert query.isActive and not pipeline.runs[-1].stopped.is_set() and len(pipeline.runs) == 2
    offer = heir.offered()
    assert offer is not None, "nobody could withdraw it"
    given = heir.claim(catalog_of(pipeline.coordinator).read(offer.checkpoint), 0.0)
    assert given is not None
    with pytest.raises(FencedError):
        query.awaitTermination(DEADLINE)
    # Batches have run since: what the shadow has is not the pipeline's state.
    last = given.state
    ahead = attrs.evolve(last.queries[0], batch=BatchId(last.queries[0].batch + 1))
    assert given.grafted(attrs.evolve(last, queries=(ahead,)), CheckpointId(9)) is None
