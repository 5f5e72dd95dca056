"""Threads as greenlets, the processes that they belong to, and who of them goes next at which simulated time.

All run in one thread of the interpreter, so one goes at a time, and another one only where a thread is held up: by a
lock, a wait, a call to the outside. A thread of a killed process never goes on. What is left of it is thrown away at
the end of the run, when nothing listens any more.
"""

from __future__ import annotations

import heapq
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final, TypeVar

import attrs
from greenlet import GreenletExit, greenlet

from .choices import Choices

T = TypeVar("T")

EPOCH: Final = 1_800_000_000.0
"""Seconds since 1970 when a run begins."""
_OWN: Final = (__file__, str(Path(__file__).with_name("runtime.py")))
"""Modules in which a thread that waits is anyhow."""
_INSTANT: Final = 1e-6
"""Seconds that pass whenever a thread goes on: no two things happen at the same moment."""


class StuckError(AssertionError):
    """Nobody can go on, and no time would change that."""


class UnhandledError(AssertionError):
    """A thread of the product ended by an error."""


@attrs.frozen
class Pace:
    """How threads are held up where they need not be."""

    preempted: float = 0.05
    """How often another thread goes first, of the moments at which one could."""
    held_up: float = 0.0005
    """How often a thread stands still for a while, as if the machine had no time for it."""
    longest: float = 5.0
    """Seconds that it stands still at most."""


@attrs.define(eq=False)
class SimulatedProcess:
    """What threads share that live and die together."""

    name: str
    offset: float = 0.0
    """Seconds by which its time of day differs from the world's: a jump of its clock is a change of it."""
    is_alive: bool = True
    is_frozen: bool = False
    machine: Any = None
    """The ``Machine`` that it runs on; None: it is everywhere, and always reached."""
    threads: list[SimulatedThread] = attrs.field(factory=list, repr=False)
    """Those that have started and not ended."""
    held: list[SimulatedThread] = attrs.field(factory=list, repr=False)
    """Those that would go on if it were not frozen."""
    own: dict[Any, Any] = attrs.field(factory=dict, repr=False)
    """What it has once."""
    at_end: list[Callable[[], object]] = attrs.field(factory=list, repr=False)
    """Told when it is killed: what the system does with what it had, its locks of files and its connections."""


@attrs.define(eq=False)
class SimulatedThread:
    """A ``runtime.Thread``."""

    scheduler: Scheduler = attrs.field(repr=False)
    process: SimulatedProcess
    name: str
    _target: Callable[[], object] = attrs.field(repr=False)
    daemon: bool = True
    greenlet: greenlet | None = attrs.field(default=None, repr=False)
    has_ended: bool = False
    ticket: int = 0
    """Of its latest wait: whoever has an older one wakes nobody."""
    waits_for: str = ""
    woken: bool = False
    _joining: list[tuple[SimulatedThread, int]] = attrs.field(factory=list, repr=False)

    def start(self) -> None:
        """See ``threading.Thread``."""
        assert self.greenlet is None, "threads start once"
        self.greenlet = greenlet(self._run, self.scheduler.hub)
        self.process.threads.append(self)
        self.scheduler.make_ready(self)
        self.scheduler.point()

    def join(self, timeout: float | None = None) -> None:
        """See ``threading.Thread``."""
        self.scheduler.wait_until(lambda: self.has_ended, self._joining, timeout, f"the end of {self.name}")

    def is_alive(self) -> bool:
        """See ``threading.Thread``."""
        return self.greenlet is not None and not self.has_ended

    def _run(self) -> None:
        try:
            self._target()
        except GreenletExit:
            pass
        except BaseException as error:  # noqa: BLE001 (the run says it)
            self.scheduler.failures.append((self, error))
        self.has_ended = True
        if self.process.is_alive:
            self.process.threads.remove(self)
            self.scheduler.wake(self._joining)


