"""One wrong answer of a store decides nothing: whoever reads what a record names goes on as if it had been right."""

from __future__ import annotations

import contextlib
import hashlib
import tempfile
from collections.abc import Callable, Sequence
from copy import copy
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from typing_extensions import override

from chandy.coordinator.adopt import adopters
from chandy.coordinator.connectors.files.log import EMPTY, DataFile, FileLog
from chandy.coordinator.restore.restore_point import choose
from chandy.coordinator.sinks.two_phase import staged as staging
from chandy.coordinator.sinks.two_phase.contract import Epoch
from chandy.coordinator.sinks.two_phase.staged import StagedRows
from chandy.storage.backends.retrying import create_own
from chandy.storage.checkpoints import locate
from chandy.storage.checkpoints.catalog import Catalog
from chandy.storage.checkpoints.fencing import DriverRecord
from chandy.storage.checkpoints.layout import generation_key, savepoint_key
from chandy.storage.checkpoints.manifest import (
    EpochRecord,
    FileRef,
    Handle,
    Manifest,
    OutputRecord,
    QueryRecord,
)
from chandy.storage.checkpoints.pins import Pins
from chandy.storage.checkpoints.restore import restore_files
from chandy.storage.checkpoints.savepoint import commit_savepoint, read_savepoint
from chandy.storage.checkpoints.verification import check, missing_object, newest_intact
from chandy.storage.errors import DamagedError, ObjectMissingError, OutcomeUnknownError
from chandy.storage.store import ObjectStat, Store

from ...builders import MemoryStore, make_manifest, pack, shared, staged
from ...effort import trying

URI = "memory://lies"
ADOPTED = "5f3a7c52-90f5-4b29-a7f6-111111111111"


