"""Carries out what users ask, each request on a thread of its own: the caller waits for its outcome alone."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final, TypeVar

import attrs

from ..storage import runtime
from ..storage.logs import carried
from .execution.locked_protocol import LockedProtocol
from .protocol.acts import Act, ActKind
from .protocol.events import ActEnded, ActRequested
from .protocol.user_requests import RequestPhase

T = TypeVar("T")

_INTERRUPT_SECONDS: Final = 1.0
"""From one interruption of what a stop waits for to the next: that may have begun to wait since."""


@attrs.define
class Wanted:
    """What is carried out, as it sees itself."""

    _act: Act
    interrupt: Callable[[], object] = lambda: None
    """Ends what it waits for long, because a stop waits for it. It may be called more than once."""

    @property
    def is_wanted(self) -> bool:
        """Whether anybody waits for it."""
        return not self._act.request.is_over

    def check(self) -> None:
        """Raise what has ended the request, if anything has."""
        self._act.request.check()


@attrs.define
class UserActs:
    """The acts of a pipeline."""

    protocol: LockedProtocol
    _under_way: dict[int, Wanted] = attrs.field(factory=dict, init=False)
    _within: runtime.Thread | None = attrs.field(default=None, init=False)
    """Which thread is between two stops."""

    def do(self, kind: ActKind, name: str, body: Callable[[Wanted], T]) -> T:
        """Have something carried out, and return what it returns.

        Args:
            kind: what it is.
            name: of what it is about.
            body: carries it out, once it is its turn. It goes on although nobody waits any more, unless it looks.

        Raises:
            NotCarriedOutError: the request is refused, or something has ended it.
            FencedError: another driver has taken the pipeline over.
            Exception: what ``body`` raises.
        """
        act = self.protocol.handle(ActRequested(kind, name))
        found: list[T] = []
        if self._within is runtime.current_thread():
            # It holds what a stop waits for.
            self._carry_out(act, body, found)
        elif not act.request.is_over:
            thread = runtime.thread(
                target=carried(self._carry_out), args=(act, body, found), name=f"chandy-{kind.value}"
            )
            try:
                thread.start()
            except RuntimeError:
                # No thread can be started, as while the interpreter ends.
                self._carry_out(act, body, found)
        self.protocol.await_outcome(act.request)
        return found[0]

    @contextmanager
    def between_stops(self, changing: runtime.Lock) -> Iterator[None]:
        """Hold a lock while no stop is carried out: one that fails lets the pipeline go on.

        Args:
            changing: which a stop takes for a moment before it begins. A thread may hold it more than once.
        """
        is_within = self._within is runtime.current_thread()
        while not is_within:
            # Without the lock, for which the stop waits.
            self.protocol.wait_until(lambda state: not state.acts.is_stopping, None)
            changing.acquire()
            if not self.protocol.read(lambda state: state.acts.is_stopping):
                break
            changing.release()
        if is_within:
            yield
            return
        self._within = runtime.current_thread()
        try:
            yield
        finally:
            self._within = None
            changing.release()

    def _carry_out(self, act: Act, body: Callable[[Wanted], T], found: list[T]) -> None:
        while not self.protocol.wait_until(
            lambda _: act.request.phase is not RequestPhase.ADMITTED, _INTERRUPT_SECONDS
        ):
            for other in list(self._under_way.values()):
                if not other.is_wanted:
                    other.interrupt()
        if act.request.phase is not RequestPhase.UNDER_WAY:
            return
        self._under_way[act.number] = Wanted(act)
        error: BaseException | None = None
        try:
            found.append(body(self._under_way[act.number]))
        except BaseException as raised:  # noqa: BLE001 (whoever waits gets it)
            error = raised
        del self._under_way[act.number]
        self.protocol.handle(ActEnded(act.number, error))
