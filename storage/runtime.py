"""What the driver and its state hosts take from their surroundings, and only from here: time, chance and threads.

In production these are the interpreter's own. A simulator puts its own in their place with ``used``: a run is then
decided by a seed, and its hours pass in milliseconds.
"""

from __future__ import annotations

import concurrent.futures
import queue
import random as chance
import secrets
import threading
import time as clocks
from collections.abc import Callable, Collection, Iterator
from concurrent.futures import Executor, Future
from contextlib import AbstractContextManager, contextmanager
from typing import Any, Final, Protocol, TypeVar, runtime_checkable

T = TypeVar("T")

Empty = queue.Empty
"""What a queue raises from which nothing could be taken."""


class Lock(AbstractContextManager[Any], Protocol):
    """A ``threading.Lock`` or an ``RLock``."""

    def acquire(self, blocking: bool = True, timeout: float = -1) -> bool:
        """See ``threading.Lock``."""

    def release(self) -> None:
        """See ``threading.Lock``."""


class Condition(Lock, Protocol):
    """A ``threading.Condition``."""

    def wait(self, timeout: float | None = None) -> bool:
        """See ``threading.Condition``."""

    def wait_for(self, predicate: Callable[[], bool], timeout: float | None = None) -> bool:
        """See ``threading.Condition``."""

    def notify(self, n: int = 1) -> None:
        """See ``threading.Condition``."""

    def notify_all(self) -> None:
        """See ``threading.Condition``."""


@runtime_checkable
class Flag(Protocol):
    """A ``threading.Event``."""

    def is_set(self) -> bool:
        """See ``threading.Event``."""

    def set(self) -> None:
        """See ``threading.Event``."""

    def clear(self) -> None:
        """See ``threading.Event``."""

    def wait(self, timeout: float | None = None) -> bool:
        """See ``threading.Event``."""


class Thread(Protocol):
    """A ``threading.Thread``."""

    @property
    def name(self) -> str:
        """See ``threading.Thread``."""

    def start(self) -> None:
        """See ``threading.Thread``."""

    def join(self, timeout: float | None = None) -> None:
        """See ``threading.Thread``."""

    def is_alive(self) -> bool:
        """See ``threading.Thread``."""


class Queue(Protocol[T]):
    """A ``queue.SimpleQueue``."""

    def put(self, item: T) -> None:
        """See ``queue.SimpleQueue``."""

    def get(self, block: bool = True, timeout: float | None = None) -> T:
        """See ``queue.SimpleQueue``."""

    def get_nowait(self) -> T:
        """See ``queue.SimpleQueue``."""

    def empty(self) -> bool:
        """See ``queue.SimpleQueue``."""

    def qsize(self) -> int:
        """See ``queue.SimpleQueue``."""


class Runtime(Protocol):
    """Where time, chance and threads come from."""

    def monotonic(self) -> float:
        """See ``time.monotonic``."""

    def time(self) -> float:
        """See ``time.time``."""

    def since_boot(self) -> float:
        """Return seconds since the machine started, with those in which it was suspended if the system counts them."""

    def sleep(self, seconds: float) -> None:
        """See ``time.sleep``."""

    def random(self) -> float:
        """See ``random.random``."""

    def token(self) -> str:
        """Return 32 hexadecimal digits that nobody else has."""

    def lock(self) -> Lock:
        """See ``threading.Lock``."""

    def rlock(self) -> Lock:
        """See ``threading.RLock``."""

    def condition(self) -> Condition:
        """See ``threading.Condition``."""

    def flag(self) -> Flag:
        """See ``threading.Event``."""

    def queue(self) -> Queue[Any]:
        """See ``queue.SimpleQueue``."""

    def future(self) -> Future[Any]:
        """See ``concurrent.futures.Future``."""

    def wait(self, futures: Collection[Future[Any]], timeout: float | None) -> None:
        """See ``concurrent.futures.wait``."""

    def pool(self, threads: int, name: str, initializer: Callable[[], object] | None) -> Executor:
        """See ``concurrent.futures.ThreadPoolExecutor``."""

    def thread(self, target: Callable[..., object], name: str, args: tuple[Any, ...]) -> Thread:
        """See ``threading.Thread``; the process does not wait for it when it ends."""

    def current_thread(self) -> Thread:
        """See ``threading.current_thread``."""

    def own(self, factory: Callable[[], T]) -> T:
        """Return what the process has one of, made when it is first asked for."""


