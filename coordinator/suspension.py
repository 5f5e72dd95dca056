"""A pipeline that changes sides: while others take over what runs it, its user sees queries that restart."""

from __future__ import annotations

import attrs

from .query import CheckpointedQuery
from .recovery.announcements import Announcements
from .recovery.supervisor import Supervisor


@attrs.frozen
class Suspension:
    """The time in which nobody is to take the end of a supervisor for that of its queries."""

    queries: tuple[CheckpointedQuery, ...]
    news: Announcements

    @classmethod
    def begin(cls, supervisor: Supervisor) -> Suspension:
        """Have queries restart until they go on under another supervisor, and tell of no end."""
        suspension = cls(supervisor.queries, supervisor.news)
        suspension.news.hold_back()
        for query in suspension.queries:
            query.suspend()
        return suspension

    def end(self, error: Exception | None = None) -> None:
        """Have queries be what their supervisor says: there will be no other.

        Args:
            error: why not, if that is what has ended them.
        """
        for query in self.queries:
            query.resume(error)
        self.news.tell_held_back(error)
