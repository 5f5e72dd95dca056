"""Retries: the one policy for all remote stores, and creates that can be repeated."""

from __future__ import annotations

from collections.abc import Callable, Collection
from copy import copy
from pathlib import Path
from typing import Final, TypeVar

import attrs
from tenacity import RetryCallState, Retrying, retry_if_exception
from typing_extensions import override

from .. import runtime
from ..errors import (
    DamagedError,
    NotDeletedError,
    ObjectExistsError,
    OperationInterruptedError,
    OutcomeUnknownError,
    StoreFailedError,
    UnfitError,
)
from ..logs import logger
from ..store import ObjectStat, Store, StoreRequests
from ..verified import verified

_log = logger(__name__)

T = TypeVar("T")


def create_own(store: Store, key: str, data: bytes, *, once: bool = False) -> None:
    """Create an object, or find that it is there, by an earlier attempt that seemed to fail.

    It can be repeated until it succeeds. To read would not be enough: an attempt may still be on its way, and an object
    that is missing now may appear later.

    Args:
        key: the object.
        data: its bytes, which nobody else writes there.
        once: make one attempt alone.

    Raises:
        ObjectExistsError: somebody else's object exists.
        StoreFailedError: this call has created nothing.
        OutcomeUnknownError: nobody knows whether it has.
    """
    try:
        (store.within(0.0) if once else store).create(key, data)
    except ObjectExistsError:
        if not _is_own(store, key, data):
            raise


def _is_own(store: Store, key: str, data: bytes) -> bool:
    """Whether an object that was found has the bytes to create, which nobody else writes there."""

    def look(store: Store) -> None:
        if store.read(key) != data:
            raise UnfitError("the bytes to create", "others")

    try:
        verified(store, key, look)
    except DamagedError:
        return False
    return True


@attrs.frozen
class RetryPolicy:
    """How long to retry. Each wait is random, between 0 and a limit that doubles from ``first`` to ``longest``."""

    seconds: float = 60.0
    """Seconds after which an operation fails."""
    attempts: int = 20
    """Attempts after which it fails."""
    first: float = 0.1
    longest: float = 8.0

    def wait(self, state: RetryCallState) -> float:
        """Return how long to wait before the next attempt."""
        return runtime.random() * min(self.longest, self.first * 2.0 ** (state.attempt_number - 1))


ONCE: Final = RetryPolicy(attempts=1)
"""Does not retry."""


