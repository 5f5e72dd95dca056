"""Trying again what failed in passing: one policy for all remote stores, in one place."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection
from pathlib import Path
from typing import TypeVar

import attrs
from tenacity import RetryCallState, Retrying, retry_if_exception, wait_random_exponential

from .errors import ObjectExistsError, OutcomeUnknownError, StoreFailedError
from .logs import logger
from .store import ObjectStat, Store

_log = logger(__name__)

T = TypeVar("T")

Patience = Callable[[StoreFailedError], bool]
"""Asked while the outcome of a create is unknown: waits a little, and returns whether to ask the store again."""


def no_patience(error: StoreFailedError) -> bool:
    """Give up at once."""
    return False


def create_surely(store: Store, key: str, data: bytes, patience: Patience = no_patience) -> None:
    """Create an object, and do not go on before it is known whether it was created.

    Args:
        store: where.
        key: the object.
        data: its bytes, which nobody else writes there.
        patience: asked each time that the store could not say.

    Raises:
        ObjectExistsError: somebody else's object exists.
        StoreFailedError: nothing was created.
        OutcomeUnknownError: the patience is over.
    """
    try:
        store.create(key, data)
    except OutcomeUnknownError as error:
        # Creating it again, not only reading: an attempt may still be on its way, and whatever is found missing
        # now could appear later.
        until_known(lambda: _create_again(store, key, data), error, patience)


def until_known(step: Callable[[], T], unknown: StoreFailedError | None, patience: Patience) -> T:
    """Repeat a step that tells what has become of a create until the store lets it.

    Raises:
        OutcomeUnknownError: the patience is over.
    """
    while True:
        if unknown is not None and not patience(unknown):
            raise OutcomeUnknownError(
                unknown.store, unknown.key, unknown.operation, unknown.reason, unknown.transient
            ) from unknown
        try:
            return step()
        except StoreFailedError as error:
            unknown = error


def _create_again(store: Store, key: str, data: bytes) -> None:
    try:
        store.create(key, data)
    except ObjectExistsError:
        if store.read(key) != data:
            raise


@attrs.frozen
class RetryPolicy:
    """How long to go on. Waits double from ``first`` to ``longest``, each by chance between 0 and that."""

    seconds: float = 60.0
    """After how many seconds an operation is given up."""
    attempts: int = 20
    """After how many attempts it is given up."""
    first: float = 0.1
    longest: float = 8.0


class RetryingStore(Store):
    """A store whose operations are tried again when the error is transient, and only then.

    Every operation of a store may be repeated, with one exception: a create whose answer was lost finds its
    own object when it is repeated. So an object that exists after a failed attempt is read: if it holds
    exactly our bytes, which nobody else writes, then we have created it.

    Args:
        store: makes one attempt for each call.
        policy: how long to go on.
        until: monotonic seconds when everything is given up; None: the policy alone decides.
    """

    def __init__(
        self,
        store: Store,
        policy: RetryPolicy = RetryPolicy(),
        until: float | None = None,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self.store = store
        self.uri = store.uri
        self.fenced = store.fenced
        self._policy = policy
        self._until = until
        self._clock = clock
        self._sleep = sleep

    def within(self, seconds: float) -> Store:
        """Return this store with a deadline for all operations together, so many seconds from now."""
        until = self._clock() + seconds
        if self._until is not None:
            until = min(until, self._until)
        return RetryingStore(self.store, self._policy, until, self._clock, self._sleep)

    def read(self, key: str, offset: int = 0, length: int | None = None) -> bytes:
        """Return the object's bytes, or ``length`` of them from ``offset``."""
        return self._retry(lambda: self.store.read(key, offset, length))

    def write(self, key: str, data: bytes) -> None:
        """Write an object whole, in place of any that is there."""
        self._retry(lambda: self.store.write(key, data))

    def create(self, key: str, data: bytes) -> None:
        """Write an object that must not exist yet; ``data`` must be nobody else's.

        Raises:
            ObjectExistsError: the object exists, and it is not ours.
            OutcomeUnknownError: given up after an attempt that may have succeeded.
        """
        doubtful = False

        def attempt() -> None:
            nonlocal doubtful
            try:
                self.store.create(key, data)
            except ObjectExistsError:
                if not doubtful or self.store.read(key) != data:
                    raise
                _log.info("a create whose answer was lost had succeeded", store=self.uri, key=key)
            except StoreFailedError as error:
                doubtful = doubtful or error.transient
                raise

        try:
            self._retry(attempt)
        except StoreFailedError as error:
            if not doubtful:
                raise
            raise OutcomeUnknownError(
                error.store, error.key, error.operation, error.reason, error.transient, error.attempts
            ) from error

    def list(self, prefix: str = "") -> list[str]:
        """Return the keys that begin with ``prefix``, sorted."""
        return self._retry(lambda: self.store.list(prefix))

    def scan(self, prefix: str = "") -> dict[str, ObjectStat]:
        """Return what is known of each object whose key begins with ``prefix``."""
        return self._retry(lambda: self.store.scan(prefix))

    def delete(self, key: str) -> None:
        """Delete an object; one that is not there is no error."""
        self._retry(lambda: self.store.delete(key))

    def delete_all(self, keys: Collection[str]) -> None:
        """Delete objects; those that are not there are no error."""
        self._retry(lambda: self.store.delete_all(keys))

    def upload(self, path: Path, key: str) -> None:
        """Store a local file that will never change again."""
        self._retry(lambda: self.store.upload(path, key))

    def download(self, key: str, path: Path, size: int | None = None) -> str | None:
        """Bring an object to a new local file; a part that fails is asked for again by itself."""
        if type(self.store).download is Store.download:
            return super().download(key, path, size)
        return self._retry(lambda: self.store.download(key, path, size))

    def copy(self, source: Store, source_key: str, key: str) -> bool:
        """Copy an object of another place into this one without its bytes coming by."""
        origin = source.store if isinstance(source, RetryingStore) else source
        return self._retry(lambda: self.store.copy(origin, source_key, key))

    def stat(self, key: str) -> ObjectStat:
        """Return size and age of an object."""
        return self._retry(lambda: self.store.stat(key))

    def sweep(self, before: float) -> None:
        """Delete what interrupted writes have left that is no object."""
        self._retry(lambda: self.store.sweep(before))

    def _retry(self, attempt: Callable[[], T]) -> T:
        began = self._clock()
        until = began + self._policy.seconds
        if self._until is not None:
            until = min(until, self._until)

        def is_over(state: RetryCallState) -> bool:
            return (
                state.attempt_number >= self._policy.attempts or self._clock() + state.upcoming_sleep > until
            )

        retrying = Retrying(
            retry=retry_if_exception(_is_transient),
            wait=wait_random_exponential(multiplier=self._policy.first, max=self._policy.longest),
            stop=is_over,
            sleep=self._sleep,
            before_sleep=_tell,
            retry_error_callback=_give_up,
        )
        return retrying(attempt)


def _is_transient(error: BaseException) -> bool:
    return isinstance(error, StoreFailedError) and error.transient


def _tell(state: RetryCallState) -> None:
    error = state.outcome.exception() if state.outcome else None
    _log.info("trying again", error=str(error), attempt=state.attempt_number, wait=state.upcoming_sleep)


def _give_up(state: RetryCallState) -> None:
    assert state.outcome is not None
    error = state.outcome.exception()
    assert isinstance(error, StoreFailedError)
    error.attempts = state.attempt_number
    raise error
