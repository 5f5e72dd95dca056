"""What a coordinator does at a switch: a shadow leads, and the leader follows as a shadow; users notice neither.

Each side has parts of its own. The ground that plans were made on stays, and so do users' query objects.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack
from functools import partial
from typing import TYPE_CHECKING

import attrs

from ..storage import runtime
from ..storage.checkpoints.collect import discard_shadow
from ..storage.checkpoints.offers import AskedOffer
from ..storage.checkpoints.proof import FenceProof
from ..storage.errors import ChandyError, FencedError
from ..storage.ids import CheckpointId
from ..storage.logs import logger, named
from .config import CheckpointConfig
from .errors import CoordinatorStoppedError, NotSwitchedError
from .execution.executor import CheckpointExecutor
from .graceful_stop import QueriesAtRest
from .leadership.heir import Inheritance
from .leadership.offering import Offering
from .lookup import Lookup
from .operators import Operators
from .permit import Permit
from .protocol.life import Life
from .query import CheckpointedQuery
from .query_starter import QueryRequest, QueryStarter
from .recovery.supervisor import Supervisor
from .restore import restore_point
from .suspension import Suspension
from .upgrade.own_pins import OwnPins
from .upgrade.shadow import Shadow
from .user_acts import UserActs
from .wiring.assembly import Assembly, assemble_again
from .wiring.taken_pipeline import TakenPipeline

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from .observer import HasStatus
    from .upgrade.rerun import Rerun

log = logger(__name__)


class ChangesSides(ABC):
    """What a coordinator leads or follows with."""

    _spark: SparkSession
    _pipeline: str
    _storage: str
    _config: CheckpointConfig
    _permit: Permit
    _within: FenceProof | None
    _shadow: Shadow | None
    """The shadow that it is, or has been."""
    _rerun: Rerun | None
    """What it does instead of leading the pipeline; None: it leads."""
    _changing: runtime.Lock
    """Held while operators are put together, queries started or the pipeline stopped: a name must not be taken twice
    meanwhile, and no query may start that a stop has not seen."""
    _closing: ExitStack
    _parts: Assembly
    _taken: TakenPipeline
    _executor: CheckpointExecutor
    _supervisor: Supervisor
    _operators: Operators
    _lookup: Lookup
    _starter: QueryStarter
    _offering: Offering
    _acts: UserActs

    @property
    @abstractmethod
    def life(self) -> Life:
        """Whether the pipeline runs, and why it does not."""

    @property
    @abstractmethod
    def replicas(self) -> Sequence[HasStatus]:
        """The replicas that have not been stopped."""

    @abstractmethod
    def _growing(self) -> AbstractContextManager[None]:
        """Let one thread at a time add something to the pipeline, while the pipeline runs."""

    @abstractmethod
    def _check_running(self) -> None:
        """Raise a ``CoordinatorStoppedError`` if the pipeline has been stopped."""

    @abstractmethod
    def _start(self, request: QueryRequest) -> CheckpointedQuery:
        """Start a query."""

    @abstractmethod
    def _use(self, parts: Assembly, known: Mapping[str, CheckpointedQuery]) -> None:
        """Run the pipeline by these parts from now on.

        Args:
            parts: wired and running.
            known: what users have of queries that other parts have run, by name.
        """

    def _begin_rerun(self, rerun: Rerun) -> None:
        parts = self._parts
        rerun.begin(parts.supervisor, parts.executor, parts.pipeline, parts.operators, self._lead)

    # --- from the one side to the other ---------------------------------------------------------------------

    def _lead(self, inherited: Inheritance) -> None:
        """Lead the pipeline whose shadow this has been; users keep what they have of its queries.

        Raises:
            ChandyError: it cannot. The queries have ended with that.
        """
        with named(pipeline=self._pipeline), self._acts.between_stops(self._changing):
            suspension = Suspension.begin(self._supervisor)
            try:
                self._check_running()
                self._go_on(
                    None,
                    lambda built: assemble_again(
                        self._parts,
                        self._pipeline,
                        self._storage,
                        self._config,
                        restore_point.LATEST,
                        self._permit,
                        built,
                        self._closing,
                        inherited=inherited,
                    ),
                )
            except Exception as error:
                suspension.end(error)
                raise
        try:
            discard_shadow(self._taken.catalog, inherited.shadow, self._taken.watch.proof)
        except (OSError, ChandyError) as error:
            log.warning("what the shadow no longer needs is left in the storage", error=str(error))

    def _standstill(self, asked: AskedOffer) -> QueriesAtRest:
        """Return what has the pipeline stand still for a shadow that asks for it."""
        # What may differ for the one may differ for the other.
        named_after = Shadow(name=f"before-{asked.name or 'shadow'}", ignore=asked.ignored)
        shadow = attrs.evolve(self._shadow or named_after, switch_after=None)
        return QueriesAtRest(
            self._executor,
            self._supervisor,
            OwnPins(self._taken.catalog.store, shadow.reader),
            partial(self._follow, asked.keep_old, shadow) if asked.keep_old > 0 else None,
        )

    def _follow(self, seconds: float, shadow: Shadow, last: CheckpointId, error: FencedError) -> None:
        """Follow the driver that leads the pipeline now as its shadow; users keep what they have of its queries.

        Args:
            seconds: for how long.
            shadow: what to be.
            last: the checkpoint with all batches that this driver has run.
            error: the queries end with that one day.

        Raises:
            ChandyError: it cannot; nothing runs any more.
        """
        # Only a shadow loads what reads state.
        from .upgrade.shadow_rerun import Former, ShadowRerun

        if self.replicas:
            raise NotSwitchedError(
                "this driver cannot follow its successor",
                "a pipeline without replicas, which only a driver that leads may write",
                ", ".join(one.status.name for one in self.replicas),
            )
        self._parts.closing.close()
        if not self._offering.await_checkpoint():
            raise CoordinatorStoppedError(self._pipeline)
        rerun = ShadowRerun(shadow, self._pipeline, self._storage, Former(last, error, seconds))
        self._closing.callback(rerun.close)
        self._closing.callback(rerun.release)
        try:
            self._go_on(
                rerun,
                lambda built: assemble_again(
                    self._parts,
                    rerun.pipeline,
                    rerun.storage,
                    rerun.config(self._config),
                    rerun.point(),
                    rerun.permit(self._permit),
                    built,
                    self._closing,
                    followed=rerun.start.store,
                ),
            )
        except Exception:
            # The part that has handed the pipeline over tells of the end, once.
            self._supervisor.news.hold_back()
            self._supervisor.fenced(error)
            self._parts.closing.close()
            rerun.release()
            raise
        self._shadow = shadow
        self._begin_rerun(rerun)
        log.info("this driver follows its successor", shadow=shadow.name, seconds=seconds)

    def _go_on(self, rerun: Rerun | None, assembled: Callable[[Collection[str]], Assembly]) -> None:
        """Have other parts run the queries.

        Args:
            rerun: what to do instead of leading the pipeline; None: lead.
            assembled: returns the parts, given the queries that make their operators again.
        """
        requests, known = self._starter.requests, {query.name: query for query in self._starter.queries}
        parts = assembled([request.name for request in requests if request.build is not None])
        self._rerun = rerun
        self._use(parts, known)
        for request in requests:
            self._start(request)
