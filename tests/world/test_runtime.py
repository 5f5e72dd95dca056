"""The simulator's threads do what the interpreter's do, and everything else that a run needs of them."""

from __future__ import annotations

import contextvars
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from chandy.storage import runtime

from ..effort import trying
from .choices import Choices
from .runtime import SimulatedRuntime
from .scheduler import Pace, Scheduler, StuckError, UnhandledError

BUSY = Pace(preempted=0.5, held_up=0.05)


@contextmanager
def simulated(seed: object = 0, pace: Pace = BUSY) -> Iterator[Scheduler]:
    scheduler = Scheduler(Choices(seed), pace)
    with runtime.used(SimulatedRuntime(scheduler)):
        try:
            yield scheduler
        finally:
            scheduler.end()


# --- the same programs on both ------------------------------------------------------------------------------


def counted() -> object:
    """Threads that add to a number under a lock lose nothing."""
    lock, numbers = runtime.lock(), [0]

    def add() -> None:
        for _ in range(20):
            with lock:
                found = numbers[0]
                runtime.sleep(0)
                numbers[0] = found + 1

    threads = [runtime.thread(add, f"adds-{number}") for number in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return numbers[0], [thread.is_alive() for thread in threads]


def handed_over() -> object:
    """What is put into a queue comes out of it, in its order."""
    queue = runtime.simple_queue()
    thread = runtime.thread(lambda numbers: [queue.put(number) for number in numbers], "puts", (range(5),))
    thread.start()
    found = [queue.get() for _ in range(5)]
    thread.join()
    try:
        queue.get(timeout=0.001)
    except runtime.Empty:
        found.append("empty")
    return found, queue.empty(), queue.qsize()


def pooled() -> object:
    """A pool's futures have what its calls return and raise, in the order of the calls if it has one thread."""
    begun: list[object] = []

    def call(number: int) -> int:
        begun.append(number)
        if number == 3:
            raise KeyError(number)
        return number * number

    with runtime.pool(1, "pool", lambda: begun.append("begun")) as pool:
        futures = [pool.submit(call, number) for number in range(5)]
        runtime.wait(futures)
        found = list(pool.map(call, range(10, 13)))
    try:
        pool.submit(call, 1)
    except RuntimeError as error:
        begun.append(type(error))
    return begun, [repr(future.exception()) for future in futures], found


def promised() -> object:
    """Whoever waits for a future has what another thread says, and what is told of it is called."""
    future, told = runtime.future(), runtime.simple_queue()
    future.add_done_callback(lambda done: told.put(done.result()))
    runtime.thread(future.set_result, "sets", (7,)).start()
    late: Future[Any] = runtime.future()
    runtime.wait([late], 0.001)
    return future.result(), told.get(), late.done(), late.cancel()


def waited() -> object:
    """A condition and a flag wake those that wait, and a time that is over does."""
    condition, flag, values = runtime.condition(), runtime.flag(), [0]

    def change() -> None:
        for _ in range(3):
            with condition:
                values[0] += 1
                condition.notify_all()
        flag.set()

    with condition:
        early = condition.wait_for(lambda: values[0] == 3, 0.001)
        runtime.thread(change, "changes").start()
        found = condition.wait_for(lambda: values[0] == 3)
        never = condition.wait(0.001)
    return early, found, never, flag.wait(), flag.is_set(), flag.clear(), flag.wait(0.001)


def reentered() -> object:
    """Whoever has a re-entrant lock gets it again, and nobody else does before it is free."""
    lock, plain = runtime.rlock(), runtime.lock()
    queue = runtime.simple_queue()

    def attempt() -> None:
        queue.put(lock.acquire(blocking=False))
        queue.put(lock.acquire(timeout=0.001))
        queue.put(plain.acquire(blocking=False))

    with lock, lock, plain:
        thread = runtime.thread(attempt, "attempts")
        thread.start()
        thread.join()
    found = [queue.get() for _ in range(3)]
    with pytest.raises(RuntimeError):
        plain.release()
    return found, lock.acquire(False), plain.acquire(False)


def in_context() -> object:
    """A thread begins without the context of the one that starts it."""
    name: contextvars.ContextVar[str] = contextvars.ContextVar("name", default="none")
    name.set("mine")
    queue = runtime.simple_queue()

    def tell() -> None:
        queue.put(name.get())
        name.set("its own")

    thread = runtime.thread(tell, "tells")
    thread.start()
    thread.join()
    return queue.get(), name.get(), runtime.own(dict) is runtime.own(dict), thread.name


@pytest.mark.parametrize(
    "program",
    [counted, handed_over, pooled, promised, waited, reentered, in_context],
    ids=lambda one: one.__name__,
)
@given(st.integers(0, 2**32))
@trying(15)
def test_a_program_does_the_same_on_simulated_threads_as_on_the_interpreters(
    program: Callable[[], object], seed: int
) -> None:
    expected = program()
    with simulated(seed) as scheduler:
        assert scheduler.call(scheduler.process("driver"), program) == expected


# --- what only the simulator has -----------------------------------------------------------------------------


def test_hours_pass_in_no_time_and_the_time_of_day_may_jump() -> None:
    with simulated() as scheduler:
        driver, host = scheduler.process("driver"), scheduler.process("host")
        before = scheduler.call(driver, runtime.time)
        scheduler.call(driver, lambda: runtime.sleep(36_000))
        driver.offset = -1e6
        assert 0 < scheduler.call(host, runtime.time) - before - 36_000 < 60
        assert -1e6 < scheduler.call(driver, runtime.time) - before - 36_000 < 60 - 1e6
        assert 36_000 < scheduler.call(driver, runtime.monotonic) < 36_060


def order(seed: object) -> list[int]:
    """In which order threads have done something."""
    done: list[int] = []

    def act(number: int) -> None:
        for _ in range(5):
            runtime.sleep(runtime.random())
            done.append(number)

    with simulated(seed) as scheduler, scheduler.inside(scheduler.process("driver")):
        for number in range(3):
            runtime.thread(act, f"thread-{number}", (number,)).start()
        scheduler.run(lambda: len(done) == 15)
    return done


def test_a_seed_decides_the_whole_run_and_another_one_makes_another() -> None:
    assert order(1) == order(1)
    assert len({tuple(order(seed)) for seed in range(10)}) == 10


def test_a_race_is_found() -> None:
    def lost(seed: int) -> bool:
        numbers, guarded = [0], []

        def add() -> None:
            found = numbers[0]
            with runtime.lock():
                guarded.append(1)
            numbers[0] = found + 1

        with simulated(seed, Pace()) as scheduler, scheduler.inside(scheduler.process("driver")):
            for _ in range(2):
                runtime.thread(add, "adds").start()
            scheduler.run(lambda: len(guarded) == 2 and not any(scheduler.here.threads))
        return numbers[0] == 1

    assert any(lost(seed) for seed in range(300))


def test_a_killed_process_does_nothing_more_not_even_at_the_end() -> None:
    done: list[str] = []

    def work() -> None:
        lock = runtime.lock()
        try:
            with lock:
                runtime.sleep(10)
        finally:
            with lock:
                done.append("its end")
                runtime.sleep(1)
                done.append("after it")

    with simulated() as scheduler:
        driver = scheduler.process("driver")
        driver.at_end.append(lambda: done.append("killed"))
        scheduler.spawn(driver, work, "works")
        scheduler.call(scheduler.world, lambda: runtime.sleep(1))
        scheduler.kill(driver)
        scheduler.call(scheduler.world, lambda: runtime.sleep(60))
        assert done == ["killed"]
        scheduler.spawn(host := scheduler.process("host"), lambda: scheduler.kill(host), "kills itself")
        scheduler.call(scheduler.world, lambda: runtime.sleep(60))
        assert not host.is_alive
    assert "after it" not in done


def test_a_frozen_process_goes_on_where_it_was_once_it_is_thawed() -> None:
    with simulated() as scheduler:
        driver = scheduler.process("driver")
        moments: list[float] = []

        def work() -> None:
            for _ in range(3):
                runtime.sleep(10)
                moments.append(runtime.monotonic())

        scheduler.spawn(driver, work, "works")
        scheduler.call(scheduler.world, lambda: runtime.sleep(15))
        scheduler.freeze(driver)
        scheduler.call(scheduler.world, lambda: runtime.sleep(100))
        assert len(moments) == 1
        scheduler.thaw(driver)
        scheduler.run(lambda: len(moments) == 3)
        assert moments[1] > 115 and moments[2] >= moments[1] + 10


def test_a_run_that_is_stuck_says_who_waits_for_what() -> None:
    with simulated() as scheduler:
        driver = scheduler.process("driver")
        flag = scheduler.call(driver, runtime.flag)
        with pytest.raises(StuckError, match=r"driver: caller waits for a flag\n *.*test_runtime.py"):
            scheduler.call(driver, lambda: flag.wait())
        with pytest.raises(StuckError, match="not come to an end in 50 steps"):
            scheduler.call(driver, lambda: [runtime.sleep(1) for _ in range(100)], steps=50)


def test_an_error_that_ends_a_thread_ends_the_run_and_what_a_call_raises_is_raised() -> None:
    with simulated() as scheduler:
        driver = scheduler.process("driver")
        with pytest.raises(UnhandledError, match="driver: broken ended by KeyError"):
            scheduler.spawn(driver, lambda: dict[str, str]()["key"], "broken")
            scheduler.call(driver, lambda: runtime.sleep(100))
        with pytest.raises(KeyError):
            scheduler.call(driver, lambda: dict[str, str]()["key"])


def test_each_process_has_its_own_of_what_a_process_has_once() -> None:
    with simulated() as scheduler:
        one, other = scheduler.process("one"), scheduler.process("other")
        assert scheduler.call(one, lambda: runtime.own(list)) is scheduler.call(
            one, lambda: runtime.own(list)
        )
        assert scheduler.call(one, lambda: runtime.own(list)) is not scheduler.call(
            other, lambda: runtime.own(list)
        )


def test_what_always_holds_is_looked_at_after_each_step() -> None:
    with simulated() as scheduler:
        looked: list[int] = []
        scheduler.looks.append(lambda: looked.append(scheduler.steps))
        scheduler.call(scheduler.world, lambda: runtime.sleep(1))
        assert looked == list(range(1, scheduler.steps + 1))