class Scheduler:
    """Says who goes next, and when.

    Args:
        choices: who of several.
        pace: how threads are held up where they need not be.
    """

    def __init__(self, choices: Choices, pace: Pace = Pace()) -> None:
        self.choices: Final = choices
        self.pace = pace
        self.now = 0.0
        """Seconds since the run began."""
        self.steps = 0
        """How often a thread went on."""
        self.current: SimulatedThread | None = None
        """Who goes. Nobody does between two steps: then the world looks."""
        self.failures: list[tuple[SimulatedThread, BaseException]] = []
        """What threads ended by that is no end."""
        self.looks: list[Callable[[], object]] = []
        """Called after each step: what always holds."""
        self.is_over = False
        """Whether nothing listens any more."""
        self.hub: Final = greenlet.getcurrent()
        self.world: Final = SimulatedProcess("world")
        """What nobody kills: users, machines, the network."""
        self.processes: Final[list[SimulatedProcess]] = [self.world]
        self._inside: SimulatedProcess = self.world
        self._random = choices.stream("threads")
        self._ready: list[SimulatedThread] = []
        self._timers: list[tuple[float, int, SimulatedThread, int]] = []
        self._timer = 0

    # What the world does with processes.

    def process(self, name: str) -> SimulatedProcess:
        """Return a new process."""
        made = SimulatedProcess(name)
        self.processes.append(made)
        return made

    @contextmanager
    def inside(self, process: SimulatedProcess) -> Iterator[None]:
        """Make threads of a process inside of the ``with``, from where none of them goes."""
        before, self._inside = self._inside, process
        try:
            yield
        finally:
            self._inside = before

    @property
    def here(self) -> SimulatedProcess:
        """The process of who goes."""
        return self._inside if self.current is None else self.current.process

    def kill(self, process: SimulatedProcess) -> None:
        """Have none of its threads ever go on. A thread that kills its own process does not return."""
        if process.is_alive:
            process.is_alive = False
            for told in process.at_end:
                told()
        if self.current is not None and self.current.process is process:
            self._leave()

    def freeze(self, process: SimulatedProcess) -> None:
        """Have none of its threads go on until it is thawed."""
        process.is_frozen = True

    def thaw(self, process: SimulatedProcess) -> None:
        """Have its threads go on."""
        process.is_frozen = False
        held, process.held = process.held, []
        for thread in held:
            self.make_ready(thread)

    def spawn(self, process: SimulatedProcess, target: Callable[[], object], name: str) -> SimulatedThread:
        """Start a thread of a process, and return it."""
        thread = SimulatedThread(self, process, name, target)
        thread.start()
        return thread

    def call(self, process: SimulatedProcess, function: Callable[[], T], steps: int = 100_000) -> T:
        """Have a thread of a process call a function, the world go on until it returns, and return what it does.

        Raises:
            BaseException: what the function raises.
            StuckError: if it does not return.
        """
        found: list[tuple[T | None, BaseException | None]] = []

        def target() -> None:
            try:
                found.append((function(), None))
            except BaseException as error:  # noqa: BLE001 (the run says it)
                found.append((None, error))

        self.spawn(process, target, "caller")
        self.run(lambda: bool(found), steps)
        value, error = found[0]
        if error is not None:
            raise error
        return value  # type: ignore[return-value]

    def run(self, until: Callable[[], bool], steps: int = 100_000, seconds: float = float("inf")) -> None:
        """Have threads go on.

        Args:
            until: looked at after each step.
            steps: that are taken at most.
            seconds: of simulated time that pass at most.

        Raises:
            StuckError: if nobody can go on, or so many steps or seconds were not enough.
            UnhandledError: if a thread ended by an error.
        """
        last, late = self.steps + steps, self.now + seconds
        while not until():
            if self.steps >= last or self.now > late:
                raise StuckError(
                    f"It has not come to an end in {steps} steps or {seconds} s.\n{self.whereabouts()}"
                )
            if not self.step():
                raise StuckError(f"Nobody can go on.\n{self.whereabouts()}")

    def step(self) -> bool:
        """Have one thread go on to where it is held up next. Returns whether there was one."""
        self._ring()
        while not self._ready:
            if not self._timers:
                return False
            self.now = max(self.now, self._timers[0][0])
            self._ring()
        ready = self._ready
        index = int(self._random.random() * len(ready)) if len(ready) > 1 else 0
        thread, ready[index] = ready[index], ready[-1]
        ready.pop()
        if not thread.process.is_alive:
            return True
        if thread.process.is_frozen:
            thread.process.held.append(thread)
            return True
        self.steps += 1
        self.now += _INSTANT
        self.current = thread
        assert thread.greenlet is not None
        thread.greenlet.switch()
        self.current = None
        if self.failures:
            self._raise_failure()
        for look in self.looks:
            look()
        return True

    def end(self) -> None:
        """Throw away all threads. Nothing that they still do reaches anybody."""
        self.is_over = True
        self._ready, self._timers = [], []
        for process in self.processes:
            for thread in process.threads:
                if thread.greenlet is not None and not thread.greenlet.dead:
                    self.current = thread
                    thread.greenlet.throw(GreenletExit)
            process.threads = []
        self.current = None
        self.failures = []

    def whereabouts(self) -> str:
        """Say where every thread is, for people."""
        lines = [f"It is {self.now:.3f} s, after {self.steps} steps."]
        for process in self.processes:
            state = "" if process.is_alive else " (killed)"
            state += " (frozen)" if process.is_frozen else ""
            for thread in process.threads if process.is_alive else ():
                lines.append(
                    f"{process.name}{state}: {thread.name} waits for {thread.waits_for or 'its turn'}"
                )
                if thread.greenlet is not None and thread.greenlet.gr_frame is not None:
                    frames = [
                        frame
                        for frame in traceback.extract_stack(thread.greenlet.gr_frame)
                        if frame.filename not in _OWN
                    ]
                    lines += [f"    {frame.filename}:{frame.lineno} {frame.name}" for frame in frames[-4:]]
        return "\n".join(lines)

    # What threads do.

    def point(self) -> None:
        """Let another thread go first, or not: here a thread could be held up."""
        if self.current is None:
            return
        if self.is_over:
            raise GreenletExit
        drawn = self._random.random()
        if drawn < self.pace.held_up:
            self.sleep(self.pace.longest * self._random.random() ** 3, "time on its machine")
        elif drawn < self.pace.preempted and self._ready:
            self.make_ready(self.current)
            self._leave()

    def sleep(self, seconds: float, what: str = "time to pass") -> None:
        """Hold the calling thread up for so long."""
        self.hold([], seconds, what)

    def hold(self, waiting: list[tuple[SimulatedThread, int]], timeout: float | None, what: str) -> bool:
        """Hold the calling thread up.

        Args:
            waiting: who waits for the same, to whom it is added.
            timeout: seconds, or ``None`` for no end.
            what: it waits for, for people.

        Returns:
            Whether it was woken before the time was over.
        """
        thread = self.current
        assert thread is not None, f"the world itself cannot wait for {what}: have a thread do so, by call()"
        if self.is_over:
            raise GreenletExit
        thread.ticket += 1
        thread.woken = False
        thread.waits_for = what
        waiting.append((thread, thread.ticket))
        if timeout is not None:
            self._timer += 1
            heapq.heappush(self._timers, (self.now + max(0.0, timeout), self._timer, thread, thread.ticket))
        self._leave()
        thread.waits_for = ""
        return thread.woken

    def wait_until(
        self,
        holds: Callable[[], bool],
        waiting: list[tuple[SimulatedThread, int]],
        timeout: float | None,
        what: str,
    ) -> bool:
        """Hold the calling thread up until a condition holds, which is looked at whenever it is woken.

        Returns:
            Whether it does.
        """
        self.point()
        until = None if timeout is None else self.now + timeout
        while not holds():
            if until is not None and self.now >= until:
                return False
            self.hold(waiting, None if until is None else until - self.now, what)
        return True

    def wake(self, waiting: list[tuple[SimulatedThread, int]], number: int | None = None) -> None:
        """Have those that wait go on, the first so many of them or all."""
        while waiting and number != 0:
            thread, ticket = waiting.pop(0)
            if thread.ticket == ticket and not thread.has_ended:
                thread.woken = True
                self._resume(thread)
                number = None if number is None else number - 1

    def make_ready(self, thread: SimulatedThread) -> None:
        """Have a thread go on when it is its turn."""
        self._ready.append(thread)

    def _resume(self, thread: SimulatedThread) -> None:
        thread.ticket += 1
        self.make_ready(thread)

    def _leave(self) -> None:
        self.hub.switch()
        if self.is_over:
            raise GreenletExit

    def _ring(self) -> None:
        while self._timers and self._timers[0][0] <= self.now:
            _, _, thread, ticket = heapq.heappop(self._timers)
            if thread.ticket == ticket:
                self._resume(thread)

    def _raise_failure(self) -> None:
        (thread, error), self.failures = self.failures[0], []
        if isinstance(error, AssertionError):
            raise error
        raise UnhandledError(f"{thread.process.name}: {thread.name} ended by {error!r}") from error
