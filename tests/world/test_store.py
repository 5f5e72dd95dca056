"""The scripted store does what a store does, and what its script says."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from chandy.storage import runtime
from chandy.storage.backends.retrying import RetryingStore
from chandy.storage.errors import ObjectExistsError, ObjectMissingError, StoreFailedError

from .choices import Choices
from .runtime import SimulatedRuntime
from .scheduler import Scheduler
from .store import Bucket, Fault, ScriptedStore, Trouble


class WorldStores:
    def __init__(self) -> None:
        self.scheduler = Scheduler(Choices(0))
        self.bucket = Bucket("memory://bucket")
        self.store = ScriptedStore(self.scheduler, self.bucket)

    def call(self, name: str, *args: object, retried: bool = False) -> object:
        store = RetryingStore(self.store) if retried else self.store
        return self.scheduler.call(self.scheduler.world, lambda: getattr(store, name)(*args))

    def pass_time(self, seconds: float) -> None:
        self.scheduler.call(self.scheduler.world, lambda: runtime.sleep(seconds))


@pytest.fixture
def setup() -> Iterator[WorldStores]:
    setup = WorldStores()
    with runtime.used(SimulatedRuntime(setup.scheduler)):
        yield setup
        setup.scheduler.end()


def test_it_is_a_store(setup: WorldStores) -> None:
    setup.call("write", "a/1", b"one")
    setup.call("create", "a/2", b"two")
    with pytest.raises(ObjectExistsError):
        setup.call("create", "a/1", b"other")
    assert (setup.call("read", "a/1"), setup.call("read", "a/2", 1, 1)) == (b"one", b"w")
    assert setup.call("list", "a/") == ["a/1", "a/2"]
    setup.call("delete", "a/1")
    setup.call("delete", "a/1")
    with pytest.raises(ObjectMissingError):
        setup.call("read", "a/1")
    assert [(act.operation, act.key) for act in setup.bucket.acts] == [
        ("write", "a/1"),
        ("create", "a/2"),
        ("delete", "a/1"),
    ]


@pytest.mark.parametrize(
    ("trouble", "there", "later"),
    [
        (Trouble.REFUSED, False, False),
        (Trouble.LOST, True, True),
        (Trouble.LATE, False, True),
        (Trouble.FULL, False, False),
    ],
)
def test_a_create_that_seems_to_fail_has_been_carried_out_or_not(
    setup: WorldStores, trouble: Trouble, there: bool, later: bool
) -> None:
    setup.bucket.faults.append(Fault("create", "key", trouble))
    with pytest.raises(StoreFailedError):
        setup.call("create", "key", b"mine")
    assert ("key" in setup.bucket.objects) is there
    setup.pass_time(60)
    assert ("key" in setup.bucket.objects) is later


@pytest.mark.parametrize(
    "trouble", [Trouble.REFUSED, Trouble.LOST, Trouble.LATE, Trouble.TWICE, Trouble.SLOW]
)
def test_the_products_retries_find_their_own_object(setup: WorldStores, trouble: Trouble) -> None:
    setup.bucket.faults.append(Fault("create", "key", trouble, times=2))
    setup.call("create", "key", b"mine", retried=True)
    with pytest.raises(ObjectExistsError):
        setup.call("create", "key", b"other", retried=True)
    setup.pass_time(60)
    assert setup.bucket.objects == {"key": b"mine"}


@pytest.mark.parametrize(
    ("trouble", "found"), [(Trouble.SHORT, b"on"), (Trouble.FLIPPED, None), (Trouble.MISSING, None)]
)
def test_one_answer_is_wrong(setup: WorldStores, trouble: Trouble, found: bytes | None) -> None:
    setup.call("write", "key", b"once")
    setup.bucket.faults.append(Fault("read", "key", trouble))
    if trouble is Trouble.MISSING:
        with pytest.raises(ObjectMissingError):
            setup.call("read", "key")
    else:
        wrong = setup.call("read", "key")
        assert wrong == found if found else wrong != b"once"
    assert setup.call("read", "key") == b"once"
    assert setup.bucket.met == [("read", trouble)]


def test_a_listing_is_of_some_time_ago(setup: WorldStores) -> None:
    setup.call("write", "old", b"1")
    setup.pass_time(60)
    setup.call("write", "new", b"1")
    setup.call("delete", "old")
    setup.bucket.faults.append(Fault("list", "", Trouble.STALE))
    assert (setup.call("list"), setup.call("list")) == (["old"], ["new"])
