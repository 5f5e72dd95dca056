"""Trying again: what is transient, no longer than asked, and never a create that was another's."""

from __future__ import annotations

import threading
from collections.abc import Callable

import pytest

from chandy.storage import (
    InvalidPlaceError,
    ObjectExistsError,
    ObjectMissingError,
    OutcomeUnknownError,
    StoreFailedError,
)
from chandy.storage.backends.probe import probe_exclusive_create
from chandy.storage.backends.retrying import RetryingStore, RetryPolicy, create_own, interruptible
from chandy.storage.errors import OperationInterruptedError
from chandy.storage.store import StoreRequests

from ...builders import MemoryStore


class SleptClock:
    """Time that passes by sleeping only."""

    def __init__(self) -> None:
        self.now = 100.0
        self.slept: list[float] = []

    def __call__(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.slept.append(seconds)
        self.now += seconds


class Flaky(MemoryStore):
    """Fails the first so many calls, before or after it has done what it was asked."""

    def __init__(self, failures: int, after: bool = False, transient: bool = True) -> None:
        super().__init__()
        self.failures = failures
        self.after = after
        self.transient = transient
        self.calls = 0

    def _failing(self, key: str, operation: str) -> None:
        if self.failures > 0:
            self.failures -= 1
            raise StoreFailedError(self.uri, key, operation, "connection reset", self.transient)

    def read(self, key: str, offset: int = 0, length: int | None = None) -> bytes:
        self.calls += 1
        self._failing(key, "read")
        return super().read(key, offset, length)

    def create(self, key: str, data: bytes) -> None:
        self.calls += 1
        if not self.after:
            self._failing(key, "create")
        super().create(key, data)
        self._failing(key, "create")


@pytest.fixture
def clock() -> SleptClock:
    return SleptClock()


def retrying(store: MemoryStore, clock: SleptClock, **policy: float) -> RetryingStore:
    return RetryingStore(store, RetryPolicy(**policy), clock=clock, sleep=clock.sleep)  # type: ignore[arg-type]


def test_what_fails_in_passing_is_tried_again_with_growing_waits_by_chance(clock: SleptClock) -> None:
    store = Flaky(6)
    store.objects["x"] = b"1"
    assert retrying(store, clock, first=1.0, longest=8.0).read("x") == b"1"
    assert len(clock.slept) == 6
    assert all(wait <= min(2**number, 8) for number, wait in enumerate(clock.slept))
    assert len(set(clock.slept)) == 6


def test_requests_are_counted_also_those_with_a_limit_of_their_own(clock: SleptClock) -> None:
    store = Flaky(3)
    store.objects["x"] = b"1"
    counted = retrying(store, clock)
    counted.read("x")
    counted.within(60.0).read("x")
    interruptible(counted, threading.Event()).read("x")
    with pytest.raises(ObjectMissingError):
        counted.read("none")
    assert counted.asked == StoreRequests(attempts=7, retries=3)
    store.failures, store.transient = 1, False
    with pytest.raises(StoreFailedError):
        counted.read("x")
    assert counted.asked == StoreRequests(attempts=8, retries=3, failures=1)
    assert store.asked is None


def test_what_is_not_transient_is_tried_once(clock: SleptClock) -> None:
    for store, error in ((Flaky(1, transient=False), StoreFailedError), (MemoryStore(), ObjectMissingError)):
        with pytest.raises(error):
            retrying(store, clock).read("x")
    assert clock.slept == []


def test_an_error_says_which_object_which_operation_and_how_often(clock: SleptClock) -> None:
    store = Flaky(100)
    with pytest.raises(
        StoreFailedError, match=r"could not read 'x' in memory://test.*\(5 attempts\)"
    ) as caught:
        retrying(store, clock, attempts=5).read("x")
    assert (caught.value.attempts, store.calls) == (5, 5)


@pytest.mark.parametrize("bound", [lambda store: store, lambda store: store.within(1000.0)])
def test_an_operation_is_given_up_when_its_time_is_over(
    clock: SleptClock, bound: Callable[[RetryingStore], RetryingStore]
) -> None:
    store = bound(retrying(Flaky(1000), clock, seconds=30.0, attempts=1000))
    with pytest.raises(StoreFailedError):
        store.read("x")
    assert 20 < clock.now - 100 <= 30


def test_all_operations_of_a_checkpoint_have_one_deadline(clock: SleptClock) -> None:
    store = retrying(Flaky(1000), clock, seconds=30.0, attempts=1000).within(45.0)
    for _ in range(3):
        with pytest.raises(StoreFailedError):
            store.read("x")
    assert 35 < clock.now - 100 <= 45


def test_a_create_whose_answer_was_lost_is_ours(clock: SleptClock) -> None:
    store = Flaky(1, after=True)
    retrying(store, clock).create("x", b"mine")
    assert store.objects == {"x": b"mine"}


def test_a_create_that_failed_before_another_succeeded_is_not_ours(clock: SleptClock) -> None:
    store = Flaky(1)
    store.objects["x"] = b"another's"
    with pytest.raises(ObjectExistsError):
        retrying(store, clock).create("x", b"mine")
    assert store.objects == {"x": b"another's"}


def test_an_object_that_exists_is_not_ours_for_having_our_bytes(clock: SleptClock) -> None:
    # Nobody has tried yet: whoever has written it, it was not this create.
    store = MemoryStore()
    store.objects["x"] = b"same"
    with pytest.raises(ObjectExistsError):
        retrying(store, clock).create("x", b"same")


class _Deaf(Flaky):
    """Creates, and loses every answer from then on."""

    def create(self, key: str, data: bytes) -> None:
        if key not in self.objects:
            MemoryStore.create(self, key, data)
        self._failing(key, "create")


def test_a_create_that_nobody_can_tell_of_says_so(clock: SleptClock) -> None:
    with pytest.raises(OutcomeUnknownError, match="may have been created") as caught:
        retrying(_Deaf(1000), clock, attempts=4).create("x", b"mine")
    assert caught.value.attempts == 4


def test_a_create_that_is_refused_at_once_has_a_known_outcome(clock: SleptClock) -> None:
    with pytest.raises(StoreFailedError) as caught:
        retrying(Flaky(1, transient=False), clock).create("x", b"mine")
    assert not isinstance(caught.value, OutcomeUnknownError)


def test_a_refusal_after_a_lost_answer_leaves_the_outcome_unknown(clock: SleptClock) -> None:
    class Forgetful(MemoryStore):
        calls = 0

        def create(self, key: str, data: bytes) -> None:
            self.calls += 1
            raise StoreFailedError(self.uri, key, "create", "no", transient=self.calls == 1)

    with pytest.raises(OutcomeUnknownError):
        retrying(Forgetful(), clock).create("x", b"mine")


def test_the_probe_sees_through_retries(clock: SleptClock) -> None:
    class Overwriting(MemoryStore):
        def create(self, key: str, data: bytes) -> None:
            self.write(key, data)

    probe_exclusive_create(retrying(MemoryStore(), clock))
    with pytest.raises(InvalidPlaceError):
        probe_exclusive_create(retrying(Overwriting(), clock))


# --- outcomes that are not known ----------------------------------------------------------------------------


class _Away(MemoryStore):
    """Creates, or not, without an answer; then is away for so many operations."""

    def __init__(self, creates: bool, operations: int) -> None:
        super().__init__()
        self.creates = creates
        self.operations = operations

    def create(self, key: str, data: bytes) -> None:
        if self.operations > 0:
            self.operations -= 1
            if self.creates and key not in self.objects:
                MemoryStore.create(self, key, data)
            raise StoreFailedError(self.uri, key, "create", "timed out", transient=True)
        super().create(key, data)


@pytest.mark.parametrize("creates", [False, True])
def test_a_create_of_ones_own_object_is_repeated_until_it_succeeds(clock: SleptClock, creates: bool) -> None:
    inner = _Away(creates, operations=20)
    store = retrying(inner, clock, attempts=5)
    while inner.operations:
        with pytest.raises(OutcomeUnknownError):
            create_own(store, "x", b"mine")
    create_own(store, "x", b"mine")
    assert inner.objects == {"x": b"mine"}
    with pytest.raises(ObjectExistsError):
        create_own(store, "x", b"another's")
    assert inner.objects == {"x": b"mine"}


class _Interrupts(MemoryStore):
    """A store that may be away, and that interrupts its reader after some reads."""

    def __init__(self, interrupted: threading.Event, reads: int) -> None:
        super().__init__()
        self.interrupted, self.left = interrupted, reads
        self.is_away = False

    def read(self, key: str, offset: int = 0, length: int | None = None) -> bytes:
        self.left -= 1
        if self.left == 0:
            self.interrupted.set()
        if self.is_away:
            raise StoreFailedError(self.uri, key, "read", "connection reset", transient=True)
        return super().read(key, offset, length)


@pytest.mark.parametrize("retries", [False, True])
def test_an_interrupted_operation_reads_no_further_part(retries: bool) -> None:
    interrupted = threading.Event()
    inner = _Interrupts(interrupted, reads=2)
    inner.write("key", b"x")
    store = interruptible(RetryingStore(inner) if retries else inner, interrupted)
    assert [store.read("key") for _ in range(2)] == [b"x", b"x"]
    with pytest.raises(OperationInterruptedError):
        store.read("key")
    assert inner.left == 0


def test_an_interruption_ends_the_waits_for_a_store_that_is_away() -> None:
    interrupted = threading.Event()
    inner = _Interrupts(interrupted, reads=1)
    inner.is_away = True
    # Without it, the first wait would take a day.
    patient = RetryingStore(inner, RetryPolicy(seconds=1e6, first=86400.0, longest=86400.0))
    with pytest.raises(OperationInterruptedError):
        interruptible(patient, interrupted).read("key")
    assert inner.left == 0
