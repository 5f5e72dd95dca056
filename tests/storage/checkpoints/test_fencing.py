"""Two drivers on one pipeline, interleaved in any order, and the rule that decides between them."""

from __future__ import annotations

import threading
from collections.abc import Callable

import attrs
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from chandy.storage import FencedError, InvalidPlaceError, ObjectExistsError, Store
from chandy.storage.backends.local import LocalStore
from chandy.storage.backends.probe import probe_exclusive_create
from chandy.storage.checkpoints import fencing
from chandy.storage.checkpoints.catalog import Catalog
from chandy.storage.checkpoints.fencing import Claim, Generation, begin, voided_by
from chandy.storage.checkpoints.manifest import Manifest

from ...builders import MemoryStore, make_manifest
from ...effort import examples
from ...waiting import DEADLINE

MakeManifest = Callable[..., Manifest]


def generation(number: int, end: int, next_id: int = 1) -> Generation:
    return Generation(number, end, next_id, 1.0, "driver")


# --- the rule -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("by", "checkpoint", "voided"),
    [(1, 5, None), (1, 6, 2), (1, 9, 2), (2, 6, None), (2, 8, None), (2, 9, 3), (3, 100, None)],
)
def test_a_manifest_above_what_a_successor_found_is_void(
    by: int, checkpoint: int, voided: int | None
) -> None:
    found = voided_by(by, checkpoint, [generation(1, 0), generation(3, 8), generation(2, 5)])
    assert (found.generation if found else None) == voided


@pytest.mark.parametrize(
    ("by", "checkpoint", "voided"),
    [(1, 4, 3), (1, 5, None), (2, 6, None), (2, 7, 3), (3, 7, None), (4, 9, None)],
)
def test_what_a_successor_did_not_count_is_void(by: int, checkpoint: int, voided: int | None) -> None:
    found = voided_by(by, checkpoint, [attrs.evolve(generation(3, 6), counted=(5, 6))])
    assert (found.generation if found else None) == voided


@given(
    committed=st.sets(st.integers(1, 50)),
    touched=st.sets(st.integers(1, 50)),
    ends=st.lists(st.tuples(st.integers(0, 50), st.integers(1, 50))),
    first_id=st.integers(1, 50),
)
def test_a_generation_begins_above_every_id_that_was_ever_used(
    committed: set[int], touched: set[int], ends: list[tuple[int, int]], first_id: int
) -> None:
    started = [generation(number, *end) for number, end in enumerate(ends, 1)]
    found = begin(Claim(len(ends) + 1, "driver", 1.0), committed, committed, touched, started, first_id)
    assert found.next_id > max([first_id - 1, *committed, *touched])
    assert all(found.next_id >= start.next_id for start in started)
    assert all(
        voided_by(one.generation, checkpoint, [found]) is None for one in started for checkpoint in committed
    )


# --- the race -----------------------------------------------------------------------------------------------


class EndOfThread(BaseException):
    """Ends a driver's thread between two of its store operations."""


class Actor(Store):
    """One driver, in a thread of its own, that makes one store operation each time it is told to."""

    def __init__(self, store: MemoryStore, life: Callable[[Catalog], None]) -> None:
        self.store = store
        self.uri = store.uri
        self.done = False
        self.error: Exception | None = None
        self._killed = False
        self._may_go = threading.Semaphore(0)
        self._stands = threading.Semaphore(0)
        self._thread = threading.Thread(target=self._run, args=(life,), daemon=True)

    def start(self) -> None:
        """Let the driver come to its first operation."""
        self._thread.start()
        self._stands.acquire()

    def end(self, killed: bool) -> None:
        """Let the driver do all that it has left to do, or nothing more."""
        self._killed = killed
        while not self.done:
            self.step()
        self._thread.join()

    def step(self) -> None:
        """Let the driver make its next operation and go on to the one after it."""
        if not self.done:
            self._may_go.release()
            self._stands.acquire()

    def _run(self, life: Callable[[Catalog], None]) -> None:
        try:
            life(Catalog(self))
        except EndOfThread:
            pass
        except Exception as error:  # noqa: BLE001 (the test looks at it)
            self.error = error
        self.done = True
        self._stands.release()

    def _turn(self) -> MemoryStore:
        self._stands.release()
        self._may_go.acquire()
        if self._killed:
            raise EndOfThread
        return self.store

    def read(self, key: str, offset: int = 0, length: int | None = None) -> bytes:
        return self._turn().read(key, offset, length)

    def write(self, key: str, data: bytes) -> None:
        self._turn().write(key, data)

    def create(self, key: str, data: bytes) -> None:
        self._turn().create(key, data)

    def list(self, prefix: str = "") -> list[str]:
        return self._turn().list(prefix)

    def delete(self, key: str) -> None:
        self._turn().delete(key)


