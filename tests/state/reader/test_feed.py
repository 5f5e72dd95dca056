"""A stream of changes, driven as Spark drives it: what a reader has been given makes the state of a checkpoint."""

from __future__ import annotations

import json
import pickle
import shutil
import tempfile
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pyspark.sql.types import LongType, StringType, StructType

from chandy.state.errors import DefinitionError, NoSuchStateError
from chandy.state.format.keys import KeyCodec
from chandy.state.format.keyspace import value_prefix
from chandy.state.format.packing import Packing
from chandy.state.format.schema import to_json
from chandy.state.format.values import StateName
from chandy.state.reader import feed
from chandy.state.reader.feed import FeedReader
from chandy.state.reader.feed_offsets import FeedOffset, Span, next_offset, span_of
from chandy.state.reader.options import chosen
from chandy.storage import NothingHereError
from chandy.storage.checkpoints.collect import discard, ended
from chandy.storage.checkpoints.manifest import StateRecord
from chandy.storage.checkpoints.pins import Pins, pinned
from chandy.storage.checkpoints.proof import Unshared

from ...builders import make_manifest
from ...effort import examples
from . import checkpoints
from .checkpoints import Checkpoints

KEY = StructType().add("k", StringType())
NUMBER = StructType().add("n", LongType())
STATES = {"s": StateRecord((to_json(NUMBER),))}
SHARDS = 3
State = dict[str, int]


def stored(state: State) -> list[dict[bytes, bytes] | None]:
    """The shards of a state: a key is in that of its length."""
    packing, codec = Packing([NUMBER], StateName("op", "s")), KeyCodec(KEY)
    shards: list[dict[bytes, bytes] | None] = [None] * SHARDS
    for key, n in state.items():
        held = shards[len(key) % SHARDS] or {}
        shards[len(key) % SHARDS] = held | {value_prefix("s") + codec.encode((key,)): packing.pack_row((n,))}
    return shards


class FedPipeline:
    """Checkpoints of which the newest two are kept, besides those that readers need."""

    def __init__(self, folder: Path) -> None:
        self.made = Checkpoints(folder)
        self.states: dict[int, State] = {}
        self._kept: list[Any] = []

    @property
    def uri(self) -> str:
        return self.made.store.uri

    def checkpoint(self, state: State) -> int:
        id = len(self.states) + 1
        self._kept.append(self.made.commit(id, stored(state), STATES, to_json(KEY)).manifest)
        self.states[id] = dict(state)
        dropped, kept = self._kept[:-2], self._kept[-2:]
        self._kept = [*ended(discard(self.made.store, dropped, lambda: kept, Unshared())).remaining, *kept]
        return id


class FedQuery:
    """Drives a reader as Spark does, and applies what it is given to a table."""

    def __init__(self, uri: str, **options: str) -> None:
        self._feed = chosen({"path": uri, "reader": "r", **options})
        self.table: State = {}
        self.offset: dict[str, Any] | None = None
        self._planned: dict[str, Any] | None = None
        self.begin()

    def begin(self) -> None:
        """Begin a life: with the offset of the last batch that committed, and the one that was planned after it."""
        self.reader = pickle.loads(pickle.dumps(FeedReader(self._feed)))

    def plan(self) -> bool:
        """Plan a batch, unless one is planned; return whether there is one."""
        start = self.offset or self.reader.initialOffset()
        if self._planned is None:
            # Spark has the offsets as JSON.
            end = json.loads(json.dumps(self.reader.latestOffset(start, None)))
            self._planned = None if end == start else end
        return self._planned is not None

    def run(self, *, dies: bool = False) -> None:
        """Run the planned batch. One that dies has no effect."""
        assert self._planned is not None
        start = self.offset or self.reader.initialOffset()
        table = dict(self.table)
        for part in self.reader.partitions(start, self._planned):
            reader, own = pickle.loads(pickle.dumps((self.reader, part)))
            for batch in reader.read(own):
                for row in batch.to_pylist():
                    apply(table, row)
        if not dies:
            self.table, self.offset, self._planned = table, self._planned, None

    def catch_up(self) -> None:
        while self.plan():
            self.run()

    @property
    def at(self) -> int | None:
        return None if self.offset is None else FeedOffset.of(self.offset).at


