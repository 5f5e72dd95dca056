"""The lives of a pipeline's queries: which run, which wait to be restarted, and why."""

from __future__ import annotations

import attrs

from .errors import RescaledError
from .life import QueryLife, QueryPhase, Setback


@attrs.define
class QueryLives:
    """The life of each query. A query that waits is behind those that wait for longer."""

    _lives: dict[str, QueryLife] = attrs.field(factory=dict, init=False)

    def of(self, query: str) -> QueryLife:
        """Return the life of a query; one that has not been started is taken for one that starts."""
        return self._lives.get(query, QueryLife())

    @property
    def waiting(self) -> tuple[str, ...]:
        """The queries that wait to be restarted, in the order in which they have failed."""
        return tuple(name for name, life in self._lives.items() if life.phase is QueryPhase.WAITING)

    @property
    def setback(self) -> Setback | None:
        """Why the first of them failed; None if none waits."""
        return next((self._lives[name].setback for name in self.waiting), None)

    def failed(self, query: str, setback: Setback) -> None:
        """Have a query wait to be restarted."""
        before = self.of(query)
        if before.phase is not QueryPhase.WAITING:
            self._lives.pop(query, None)
            self._lives[query] = before.failed(setback)

    def due(self, at: float) -> None:
        """Take in when the queries that wait are started again."""
        for name in self.waiting:
            self._lives[name] = self._lives[name].due(at)

    def started(self, query: str) -> None:
        """Take in that a query that waited was started again, or is about to end."""
        life = self._lives[query]
        # A query that went on with another plan has not failed.
        by_plan = life.setback is not None and isinstance(life.setback.cause, RescaledError)
        self._lives[query] = life.running() if by_plan else life.restarting(None)

    def all_restarting(self, setback: Setback) -> None:
        """Take in that an attempt starts all queries again that have not ended."""
        for name, life in self._lives.items():
            if life.is_active:
                self._lives[name] = life.restarting(setback)

    def attempt_failed(self, setback: Setback | None) -> None:
        """Have the queries wait again whose attempt has failed.

        Args:
            setback: why the pipeline goes back, with all queries; None: it does not, and only those wait that did.
        """
        for name, life in list(self._lives.items()):
            if life.phase is QueryPhase.WAITING:
                self._lives[name] = life.again()
            elif life.phase is QueryPhase.RESTARTING and setback is not None:
                self.failed(name, setback)

    def begun(self, query: str, setback: Setback | None) -> None:
        """Take in that a run begins under Spark.

        Args:
            setback: why the pipeline goes back; None: it does not.
        """
        life = self.of(query)
        if not life.is_active:
            life = life.running() if setback is None else life.restarting(setback)
        self._lives[query] = life

    def runs(self, query: str) -> None:
        """Take in that a query runs, and has shown that it can."""
        if self.of(query).is_active:
            self._lives[query] = self.of(query).running()

    def ended(self, query: str, error: Exception | None) -> None:
        """Take in that a query is over."""
        self._lives[query] = self.of(query).ended(error)