class RetryingStore(Store):
    """A store that retries operations whose error is transient.

    Every operation may be repeated, except a create whose answer was lost: it would find its own object. So if the
    object exists after a failed attempt, it is read. If it has exactly our bytes, which nobody else writes, we created
    it.

    Args:
        store: makes one attempt per call.
        policy: how long to retry.
        until: monotonic seconds when all retries end; None if only the policy decides.
        interrupted: ends every operation once it is set, between two attempts and two parts of an object; None: nothing
            does.
    """

    def __init__(
        self,
        store: Store,
        policy: RetryPolicy = RetryPolicy(),
        until: float | None = None,
        clock: Callable[[], float] = runtime.monotonic,
        sleep: Callable[[float], None] = runtime.sleep,
        interrupted: runtime.Flag | None = None,
    ) -> None:
        self.store = store
        self.uri = store.uri
        self.fenced = store.fenced
        self.asked: StoreRequests = StoreRequests()
        self._policy = policy
        self._until = until
        self._clock = clock
        self._sleep = sleep
        self._interrupted = interrupted

    @override
    def within(self, seconds: float) -> Store:
        until, limited = self._clock() + seconds, copy(self)
        limited._until = until if self._until is None else min(until, self._until)
        return limited

    @override
    def afresh(self) -> Store:
        other = copy(self)
        other.store = self.store.afresh()
        return other

    def until_set(self, interrupted: runtime.Flag) -> RetryingStore:
        """Return the store with operations that end once an event is set."""

        def pause(seconds: float) -> None:
            interrupted.wait(seconds)

        ends_early = copy(self)
        ends_early._interrupted, ends_early._sleep = interrupted, pause
        return ends_early

    @override
    def read(self, key: str, offset: int = 0, length: int | None = None) -> bytes:
        return self._retry(lambda: self.store.read(key, offset, length))

    @override
    def write(self, key: str, data: bytes) -> None:
        self._retry(lambda: self.store.write(key, data))

    @override
    def create(self, key: str, data: bytes) -> None:
        """Write an object that must not exist yet.

        Raises:
            ObjectExistsError: the object exists, and it is not ours.
            OutcomeUnknownError: the retries ended after an attempt that may have succeeded.
        """
        unknown = False

        def attempt() -> None:
            nonlocal unknown
            try:
                self.store.create(key, data)
            except ObjectExistsError:
                if not unknown or not _is_own(self.store, key, data):
                    raise
                _log.info("a create had succeeded although its answer was lost", store=self.uri, key=key)
            except StoreFailedError as error:
                unknown = unknown or error.transient
                raise

        try:
            self._retry(attempt)
        except StoreFailedError as error:
            if not unknown:
                raise
            raise OutcomeUnknownError(
                error.store, error.key, error.operation, error.reason, error.transient, error.attempts
            ) from error

    @override
    def list(self, prefix: str = "") -> list[str]:
        return self._retry(lambda: self.store.list(prefix))

    @override
    def scan(self, prefix: str = "") -> dict[str, ObjectStat]:
        return self._retry(lambda: self.store.scan(prefix))

    @override
    def delete(self, key: str) -> None:
        self._retry(lambda: self.store.delete(key))

    @override
    def delete_all(self, keys: Collection[str]) -> None:
        left = keys

        def attempt() -> None:
            nonlocal left
            try:
                self.store.delete_all(left)
            except NotDeletedError as error:
                left = list(error.failed)
                raise

        self._retry(attempt)

    @override
    def upload(self, path: Path, key: str) -> None:
        self._retry(lambda: self.store.upload(path, key))

    @override
    def download(self, key: str, path: Path, size: int | None = None) -> str | None:
        # The default reads part by part: then only a part that fails is read again.
        if type(self.store).download is Store.download:
            return super().download(key, path, size)
        return self._retry(lambda: self.store.download(key, path, size))

    @override
    def is_same_file(self, key: str, path: Path) -> bool:
        return self.store.is_same_file(key, path)

    @override
    def copy(self, source: Store, source_key: str, key: str) -> bool:
        inner = source.store if isinstance(source, RetryingStore) else source
        return self._retry(lambda: self.store.copy(inner, source_key, key))

    @override
    def stat(self, key: str) -> ObjectStat:
        return self._retry(lambda: self.store.stat(key))

    @override
    def sweep(self, before: float) -> None:
        self._retry(lambda: self.store.sweep(before))

    def _retry(self, attempt: Callable[[], T]) -> T:
        asked, until = self.asked, self._clock() + self._policy.seconds
        if self._until is not None:
            until = min(until, self._until)

        def is_over(state: RetryCallState) -> bool:
            return (
                state.attempt_number >= self._policy.attempts or self._clock() + state.upcoming_sleep > until
            )

        def unless_interrupted() -> T:
            if self._interrupted is not None and self._interrupted.is_set():
                raise OperationInterruptedError(self.uri)
            asked.count(attempts=1)
            return attempt()

        def before_sleep(state: RetryCallState) -> None:
            asked.count(retries=1)
            _log_retry(state)

        retrying = Retrying(
            retry=retry_if_exception(_is_transient),
            wait=self._policy.wait,
            stop=is_over,
            sleep=self._sleep,
            before_sleep=before_sleep,
            retry_error_callback=_give_up,
        )
        try:
            return retrying(unless_interrupted)
        except StoreFailedError:
            asked.count(failures=1)
            raise


def interruptible(store: Store, interrupted: runtime.Flag) -> Store:
    """Return a store with operations that end with an ``OperationInterruptedError`` once an event is set.

    One that is under way ends between two attempts, and between two parts of a large object.
    """
    if isinstance(store, RetryingStore):
        return store.until_set(interrupted)
    return RetryingStore(store, ONCE, interrupted=interrupted)


def _is_transient(error: BaseException) -> bool:
    return isinstance(error, StoreFailedError) and error.transient


def _log_retry(state: RetryCallState) -> None:
    error = state.outcome.exception() if state.outcome else None
    _log.info("retrying", error=str(error), attempt=state.attempt_number, wait=state.upcoming_sleep)


def _give_up(state: RetryCallState) -> None:
    assert state.outcome is not None
    error = state.outcome.exception()
    assert isinstance(error, StoreFailedError)
    error.attempts = state.attempt_number
    raise error