def apply(table: State, row: dict[str, Any]) -> None:
    """Apply a change to a table; it must fit."""
    assert (row["_change"] in ("insert", "read")) == (row["k"] not in table)
    if row["_change"] == "delete":
        del table[row["k"]]
    else:
        table[row["k"]] = row["n"]


@pytest.fixture
def pipeline(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> FedPipeline:
    monkeypatch.setattr(feed, "_LOOK_SECONDS", 0.0)
    return FedPipeline(tmp_path)


# --- offsets ------------------------------------------------------------------------------------------------


@given(
    first=st.integers(1, 9),
    shards=st.integers(0, 9),
    at_once=st.one_of(st.none(), st.integers(1, 4)),
    later=st.lists(st.integers(10, 99)),
)
def test_the_first_checkpoint_is_read_shard_by_shard_and_then_whole_ones(
    first: int, shards: int, at_once: int | None, later: list[int]
) -> None:
    offset, read = FeedOffset(), 0
    while offset.at is None:
        end = next_offset(offset, first, 5.0, shards, at_once)
        span = span_of(offset, FeedOffset.of(end.to_json()))
        assert span is not None
        assert (span.old, span.new, span.first) == (None, first, read)
        assert (end.needed, end.completed_at) == (first, 5.0)
        read = shards if span.stop is None else span.stop
        assert at_once is None or read - span.first <= at_once
        offset = end
    assert read == shards
    for newest in later:
        end = next_offset(offset, newest, 6.0, shards, at_once)
        assert span_of(offset, end) == (None if end == offset else Span(offset.at, newest))
        offset = end


@pytest.mark.parametrize(
    ("start", "end"),
    [
        (FeedOffset(None, 1, 2), FeedOffset(2)),
        (FeedOffset(1), FeedOffset(None, 2, 1)),
        (FeedOffset(1), FeedOffset()),
        (FeedOffset(1), FeedOffset(1, 2, 1)),
    ],
)
def test_offsets_between_which_there_is_no_stream_are_refused(start: FeedOffset, end: FeedOffset) -> None:
    with pytest.raises(ValueError, match="no stream"):
        span_of(start, end)


# --- a reader -----------------------------------------------------------------------------------------------


def test_a_reader_gets_the_state_and_then_its_changes(pipeline: FedPipeline) -> None:
    pipeline.checkpoint({"a": 1, "bb": 2})
    query = FedQuery(pipeline.uri)
    query.catch_up()
    assert (query.at, query.table) == (1, {"a": 1, "bb": 2})
    assert not query.plan()
    pipeline.checkpoint({"a": 1, "bb": 3, "ccc": 4})
    pipeline.checkpoint({"bb": 3, "ccc": 4})
    query.catch_up()
    assert (query.at, query.table) == (3, {"bb": 3, "ccc": 4})


def test_retention_keeps_what_the_reader_stands_at_and_nothing_else(pipeline: FedPipeline) -> None:
    pipeline.checkpoint({"a": 1})
    query = FedQuery(pipeline.uri)
    query.catch_up()
    for n in range(5):
        pipeline.checkpoint({"a": n, "bb": n})
    assert pipeline.made.catalog.list_ids() == [1, 5, 6]
    query.catch_up()
    assert (query.at, query.table, pinned(pipeline.made.store)) == (6, {"a": 4, "bb": 4}, {6})
    pipeline.checkpoint({})
    assert pipeline.made.catalog.list_ids() == [6, 7]


def test_what_the_caller_releases_is_kept_until_then(pipeline: FedPipeline) -> None:
    query = None
    for n in range(4):
        pipeline.checkpoint({"a": n})
        query = query or FedQuery(pipeline.uri, release="checkpoint")
        query.catch_up()
    assert pinned(pipeline.made.store) == {1, 2, 3, 4}
    Pins(pipeline.made.store, "r").release_before(3, Unshared())
    pipeline.checkpoint({})
    assert pipeline.made.catalog.list_ids() == [3, 4, 5]


def test_a_reader_whose_checkpoint_is_gone_is_told_so(pipeline: FedPipeline) -> None:
    pipeline.checkpoint({"a": 1})
    query = FedQuery(pipeline.uri)
    query.catch_up()
    Pins(pipeline.made.store, "r").release(Unshared())
    for n in range(3):
        pipeline.checkpoint({"a": n})
    with pytest.raises(NoSuchStateError, match=r"cannot go on.*checkpoint 1.*checkpoints 3, 4.*another name"):
        query.catch_up()


@pytest.mark.parametrize("options", [{}, {"shards_per_batch": "1"}], ids=["a whole one", "a part"])
def test_another_checkpoint_of_the_same_id_is_not_taken_for_what_was_read(
    pipeline: FedPipeline, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, options: dict[str, str]
) -> None:
    pipeline.checkpoint({"a": 1, "bb": 2})
    query = FedQuery(pipeline.uri, **options)
    assert query.plan()
    query.run()
    monkeypatch.setattr(checkpoints, "make_manifest", partial(make_manifest, completed_at=99.0))
    again = FedPipeline(tmp_path / "again")
    again.checkpoint({"b": 1})
    again.checkpoint({"b": 2})
    shutil.rmtree(tmp_path / "store")
    shutil.move(tmp_path / "again" / "store", tmp_path / "store")
    query.begin()
    with pytest.raises(NoSuchStateError, match="emptied or put back"):
        query.catch_up()


def test_a_query_that_takes_what_is_there_ends_at_the_checkpoint_that_was_the_newest(
    pipeline: FedPipeline,
) -> None:
    pipeline.checkpoint({"a": 1})
    query = FedQuery(pipeline.uri, shards_per_batch="1")
    query.reader.prepareForTriggerAvailableNow()
    assert query.plan()
    pipeline.checkpoint({"a": 2})
    query.catch_up()
    assert (query.at, query.table) == (1, {"a": 1})


def test_the_store_is_not_asked_again_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(feed, "_LOOK_SECONDS", 3600.0)
    pipeline = FedPipeline(tmp_path)
    pipeline.checkpoint({"a": 1})
    query = FedQuery(pipeline.uri)
    query.catch_up()
    pipeline.checkpoint({"a": 2})
    assert not query.plan()
    query.begin()
    assert query.plan()


def test_a_stream_needs_a_pipeline_with_a_checkpoint(tmp_path: Path, pipeline: FedPipeline) -> None:
    with pytest.raises(NothingHereError):
        chosen({"path": str(tmp_path / "nothing"), "reader": "r"})
    pipeline.checkpoint({"a": 1})
    with pytest.raises(DefinitionError):
        chosen({"path": pipeline.uri, "reader": "r", "checkpoint": "1"})


STEPS = st.one_of(
    st.tuples(
        st.just("checkpoint"),
        st.dictionaries(st.sampled_from(["a", "b", "cc", "dd", "eee"]), st.integers(0, 3)),
    ),
    st.tuples(st.just("go back"), st.integers(0, 9)),
    st.tuples(st.sampled_from(["plan", "run", "die in a batch", "be killed"]), st.none()),
)


@settings(
    suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None, max_examples=examples(4)
)
@given(
    steps=st.lists(STEPS, max_size=14),
    options=st.sampled_from([{}, {"shards_per_batch": "1"}, {"shards_per_batch": "2"}, {"before": "true"}]),
)
def test_after_each_checkpoint_the_table_is_its_state(
    steps: list[tuple[str, Any]], options: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(feed, "_LOOK_SECONDS", 0.0)
    with tempfile.TemporaryDirectory() as folder:
        pipeline = FedPipeline(Path(folder))
        pipeline.checkpoint({"a": 1, "cc": 1})
        query = FedQuery(pipeline.uri, **options)

        def check() -> None:
            if query.at is not None:
                assert query.table == pipeline.states[query.at]

        for step, given_ in steps:
            match step:
                case "checkpoint":
                    pipeline.checkpoint(given_)
                case "go back":
                    # The state is that of an older checkpoint again, and goes on under a new id.
                    pipeline.checkpoint(pipeline.states[given_ % len(pipeline.states) + 1])
                case "plan":
                    query.plan()
                case "run" | "die in a batch":
                    if query.plan():
                        query.run(dies=step == "die in a batch")
                case "be killed":
                    query.begin()
            check()
        query.catch_up()
        newest = max(pipeline.states)
        assert (query.at, query.table) == (newest, pipeline.states[newest])
        assert pinned(pipeline.made.store) == {newest}
