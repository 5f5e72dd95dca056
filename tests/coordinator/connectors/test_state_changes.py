"""A query that reads another pipeline's changes: what it needs stays, and what no checkpoint needs is released."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from chandy.coordinator.connectors.recognition import sources_of
from chandy.coordinator.connectors.state_changes import StateChangesSource, state_changes
from chandy.coordinator.errors import WriterError
from chandy.coordinator.sources.errors import SourceLostError
from chandy.coordinator.sources.source import Standing
from chandy.coordinator.spark.writer_facts import SinkFacts, SourceFacts, Trigger, WriterFacts
from chandy.state.reader.feed_offsets import FeedOffset
from chandy.storage.backends.local import LocalStore
from chandy.storage.checkpoints.catalog import Catalog
from chandy.storage.checkpoints.layout import manifest_key
from chandy.storage.checkpoints.pins import Pins, pinned
from chandy.storage.checkpoints.proof import Unshared

from ...builders import make_manifest
from ...waiting import eventually
from .reading_query import reading_query

READER = "warehouse"


@pytest.fixture
def store(tmp_path: Path) -> LocalStore:
    store = LocalStore(tmp_path)
    for id in (1, 2, 3):
        Catalog(store).commit(make_manifest(id))
        Pins(store, READER).hold(id, 0.0)
    return store


@pytest.fixture
def source(store: LocalStore) -> StateChangesSource:
    return state_changes({"path": store.uri, "reader": READER, "release": "checkpoint"}, "copy", Unshared())


COMPLETED_AT = make_manifest().completed_at


def offset(
    at: int | None = None, to: int | None = None, shards: int = 0, completed_at: float = COMPLETED_AT
) -> str:
    return json.dumps(FeedOffset(at, to, shards, completed_at).to_json())


def test_what_a_completed_checkpoint_does_not_need_is_released(
    store: LocalStore, source: StateChangesSource
) -> None:
    source.completed(offset())
    source.completed(offset(to=1, shards=2))
    source.close()
    assert pinned(store) == {1, 2, 3}


def test_only_the_newest_counts(store: LocalStore, source: StateChangesSource) -> None:
    for at in (1, 2, 3):
        source.completed(offset(at))
    eventually(lambda: pinned(store) == {3})
    source.close()


def test_a_query_goes_on_only_where_its_checkpoint_is_still_there(
    store: LocalStore, source: StateChangesSource
) -> None:
    for standing in (offset(), offset(2), offset(to=2, shards=1)):
        source.check(Standing(standing))
    with pytest.raises(SourceLostError, match="emptied or put back"):
        source.check(Standing(offset(2, completed_at=-1.0)))
    store.delete(manifest_key(2))
    source.check(Standing(offset(3)))
    for standing in (offset(2), offset(to=2, shards=1)):
        with pytest.raises(SourceLostError, match=r"checkpoint 2.*checkpoints 1, 3.*another name") as lost:
            source.check(Standing(standing))
        assert [loss.needed for loss in lost.value.losses] == [2]


def test_a_store_that_does_not_answer_ends_nothing(
    store: LocalStore, source: StateChangesSource, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(*args: object) -> None:
        raise OSError("gone")

    monkeypatch.setattr(Catalog, "list_ids", fails)
    monkeypatch.setattr(Pins, "release_before", fails)
    source.check(Standing(offset(7)))
    source.completed(offset(7))
    source.close()
    assert source._released.is_idle


def test_a_stream_that_does_not_wait_for_checkpoints_is_refused(store: LocalStore) -> None:
    with pytest.raises(WriterError, match=r"release='checkpoint'"):
        state_changes({"path": store.uri, "reader": READER}, "copy", Unshared())


def test_the_source_is_recognised_in_the_plan(store: LocalStore) -> None:
    options = {"path": store.uri, "reader": READER, "release": "checkpoint"}
    facts = WriterFacts(
        SinkFacts("noop"),
        "append",
        Trigger.PROCESSING_TIME,
        sources=(SourceFacts("chandy", True, options=options),),
    )
    found = sources_of(facts, reading_query())
    assert isinstance(found.sources["0"], StateChangesSource)
