"""A query that is to go on with another plan: how far the request is, and what becomes of it. Pure, as ``decisions``.

The query runs until its batch has ended, and whatever happens to it until then is a failure like any other. Then it is
told to stop. From there on it goes on with the other plan at its next start, whoever decides about that: the stop
itself, a failure, or the pipeline that goes back.
"""

from __future__ import annotations

from collections.abc import Iterable

import attrs

from ...storage.errors import FencedError
from .errors import NotRescaledError, RescaledError
from .user_requests import RequestPhase, UserRequest

_AS_IT_WAS = "it goes on as it was; ask again"


@attrs.define
class Rescaling:
    """A query that is to go on with another plan."""

    query: str
    cause: RescaledError
    request: UserRequest
    noticed_at: float
    """When it was asked for, in seconds since 1970."""
    stopped: int | None = None
    """The number of the run that was told to stop for it; None: none was."""
    is_starting: bool = False
    """Whether an attempt to start the query with the other plan is being made."""

    def end(self, phase: RequestPhase, found: str, advice: str = _AS_IT_WAS) -> None:
        """End the request without success, unless it has ended."""
        if not self.request.is_over:
            error = NotRescaledError(
                f"operator {self.cause.uid!r} of query {self.query!r} was not rescaled",
                f"{self.cause.tasks} tasks",
                found,
                advice,
            )
            self.request.enter(phase, error)


@attrs.define
class Rescalings:
    """The queries that are to go on with another plan."""

    _by_query: dict[str, Rescaling] = attrs.field(factory=dict, init=False)

    def add(self, query: str, cause: RescaledError, request: UserRequest, now: float, refused: str) -> bool:
        """Take a request in; return whether it is admitted.

        Args:
            query, cause, request: what is asked for.
            now: seconds since 1970.
            refused: why nothing can be asked for now; empty: it can.
        """
        asked = Rescaling(query, cause, request, now)
        if not refused and query in self._by_query:
            refused = "another request for the same query, which is not over"
        if refused:
            asked.end(RequestPhase.REFUSED, refused)
            return False
        request.enter(RequestPhase.ADMITTED)
        self._by_query[query] = asked
        return True

    def waiting(self, query: str, request: UserRequest) -> Rescaling | None:
        """Return that of a request if it waits for its query's running batch, or for the pipeline to recover."""
        found = self._by_query.get(query)
        is_it = found is not None and found.request is request
        return found if is_it and request.phase is RequestPhase.ADMITTED else None

    def stopped(self, query: str, run: int) -> Rescaling | None:
        """Return the one for which a run was told to stop, also if nobody waits for it any more."""
        found = self._by_query.get(query)
        return found if found is not None and found.stopped == run else None

    def starting(self, queries: Iterable[str] | None) -> None:
        """Have queries that are about to start, None: all of them, start with their other plans."""
        for one in self._of(queries):
            if one.request.phase is RequestPhase.ADMITTED:
                one.request.enter(RequestPhase.UNDER_WAY)
            one.is_starting = True

    def started(self, queries: Iterable[str] | None) -> None:
        """Take in that queries, None: all of them, have started."""
        for one in self._of(queries):
            if one.is_starting and not one.request.is_over:
                one.request.enter(RequestPhase.DONE)
            if one.request.is_over:
                del self._by_query[one.query]

    def not_started(self, error: Exception) -> None:
        """Take in that an attempt to start queries has failed; another one will have the other plans."""
        for one in self._of(None):
            if one.is_starting:
                why = f"it could not be started: {error}"
                one.end(RequestPhase.FAILED, why, "the next attempt starts it with them")
                del self._by_query[one.query]

    def forget(self, query: str) -> None:
        """Take in that a query is over."""
        if (one := self._by_query.pop(query, None)) is not None:
            one.end(RequestPhase.FAILED, "a query that has ended", "its program says how many tasks it has")

    def drop(self, query: str) -> None:
        """Forget a request that has ended before its query was told to stop."""
        self._by_query.pop(query, None)

    def cancel(self, why: str) -> None:
        """Let nobody wait any more: the pipeline stops. What was told to stop has yet to end."""
        for one in self._of(None):
            one.end(RequestPhase.CANCELLED, why, "its program says how many tasks it has")
            if one.stopped is None:
                del self._by_query[one.query]

    def fail(self, error: Exception) -> None:
        """Take in that the pipeline has failed for good."""
        phase = RequestPhase.CANCELLED if isinstance(error, FencedError) else RequestPhase.FAILED
        for one in self._of(None):
            one.end(phase, f"a pipeline that has ended: {error}", "see the error of its queries")
        self._by_query.clear()

    def _of(self, queries: Iterable[str] | None) -> list[Rescaling]:
        return [one for one in self._by_query.values() if queries is None or one.query in queries]
