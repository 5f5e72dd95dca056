"""The runtime that the simulator puts into the place of the interpreter's: time, chance, locks, threads and pools."""

from __future__ import annotations

from collections.abc import Callable, Collection
from concurrent.futures import CancelledError, Executor, Future
from contextlib import suppress
from functools import partial
from typing import Any, Final, TypeVar

from greenlet import GreenletExit
from typing_extensions import override

from chandy.storage import runtime

from .scheduler import EPOCH, Scheduler, SimulatedThread

T = TypeVar("T")


class SimulatedLock:
    """A ``threading.Lock``."""

    def __init__(self, scheduler: Scheduler) -> None:
        self._scheduler = scheduler
        self._is_held = False
        self._waiting: list[tuple[SimulatedThread, int]] = []

    def acquire(self, blocking: bool = True, timeout: float = -1) -> bool:
        """See ``threading.Lock``."""
        scheduler = self._scheduler
        if not scheduler.is_over:
            scheduler.point()
            if self._is_held and not (
                blocking
                and scheduler.wait_until(
                    lambda: not self._is_held, self._waiting, None if timeout < 0 else timeout, "a lock"
                )
            ):
                return False
        self._is_held = True
        return True

    def release(self) -> None:
        """See ``threading.Lock``."""
        if not self._is_held and not self._scheduler.is_over:
            raise RuntimeError("release unlocked lock")
        self._is_held = False
        self._scheduler.wake(self._waiting)

    def locked(self) -> bool:
        """See ``threading.Lock``."""
        return self._is_held

    def __enter__(self) -> bool:
        return self.acquire()

    def __exit__(self, *_: object) -> None:
        self.release()


class SimulatedRLock:
    """A ``threading.RLock``, and the ``Condition`` that has one."""

    def __init__(self, scheduler: Scheduler) -> None:
        self._scheduler = scheduler
        self._owner: object = None
        self._times = 0
        self._acquiring: list[tuple[SimulatedThread, int]] = []
        self._waiting: list[tuple[SimulatedThread, int]] = []

    def _myself(self) -> object:
        return self._scheduler.current or self._scheduler

    def acquire(self, blocking: bool = True, timeout: float = -1) -> bool:
        """See ``threading.RLock``."""
        scheduler = self._scheduler
        me = self._myself()
        if self._owner is not me and not scheduler.is_over:
            scheduler.point()
            if self._owner is not None and not (
                blocking
                and scheduler.wait_until(
                    lambda: self._owner is None, self._acquiring, None if timeout < 0 else timeout, "a lock"
                )
            ):
                return False
        self._owner = me
        self._times += 1
        return True

    def release(self) -> None:
        """See ``threading.RLock``."""
        if self._owner is not self._myself() and not self._scheduler.is_over:
            raise RuntimeError("cannot release un-acquired lock")
        self._times -= 1
        if self._times <= 0:
            self._owner, self._times = None, 0
            self._scheduler.wake(self._acquiring)

    def wait(self, timeout: float | None = None) -> bool:
        """See ``threading.Condition``."""
        times, self._times, self._owner = self._times, 0, None
        self._scheduler.wake(self._acquiring)
        try:
            return self._scheduler.hold(self._waiting, timeout, "a condition")
        finally:
            self.acquire()
            self._times = times

    def wait_for(self, predicate: Callable[[], bool], timeout: float | None = None) -> bool:
        """See ``threading.Condition``."""
        until = None if timeout is None else self._scheduler.now + timeout
        while not (found := predicate()):
            if until is not None and self._scheduler.now >= until:
                break
            self.wait(None if until is None else until - self._scheduler.now)
        return found

    def notify(self, n: int = 1) -> None:
        """See ``threading.Condition``."""
        self._scheduler.wake(self._waiting, n)

    def notify_all(self) -> None:
        """See ``threading.Condition``."""
        self._scheduler.wake(self._waiting)

    def __enter__(self) -> bool:
        return self.acquire()

    def __exit__(self, *_: object) -> None:
        self.release()


class SimulatedFlag:
    """A ``threading.Event``."""

    def __init__(self, scheduler: Scheduler) -> None:
        self._scheduler = scheduler
        self._is_set = False
        self._waiting: list[tuple[SimulatedThread, int]] = []

    def is_set(self) -> bool:
        """See ``threading.Event``."""
        return self._is_set

    def set(self) -> None:
        """See ``threading.Event``."""
        self._is_set = True
        self._scheduler.wake(self._waiting)

    def clear(self) -> None:
        """See ``threading.Event``."""
        self._is_set = False

    def wait(self, timeout: float | None = None) -> bool:
        """See ``threading.Event``."""
        # As the interpreter's, it returns if it was set while the thread waited, though it be cleared since.
        self._scheduler.point()
        return self._is_set or self._scheduler.hold(self._waiting, timeout, "a flag") or self._is_set


class SimulatedQueue:
    """A ``queue.SimpleQueue``."""

    def __init__(self, scheduler: Scheduler) -> None:
        self._scheduler = scheduler
        self._items: list[Any] = []
        self._waiting: list[tuple[SimulatedThread, int]] = []

    def put(self, item: Any) -> None:
        """See ``queue.SimpleQueue``."""
        self._items.append(item)
        self._scheduler.wake(self._waiting, 1)
        self._scheduler.point()

    def get(self, block: bool = True, timeout: float | None = None) -> Any:
        """See ``queue.SimpleQueue``."""
        if block:
            self._scheduler.wait_until(lambda: bool(self._items), self._waiting, timeout, "a queue")
        if not self._items:
            raise runtime.Empty
        return self._items.pop(0)

    def get_nowait(self) -> Any:
        """See ``queue.SimpleQueue``."""
        return self.get(block=False)

    def empty(self) -> bool:
        """See ``queue.SimpleQueue``."""
        return not self._items

    def qsize(self) -> int:
        """See ``queue.SimpleQueue``."""
        return len(self._items)