@attrs.define
class Believer:
    """What one driver believes about itself."""

    began: Generation | None = None
    restored: int | None = None
    completed: list[int] = attrs.field(factory=list)

    def __call__(self, catalog: Catalog) -> None:
        try:
            self.began = catalog.take_over("driver", 1.0)
            latest = catalog.latest()
            self.restored = latest.id if latest else 0
            for id in range(self.began.next_id, self.began.next_id + 3):
                catalog.check_not_fenced(self.began.generation)
                manifest = make_manifest(id, self.began.generation)
                try:
                    catalog.commit(manifest)
                except ObjectExistsError:
                    continue
                catalog.confirm(manifest)
                self.completed.append(id)
        except FencedError:
            pass


@pytest.mark.parametrize("kept", [1, fencing.KEPT])
@settings(max_examples=examples(20), deadline=None)
@given(schedule=st.lists(st.tuples(st.integers(0, 3), st.integers(1, 18)), max_size=14), data=st.data())
def test_drivers_that_interleave_in_any_way_never_both_complete_checkpoints(
    kept: int, schedule: list[tuple[int, int]], data: st.DataObject
) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(fencing, "KEPT", kept)
        _interleave(schedule, data)


def _interleave(schedule: list[tuple[int, int]], data: st.DataObject) -> None:
    store = MemoryStore()
    lives = [Believer() for _ in range(4)]
    # A driver that is killed makes no further step.
    killed = data.draw(st.sets(st.integers(0, 3), max_size=3))
    actors = [Actor(store, life) for life in lives]
    for actor in actors:
        actor.start()
    # In stretches: a whole takeover fits between two operations of another driver.
    for number, steps in schedule:
        for _ in range(steps):
            actors[number].step()
    observed = [list(life.completed) for life in lives]
    for number, actor in enumerate(actors):
        actor.end(number in killed)
    assert [actor.error for actor in actors] == [None] * 4

    catalog = Catalog(store)
    valid = [manifest.id for manifest in catalog.completed()]
    latest = catalog.latest()
    assert (latest.id if latest else 0) == max(valid, default=0)
    started = [life for life in lives if life.began]
    for life in started:
        assert life.began is not None
        # What a driver has announced stays completed, and the ids of all drivers are distinct.
        assert set(life.completed) <= set(valid)
        for later in started:
            assert later.began is not None
            if later.began.generation > life.began.generation:
                # The later one has seen everything that the earlier one has announced, and restored no less.
                assert max(life.completed, default=0) <= later.began.predecessors_end
                if later.restored is not None:
                    assert max(life.completed, default=0) <= later.restored
    announced = [id for life in lives for id in life.completed]
    assert len(announced) == len(set(announced))
    assert all(set(before) <= set(life.completed) for before, life in zip(observed, lives, strict=True))


# --- the probe ----------------------------------------------------------------------------------------------


def test_the_local_store_passes_the_probe_and_nothing_is_left(store: LocalStore) -> None:
    probe_exclusive_create(store)
    assert store.list() == []


class _Overwriting(MemoryStore):
    def create(self, key: str, data: bytes) -> None:
        self.write(key, data)


class _Racy(MemoryStore):
    """Looks and then writes: right as long as nobody races."""

    def __init__(self) -> None:
        super().__init__()
        self._both_have_looked = threading.Barrier(2)

    def create(self, key: str, data: bytes) -> None:
        exists = key in self.objects
        if not exists:
            self._both_have_looked.wait(timeout=DEADLINE)
        if exists:
            raise ObjectExistsError(self.uri, key)
        self.write(key, data)


class _Refusing(MemoryStore):
    def create(self, key: str, data: bytes) -> None:
        raise ObjectExistsError(self.uri, key)


@pytest.mark.parametrize(("store", "winners"), [(_Overwriting(), 2), (_Racy(), 2), (_Refusing(), 0)])
def test_a_store_that_lets_not_exactly_one_create_win_is_refused(store: MemoryStore, winners: int) -> None:
    with pytest.raises(InvalidPlaceError, match="two drivers could both complete") as caught:
        probe_exclusive_create(store)
    assert caught.value.found == f"{winners} of them"
    assert store.objects == {}


def test_what_a_user_has_chosen_holds_until_a_checkpoint_has_completed_since() -> None:
    catalog = Catalog(MemoryStore())
    first = catalog.take_over("first", 1.0)
    catalog.commit(make_manifest(1, first.generation))
    catalog.commit(make_manifest(2, first.generation))
    assert catalog.chosen() == ""
    second = catalog.take_over("second", 2.0)
    assert catalog.chosen() == ""
    catalog.amend(attrs.evolve(second, restored="1"))
    # The next ones begin where it stood, and a damaged or void manifest changes nothing of that.
    third = catalog.take_over("third", 3.0)
    assert (catalog.chosen(), third.restored) == ("1", "1")
    catalog.commit(make_manifest(3, second.generation))
    assert catalog.chosen() == "1"
    catalog.commit(make_manifest(4, third.generation))
    assert catalog.chosen() == ""
    assert catalog.take_over("fourth", 4.0).restored == ""
