"""Has queries go on with other plans: waits for the end of their batches, and keeps the plans until they are taken."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Final

import attrs

from ...storage import runtime
from ...storage.logs import carried, logger
from ..errors import RescaledError
from ..protocol import decisions
from ..protocol.user_requests import RequestPhase, UserRequest
from ..query import CheckpointedQuery
from .runs import Run, Runs

if TYPE_CHECKING:
    from pyspark.sql.streaming.readwriter import DataStreamWriter

log = logger(__name__)

_POLL_SECONDS: Final = 0.02


@attrs.frozen
class _Plan:
    """The plan that a query is to go on with, once its request is being carried out."""

    query: str
    request: UserRequest
    writer: DataStreamWriter


@attrs.frozen
class Replanning:
    """The other plans of a pipeline's queries."""

    runs: Runs
    clock: Callable[[], float]
    """Seconds since 1970, never going back."""
    report: Callable[[decisions.RecoveryEvent], object]
    """Has an event decided, and the decision carried out."""
    stop_in_spark: Callable[[Run], None]
    """Has Spark end a run."""
    decided: runtime.Condition
    """Notified after every event that was decided."""
    _plans: list[_Plan] = attrs.field(factory=list, init=False)

    def go_on_with(
        self, name: str, writer: DataStreamWriter, cause: RescaledError, timeout: float
    ) -> UserRequest:
        """Ask for a query to go on with another writer of the same query, in place; return the request.

        The query goes on with its running batch meanwhile. Whatever happens to the pipeline is decided as ever, and
        ends the request.

        Args:
            name, writer: the query, and the writer that is the same but for how many tasks run operators.
            cause: why, for the metrics and the log.
            timeout: seconds to wait for the running batch; what runs longer is stopped, and runs again.
        """
        request = UserRequest(f"rescale operator {cause.uid!r}", self.clock() + timeout)
        # Before anybody decides: a failure may start the query again at once. A plan that is refused is never taken.
        self._plans.append(_Plan(name, request, writer))
        self.report(decisions.RescaleRequested(name, cause, request))
        if not request.is_over:
            runtime.thread(target=carried(self._watch), args=(name, request), name="chandy-rescale").start()
        return request

    def await_outcome(self, name: str, request: UserRequest) -> None:
        """Wait until a request has ended. The caller holds no lock."""
        with self.decided:
            self.decided.wait_for(
                lambda: request.phase is not RequestPhase.ADMITTED, max(0.0, request.deadline - self.clock())
            )
        # Also while the thread waits for a disk.
        self.report(decisions.BatchOver(name, request))
        with self.decided:
            self.decided.wait_for(lambda: request.is_over)

    def _watch(self, name: str, request: UserRequest) -> None:
        """Report the end of each batch of a query, until it is told to stop."""

        def is_decided() -> bool:
            return request.phase is not RequestPhase.ADMITTED

        while not is_decided():
            run = self.runs.get(name)
            if run is not None:
                run.await_running_batch(math.inf, is_decided)
            # Why a run has ended by itself is reported by whoever follows it.
            if run is not None and run.spark is not None and run.spark.isActive:
                self.report(decisions.BatchOver(name, request))
            runtime.sleep(_POLL_SECONDS)

    def stop(self, name: str, number: int) -> None:
        """Have Spark end a run, unless it is another one by now. Whoever follows it reports the end."""
        run = self.runs.get(name)
        if run is None or run.number != number or run.ended:
            return
        try:
            if run.spark is not None and not run.spark.isActive:
                self.report(decisions.NotStopped(name, number))
                return
            self.stop_in_spark(run)
        except Exception as error:  # noqa: BLE001 (Spark raises many; the next start shows whether it runs on)
            log.warning("cannot stop a query", query=name, error=str(error))
            self.report(decisions.RunEnded(name, number, None, self.clock()))

    def take(self, queries: Mapping[str, CheckpointedQuery]) -> None:
        """Give queries the plans with which they are to go on from here. A later way back keeps them."""
        for plan in tuple(self._plans):
            if plan.request.phase is RequestPhase.UNDER_WAY:
                run, query = self.runs.get(plan.query), queries[plan.query]
                query.definition = attrs.evolve(query.definition, writer=plan.writer)
                if run is not None:
                    run.definition = query.definition
            if plan.request.phase not in (RequestPhase.ASKED, RequestPhase.ADMITTED):
                self._plans.remove(plan)