class LyingStore(MemoryStore):
    """A store that cuts or changes what it returns, or denies that there is an object: what it is asked first."""

    def __init__(self, objects: dict[str, bytes], lies: Sequence[str], *, for_ever: bool = False) -> None:
        super().__init__(URI)
        self.lies, self.for_ever = lies, for_ever
        self.asked: list[str] = []
        self.second_looks = 0
        self.loses_an_answer = self.is_blind = False
        for key, data in objects.items():
            self._put(key, data)

    @override
    def afresh(self) -> Store:
        self.second_looks += 1
        again = copy(self)
        again.lies = self.lies if self.for_ever else ()
        return again

    @override
    def read(self, key: str, offset: int = 0, length: int | None = None) -> bytes:
        data = super().read(key, offset, length)
        match self._lie(key):
            case "short":
                return data[: len(data) // 2]
            case "changed" if data:
                return bytes([data[0] ^ 1]) + data[1:]
        return data

    @override
    def stat(self, key: str) -> ObjectStat:
        self._lie(key)
        return super().stat(key)

    @override
    def list(self, prefix: str = "") -> list[str]:
        return [] if self.is_blind else super().list(prefix)

    @override
    def create(self, key: str, data: bytes) -> None:
        if self.loses_an_answer:
            self.loses_an_answer = False
            raise OutcomeUnknownError(self.uri, key, "create", "the answer was lost")
        super().create(key, data)

    def _lie(self, key: str) -> str:
        lie = self.lies[len(self.asked) % len(self.lies)] if self.lies else ""
        self.asked.append(key)
        if lie == "missing":
            raise ObjectMissingError(self.uri, key)
        return lie


def stored(store: Store, name: str, key: str) -> FileRef:
    """Append a file to an object."""
    before = store.read(key) if key in store.list() else b""
    data = name.encode() * 40
    store.write(key, before + data)
    return FileRef(name, key, len(data), hashlib.sha256(data).hexdigest(), len(before))


@cache
def objects() -> dict[str, bytes]:
    """Return what a pipeline with two checkpoints has, beside a savepoint and other records."""
    store = MemoryStore(URI)
    catalog = Catalog(store)
    generation = catalog.take_over("the first", 1.0).generation
    for id, digit in ((1, "b"), (2, "c")):
        shard = [stored(store, f"{digit}.sst", shared(digit))]
        shard += [stored(store, name, pack(id)) for name in ("CURRENT", "OPTIONS")]
        rows = EpochRecord(id, 3, Handle((stored(store, "rows", staged("delays", id)),)))
        progress = Handle((stored(store, "offsets/41", pack(id, "driver")),))
        query = QueryRecord("delays", 41, progress, outputs=(OutputRecord("out", (rows,)),))
        manifest = make_manifest(id, generation, [Handle(tuple(shard))], queries=(query,))
        catalog.commit(manifest)
    commit_savepoint(store, manifest)
    store.write(savepoint_key(manifest.id), URI.encode())
    catalog.take_leadership(DriverRecord(generation, "m", "m", 1, 2, 3, 4))
    catalog.claim("the second", 2.0)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(adopters, "open_store", lambda _: store)
        adopters.record(URI, ADOPTED, adopters.AdoptedBy("p", "q"))
    known = EMPTY
    for number in range(3):
        file = DataFile(f"{URI}/{number}", 1, 1, "w", number, str(number))
        known = FileLog(store, URI).create(known, [file], 1.0)
    return store.objects


def newest() -> Manifest:
    return read_savepoint(LyingStore(objects(), ()))


def restored(store: Store) -> dict[str, bytes]:
    (shard,) = newest().operators[0].shards
    assert shard is not None
    with tempfile.TemporaryDirectory() as folder:
        restore_files(store, shard, Path(folder), threads=1)
        return {file.name: (Path(folder) / file.name).read_bytes() for file in shard.files}


def missing(store: LyingStore) -> str | None:
    store.is_blind = True
    return missing_object(store, newest())


def created_twice(store: LyingStore) -> None:
    store.loses_an_answer = True
    for _ in range(2):
        with contextlib.suppress(OutcomeUnknownError):
            create_own(store, generation_key(2), objects()[generation_key(2)])


READERS: dict[str, Callable[[LyingStore], Any]] = {
    "the latest checkpoint": lambda store: choose(Catalog(store), "latest"),
    "a checkpoint by its id": lambda store: choose(Catalog(store), 1),
    "all checkpoints": lambda store: Catalog(store).entries(),
    "who started last": lambda store: Catalog(store).generations(),
    "whether somebody has started": lambda store: Catalog(store).has_started(1),
    "who may still write": lambda store: list(Catalog(store).leaders_before(2)),
    "a pinned checkpoint": lambda store: Pins(store, "reader").hold(newest().id, 1.0),
    "a savepoint": read_savepoint,
    "the files of a shard": restored,
    "staged rows": lambda _: list(StagedRows(Epoch(newest().queries[0].outputs[0].epochs[0], URI)).files()),
    "a file": lambda store: check(store, newest().queries[0].files.files[0]),
    "what is intact": lambda store: newest_intact(Catalog(store)),
    "what is missing": missing,
    "what was created before": created_twice,
    "who has adopted a query": lambda _: adopters.find(URI, ADOPTED),
    "the newest entry of a log": lambda store: FileLog(store, URI).newest(),
    "a log": lambda store: FileLog(store, URI).lines(21),
}


NAMED = (
    "the latest checkpoint",
    "who started last",
    "a savepoint",
    "the files of a shard",
    "staged rows",
    "a file",
)
"""Those that cannot do without what they read."""


def outcome(reads: str, store: LyingStore) -> Any:
    with pytest.MonkeyPatch.context() as patch:
        for module in (adopters, locate, staging):
            patch.setattr(module, "open_store", lambda _: store)
        return READERS[reads](store)


@pytest.mark.parametrize("reads", READERS)
@given(lies=st.lists(st.sampled_from(["", "short", "changed", "missing"]), min_size=1, max_size=4))
@trying(15)
def test_a_store_that_lies_whenever_it_is_asked_first_changes_nothing(reads: str, lies: list[str]) -> None:
    honest, lying = LyingStore(objects(), ()), LyingStore(objects(), lies)
    assert outcome(reads, lying) == outcome(reads, honest)


@pytest.mark.parametrize("reads", NAMED)
@pytest.mark.parametrize("lie", ["short", "changed", "missing"])
def test_a_store_that_says_it_twice_is_believed_and_the_object_is_named(reads: str, lie: str) -> None:
    store = LyingStore(objects(), (lie,), for_ever=True)
    with pytest.raises((DamagedError, ObjectMissingError)) as caught:
        outcome(reads, store)
    assert store.asked.count(caught.value.key) > 1


@pytest.mark.parametrize("reads", NAMED)
def test_what_is_right_at_once_is_not_read_again(reads: str) -> None:
    store = LyingStore(objects(), ())
    outcome(reads, store)
    assert store.asked
    assert store.second_looks == 0