# Linux stops CLOCK_MONOTONIC while a machine is suspended; macOS has no other name for the clock that goes on.
_GOES_ON_ASLEEP: Final = getattr(clocks, "CLOCK_BOOTTIME", clocks.CLOCK_MONOTONIC)


class Interpreter:
    """The interpreter's own time, chance and threads."""

    monotonic = staticmethod(clocks.monotonic)
    time = staticmethod(clocks.time)
    sleep = staticmethod(clocks.sleep)
    random = staticmethod(chance.random)
    lock = staticmethod(threading.Lock)
    rlock = staticmethod(threading.RLock)
    condition = staticmethod(threading.Condition)
    flag = staticmethod(threading.Event)
    current_thread = staticmethod(threading.current_thread)

    def __init__(self) -> None:
        self._own: dict[Callable[[], Any], Any] = {}
        self._making = threading.RLock()

    def since_boot(self) -> float:
        """See ``Runtime``."""
        return clocks.clock_gettime(_GOES_ON_ASLEEP)

    def token(self) -> str:
        """See ``Runtime``."""
        return secrets.token_hex(16)

    def queue(self) -> Queue[Any]:
        """See ``Runtime``."""
        return queue.SimpleQueue()

    def future(self) -> Future[Any]:
        """See ``Runtime``."""
        return Future()

    def wait(self, futures: Collection[Future[Any]], timeout: float | None) -> None:
        """See ``Runtime``."""
        concurrent.futures.wait(futures, timeout)

    def pool(self, threads: int, name: str, initializer: Callable[[], object] | None) -> Executor:
        """See ``Runtime``."""
        return concurrent.futures.ThreadPoolExecutor(threads, name, initializer=initializer)

    def thread(self, target: Callable[..., object], name: str, args: tuple[Any, ...]) -> Thread:
        """See ``Runtime``."""
        return threading.Thread(target=target, name=name, args=args, daemon=True)

    def own(self, factory: Callable[[], T]) -> T:
        """See ``Runtime``."""
        with self._making:
            if factory not in self._own:
                self._own[factory] = factory()
        return self._own[factory]  # type: ignore[no-any-return]


_runtime: Runtime = Interpreter()


@contextmanager
def used(runtime: Runtime) -> Iterator[None]:
    """Use another runtime inside of the ``with``, in the whole process."""
    global _runtime
    before, _runtime = _runtime, runtime
    try:
        yield
    finally:
        _runtime = before


def monotonic() -> float:
    """Return seconds from any moment, never going back."""
    return _runtime.monotonic()


def time() -> float:
    """Return seconds since 1970, by a clock that may be set to any value."""
    return _runtime.time()


def since_boot() -> float:
    """Return seconds since the machine started, with those in which it was suspended if the system counts them."""
    return _runtime.since_boot()


def sleep(seconds: float) -> None:
    """Wait."""
    _runtime.sleep(seconds)


def random() -> float:
    """Return a number of at least 0 and below 1."""
    return _runtime.random()


def token() -> str:
    """Return 32 hexadecimal digits that nobody else has."""
    return _runtime.token()


def lock() -> Lock:
    """Return a ``threading.Lock``."""
    return _runtime.lock()


def rlock() -> Lock:
    """Return a ``threading.RLock``."""
    return _runtime.rlock()


def condition() -> Condition:
    """Return a ``threading.Condition`` with a lock of its own."""
    return _runtime.condition()


def flag() -> Flag:
    """Return a ``threading.Event``."""
    return _runtime.flag()


def simple_queue() -> Queue[Any]:
    """Return a ``queue.SimpleQueue``."""
    return _runtime.queue()


def future() -> Future[Any]:
    """Return a ``concurrent.futures.Future``."""
    return _runtime.future()


def wait(futures: Collection[Future[Any]], timeout: float | None = None) -> None:
    """Wait until all are done, and no longer than ``timeout`` seconds."""
    _runtime.wait(futures, timeout)


def pool(threads: int, name: str, initializer: Callable[[], object] | None = None) -> Executor:
    """Return a ``ThreadPoolExecutor``."""
    return _runtime.pool(threads, name, initializer)


def thread(target: Callable[..., object], name: str, args: tuple[Any, ...] = ()) -> Thread:
    """Return a thread that has not started. The process does not wait for it when it ends."""
    return _runtime.thread(target, name, args)


def current_thread() -> Thread:
    """Return the thread that calls."""
    return _runtime.current_thread()


def own(factory: Callable[[], T]) -> T:
    """Return what this process has one of, made by the factory when it is first asked for."""
    return _runtime.own(factory)