class SimulatedFuture(Future[T]):
    """A ``Future`` for whose end simulated threads wait."""

    def __init__(self, scheduler: Scheduler) -> None:
        super().__init__()
        self._condition: Any = SimulatedRLock(scheduler)


class SimulatedPool(Executor):
    """A ``ThreadPoolExecutor``: it starts a thread for a call if none is idle, up to so many."""

    def __init__(
        self, scheduler: Scheduler, threads: int, name: str, initializer: Callable[[], object] | None
    ):
        self._scheduler = scheduler
        self._most, self._name, self._initializer = threads, name, initializer
        self._process = scheduler.here
        self._threads: list[SimulatedThread] = []
        self._idle = 0
        self._calls: list[tuple[SimulatedFuture[Any], Callable[[], Any]]] = []
        self._is_shut = False
        self._waiting: list[tuple[SimulatedThread, int]] = []

    @override
    def submit(self, fn: Callable[..., T], /, *args: Any, **kwargs: Any) -> Future[T]:
        if self._is_shut:
            raise RuntimeError("cannot schedule new futures after shutdown")
        future: SimulatedFuture[T] = SimulatedFuture(self._scheduler)
        self._calls.append((future, lambda: fn(*args, **kwargs)))
        if self._idle < len(self._calls) and len(self._threads) < self._most:
            thread = SimulatedThread(
                self._scheduler, self._process, f"{self._name}_{len(self._threads)}", self._work
            )
            self._threads.append(thread)
            thread.start()
        else:
            self._scheduler.wake(self._waiting, 1)
            self._scheduler.point()
        return future

    @override
    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        self._is_shut = True
        if cancel_futures:
            calls, self._calls = self._calls, []
            for future, _ in calls:
                future.cancel()
        self._scheduler.wake(self._waiting)
        if wait and not self._scheduler.is_over:
            for thread in self._threads:
                thread.join()

    def _work(self) -> None:
        if self._initializer is not None:
            self._initializer()
        while True:
            self._idle += 1
            self._scheduler.wait_until(
                lambda: bool(self._calls) or self._is_shut, self._waiting, None, f"work for {self._name}"
            )
            self._idle -= 1
            if not self._calls:
                return
            future, call = self._calls.pop(0)
            if future.set_running_or_notify_cancel():
                try:
                    found = call()
                except GreenletExit:
                    raise
                except BaseException as error:  # noqa: BLE001 (whoever waits gets it)
                    future.set_exception(error)
                else:
                    future.set_result(found)


class SimulatedRuntime:
    """A ``runtime.Runtime`` whose time passes when nobody can go on, and whose chance is the run's.

    Args:
        scheduler: of the threads.
    """

    def __init__(self, scheduler: Scheduler) -> None:
        self.scheduler: Final = scheduler
        self._chance: Final = scheduler.choices.stream("product")

    def monotonic(self) -> float:
        """See ``runtime.Runtime``."""
        return self.scheduler.now

    def since_boot(self) -> float:
        """See ``runtime.Runtime``."""
        return self.scheduler.now

    def time(self) -> float:
        """See ``runtime.Runtime``."""
        return EPOCH + self.scheduler.now + self.scheduler.here.offset

    def sleep(self, seconds: float) -> None:
        """See ``runtime.Runtime``."""
        self.scheduler.sleep(seconds)

    def random(self) -> float:
        """See ``runtime.Runtime``."""
        return self._chance.random()

    def token(self) -> str:
        """See ``runtime.Runtime``."""
        return f"{self._chance.getrandbits(128):032x}"

    def lock(self) -> runtime.Lock:
        """See ``runtime.Runtime``."""
        return SimulatedLock(self.scheduler)

    def rlock(self) -> runtime.Lock:
        """See ``runtime.Runtime``."""
        return SimulatedRLock(self.scheduler)

    def condition(self) -> runtime.Condition:
        """See ``runtime.Runtime``."""
        return SimulatedRLock(self.scheduler)

    def flag(self) -> runtime.Flag:
        """See ``runtime.Runtime``."""
        return SimulatedFlag(self.scheduler)

    def queue(self) -> runtime.Queue[Any]:
        """See ``runtime.Runtime``."""
        return SimulatedQueue(self.scheduler)

    def future(self) -> Future[Any]:
        """See ``runtime.Runtime``."""
        return SimulatedFuture(self.scheduler)

    def wait(self, futures: Collection[Future[Any]], timeout: float | None) -> None:
        """See ``runtime.Runtime``."""
        until = None if timeout is None else self.scheduler.now + timeout
        for future in futures:
            with suppress(Exception, CancelledError):
                future.result(None if until is None else max(0.0, until - self.scheduler.now))

    def pool(self, threads: int, name: str, initializer: Callable[[], object] | None) -> Executor:
        """See ``runtime.Runtime``."""
        return SimulatedPool(self.scheduler, threads, name, initializer)

    def thread(self, target: Callable[..., object], name: str, args: tuple[Any, ...]) -> runtime.Thread:
        """See ``runtime.Runtime``."""
        return SimulatedThread(self.scheduler, self.scheduler.here, name, partial(target, *args))

    def current_thread(self) -> runtime.Thread:
        """See ``runtime.Runtime``."""
        current = self.scheduler.current
        assert current is not None, "the world itself is no thread"
        return current

    def own(self, factory: Callable[[], T]) -> T:
        """See ``runtime.Runtime``."""
        own = self.scheduler.here.own
        if factory not in own:
            own[factory] = factory()
        return own[factory]  # type: ignore[no-any-return]
