"""The checkpoint coordinator: the object that users create on the driver, one for each pipeline."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import ExitStack, contextmanager
from functools import partial
from types import TracebackType
from typing import TYPE_CHECKING, Self

from ..storage import html, runtime
from ..storage.backends.open import open_store, pipeline_uri
from ..storage.checkpoints.layout import validate_pipeline
from ..storage.checkpoints.manifest import CheckpointKind
from ..storage.checkpoints.proof import FenceProof
from ..storage.errors import ChandyError
from ..storage.keys import validate_name
from ..storage.logs import logger, named
from .adopting import AdoptsQueries
from .aggregating import KeyedAggregates
from .batch_aggregate import BatchWriter
from .changing_sides import ChangesSides
from .checkpoint import Checkpoint
from .config import CheckpointConfig
from .connectors.recognition import sources_of
from .durations import Duration, seconds
from .errors import CoordinatorStoppedError
from .execution.polls import Poll, Polls
from .graceful_stop import GracefulStop, end_growth
from .leadership.offering import LOOK_SECONDS, Offering
from .monitor.monitoring import Monitoring
from .permit import Permit
from .processing import KeyedProcessors
from .protocol.acts import ActKind
from .protocol.events import DrainRequested
from .protocol.life import Life, LifePhase
from .protocol.statistics import Statistics
from .query import CheckpointedQuery
from .query_starter import QueryRequest, QueryStarter, as_given, not_rescaled
from .recovery.metrics import RecoveryMetrics
from .replicated import KeepsReplicas
from .restore import restore_point
from .sinks.two_phase.contract import TwoPhaseSink
from .spark.environment import check_pyspark, check_session
from .state_questions import StateQuestions
from .supervised_run import Exit, run
from .switch_orders import KEEP_OLD, switch_to
from .upgrade.requested import requested, shadowing
from .user_acts import UserActs
from .wiring.assembly import Assembly, assemble
from .wiring.transactional import transactional_sink
from .wiring.warm_up import warm_up

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.streaming.readwriter import DataStreamWriter

    from .replication.replica import Replica
    from .upgrade.shadow import Shadow
    from .verdict import ShadowVerdict

log = logger(__name__)


class CheckpointCoordinator(
    KeyedProcessors, KeyedAggregates, AdoptsQueries, StateQuestions, KeepsReplicas, ChangesSides
):
    """Checkpoints the queries of one pipeline together, and restores them together.

    Create one per pipeline on the driver, add operators with ``transform_with_state`` and the like, and start queries
    with ``start``. It is a context manager: leaving it stops the pipeline. All methods may be called from any thread.
    """

    def __init__(
        self,
        spark: SparkSession,
        *,
        pipeline: str,
        storage: str,
        config: CheckpointConfig | None = None,
        restore: str | int = restore_point.LATEST,
        permit: Permit | None = None,
        standby: bool = False,
        within: FenceProof | None = None,
        shadow: Shadow | None = None,
    ) -> None:
        """Take over the pipeline. Every earlier coordinator of the pipeline is fenced from now on.

        Args:
            spark: the session; a classic one, not Spark Connect.
            pipeline: name of the pipeline. Keep it across restarts; it must be a valid file name.
            storage: URI of the store for checkpoints: a plain path, ``file:///...``, or the URI of another backend.
            config: how to checkpoint and restart; None: the defaults.
            restore: what to restore: "none", the id of a checkpoint, the URI of a savepoint, or "latest": the latest
                checkpoint if there is one, or what was last chosen if none has completed since.
            permit: what this start may give up, as the error of a start before has printed it; None: nothing.
            standby: whether to wait while another driver runs the pipeline, instead of taking it over. The call returns
                once this driver leads: at once if there is no other, else when the other one has died, failed or handed
                over. Until then it keeps this process warm. Give it to all drivers of the pipeline, which run the same
                program. After waiting, the driver restores the latest checkpoint of its predecessors; if they have
                completed none, it restores what ``restore`` says.
            within: for replicas: the proof that the pipeline which this one is a part of has not been taken over. From
                then on, this one does nothing more. None: it is part of no other.
            shadow: run the batches of the driver that leads the pipeline beside it, and compare, instead of taking the
                pipeline over. Nothing leaves this driver but what it has found: see ``verdict``. None: lead. A program
                whose shadow has taken the pipeline over leads, too, when it is started again.

        Raises:
            ChandyError: the session, the storage or the checkpoint cannot be used; a subclass says which. Nothing
                has been started.
        """
        # Not the whole environment: a session that runs has its Java, and asking for it takes half a second.
        check_session(spark)
        check_pyspark(spark.version)
        self._spark = spark
        self._pipeline = validate_pipeline(pipeline)
        self._storage = storage
        self._config = config or CheckpointConfig()
        self._permit = permit or Permit()
        self._within = within
        self._shadow = shadow
        self._replicas: dict[str, Replica] = {}
        self._changing = runtime.rlock()
        self._stopping = runtime.lock()
        with named(pipeline=self._pipeline), ExitStack() as closing:
            stand_by = partial(warm_up, spark, type(self)) if standby else None
            rerun = self._rerun = requested(self._pipeline) or shadowing(shadow, self._pipeline, storage)
            if rerun is not None:
                closing.callback(rerun.close)
                closing.callback(rerun.release)
            parts = assemble(
                spark,
                rerun.pipeline if rerun else self._pipeline,
                rerun.storage if rerun else storage,
                rerun.config(self._config) if rerun else self._config,
                rerun.point() if rerun else restore,
                rerun.permit(permit) if rerun else self._permit,
                partial(self._watch, rerun.config(self._config) if rerun else self._config),
                closing,
                None if rerun else stand_by,
                within,
                shadow="" if rerun or shadow is None else shadow.name,
                followed=rerun.start.store if rerun else None,
            )
            self._closing = closing.pop_all()
        self._use(parts, {})
        if rerun is not None:
            self._begin_rerun(rerun)

    def _use(self, parts: Assembly, known: Mapping[str, CheckpointedQuery]) -> None:
        """Run the pipeline by these parts from now on.

        Args:
            parts: wired and running.
            known: what users have of queries that other parts have run, by name.
        """
        rerun = self._rerun
        self._parts = parts
        self._taken = parts.pipeline
        self._executor = parts.executor
        self._supervisor = parts.supervisor
        self._operators = parts.operators
        self._lookup = parts.lookup
        self._starter = QueryStarter(
            spark=self._spark,
            config=parts.ground.driver.config,
            pipeline=parts.pipeline,
            operators=parts.operators,
            adopt=parts.adopter.begin,
            sources=sources_of if rerun is None else partial(rerun.sources, sources_of),
            make_sink=partial(transactional_sink, parts),
            channels=parts.channels,
            protocol=parts.executor.protocol,
            supervisor=parts.supervisor,
            prepare=rerun.prepared if rerun else as_given,
            known=known,
        )
        self._offering = Offering(
            parts.pipeline.catalog,
            parts.pipeline.watch.proof,
            standstill=self._standstill,
            may_begin=lambda: parts.recording.is_followed and self.life.phase is LifePhase.RUNNING,
            alone=self._growing,
        )
        if rerun is None and self._within is None:
            looks = {"hand the pipeline over to a shadow": Poll(self._offering.look, LOOK_SECONDS)}
            parts.closing.callback(Polls.begin(looks).close)
        self._acts = UserActs(parts.executor.protocol)
        parts.observe(self)

    def _watch(self, config: CheckpointConfig, closing: ExitStack) -> Monitoring:
        return Monitoring.begin(
            self._pipeline, closing, page=config.page, on_event=config.on_event, traces=config.traces
        )

    # --- starting -------------------------------------------------------------------------------------------

    def start(
        self,
        writer: DataStreamWriter | BatchWriter | None = None,
        *,
        name: str,
        build: Callable[[], DataStreamWriter | BatchWriter] | None = None,
        sink: TwoPhaseSink | Sequence[TwoPhaseSink] | None = None,
        table: str | None = None,
        reads: Sequence[str] = (),
        adopt: str | None = None,
    ) -> CheckpointedQuery:
        """Start a query of the pipeline. It goes on from the restored checkpoint if it is part of that.

        A query with operators of this pipeline is not planned adaptively, unless the session sets
        ``spark.sql.adaptive.streaming.stateless.enabled``. Spark does the same for queries with state of its own.

        Args:
            writer: the writer of any streaming DataFrame, not started. It must not set ``checkpointLocation``. Or that
                of what ``aggregate_batches`` returned. None: ``build`` returns it.
            name: name of the query, unique in the pipeline. Progress is restored by it: keep it across restarts.
            build: makes the query's operators with this coordinator and returns the writer, instead of ``writer``. It
                is called now, and again by ``rescale``: each time it must build the same query.
            sink: a transactional sink, or several that get the same rows: ``df.writeStream`` then needs no format. The
                rows become visible with the checkpoint that has them, exactly once, unless a sink's ``publish`` says
                else. None: the writer says where it writes.
            table: table to start the query on by ``toTable``; None: start it by ``start``.
            reads: names of the pipeline's queries whose output this one reads; they must have been started. Then the
                cut of a checkpoint is consistent across them. By default a query is assumed to read the output of
                all queries that were started before it.
            adopt: the ``checkpointLocation`` of a plain Spark query that has stopped for good, a local path. The query
                goes on where that one stopped: with its next batch, its state and its file sink's output. This counts
                for the first start alone: once a checkpoint of the pipeline has the query, it is ignored. Nothing in
                the directory is changed. See ``adoption``.

        Raises:
            ChandyError: the query cannot be checkpointed, or does not fit the restored checkpoint; a subclass says
                which. Nothing has been started.
        """
        validate_name("query", name)
        request = QueryRequest(
            name=name, writer=writer, build=build, sink=sink, table=table, reads=tuple(reads), adopt=adopt
        )
        with self._growing():
            return self._start(request)

    def _start(self, request: QueryRequest) -> CheckpointedQuery:
        with named(query=request.name):
            query = self._starter.start(request)
            query.measured_by(self._lookup.batches)
            if self._rerun is not None:
                self._rerun.started(request.name)
            return query

    def rescale(self, operator: str, parallelism: int | None, timeout: Duration = "1 min") -> None:
        """Have another number of tasks run an operator, while the pipeline runs, and without going back.

        The query stops after its running batch, and goes on with the next one and the state that it has: at most the
        shards that other machines are to serve move. An operator of ``aggregate_batches`` does not even stop. It counts
        until the driver ends: the next one begins with the parallelism that its program says.

        Args:
            operator: uid of an operator whose query was started with ``build=``, or of one of ``aggregate_batches``.
            parallelism: number of tasks, at most as many as the operator has shards; None: Spark's default parallelism
                as it is now, for example with the executors that have joined.
            timeout: how long to wait for the running batch. What runs longer is stopped, and runs again. If the query
                has to recover from a failure first, it gets the other tasks with that, or not at all.

        Raises:
            PipelineNameError: there is no such operator.
            ArgumentError: its query has not been started, has ended, was started without ``build=``, or the function
                builds another query now; or this is a shadow. The query goes on as it was.
            DefinitionError: there are fewer shards, or the function makes other operators now. The same holds.
            NotRescaledError: the query could not be started again at once, which is a failure as any, or did not
                recover in time; or the pipeline was stopped, has failed for good, or was taken over meanwhile.
            ConfigError: the timeout is no duration.
        """
        patience = seconds(timeout)
        with self._growing():
            if self._rerun is not None:
                expected, found = "a coordinator that leads", "one that runs the batches of another"
                raise not_rescaled(operator, expected, found, "give it parallelism= where it is made")
            await_outcome = self._starter.rescale(operator, parallelism, patience)
        # Without the lock: neither a stop nor another start waits for the batch.
        await_outcome()

    # --- checkpoints ----------------------------------------------------------------------------------------

    def checkpoint(self) -> Future[Checkpoint]:
        """Take a checkpoint now. The future returns it, or raises the ``CheckpointError`` that ended it."""
        self._check_running()
        return self._executor.request(CheckpointKind.MANUAL)

    def savepoint(self, target: str | None = None) -> Future[Checkpoint]:
        """Take a savepoint: a self-contained checkpoint that retention never deletes and that can be moved as a folder.

        Args:
            target: URI or absolute path of a new or empty folder, or a plain name below
                ``CheckpointConfig.savepoints`` (by default ``<storage>/<pipeline>/savepoints``). None: a folder
                below ``CheckpointConfig.savepoints``, which must be set, that is named by the current time.

        Returns:
            A future of the savepoint; it raises the ``CheckpointError`` that ended it.

        Raises:
            ArgumentError: there is neither a target nor a default.
            InvalidPlaceError: the target is not a URI that can be written to.
        """
        if self._rerun is not None:
            # What leaves it for others is not its own.
            return self.checkpoint()
        self._check_running()
        return self._executor.request(CheckpointKind.SAVEPOINT, target=self._parts.savepoints.uri(target))

    def switch(
        self,
        shadow: str | None = None,
        timeout: Duration = "3 min",
        *,
        although_different: bool = False,
        keep_old: Duration = KEEP_OLD,
    ) -> None:
        """Have a shadow of this pipeline take it over, and return once it has: see ``Shadow``.

        The running batches end and a last checkpoint has them; the shadow runs and compares them, too, and goes on. If
        it does not come, the batches go on here. Otherwise this driver follows it as a shadow, so that a switch leads
        back.

        Args:
            shadow: its name; None: the only one.
            timeout: how long to wait for it.
            although_different: whether it is to lead although something differs.
            keep_old: how long this driver follows, unless it is stopped before; "0 s": not at all.

        Raises:
            NotSwitchedError: there is no such shadow, something differs, or it has not come. The pipeline is as it was.
            NotCarriedOutError: another switch is under way, or the pipeline is being stopped or has failed.
        """
        store, patience = open_store(pipeline_uri(self._storage, self._pipeline)), seconds(timeout)
        switch = partial(
            switch_to, store, shadow, patience, although_different=although_different, keep_old=keep_old
        )
        self._acts.do(ActKind.SWITCH, self._pipeline, lambda wanted: switch(wanted.check))

    def statistics(self) -> Statistics:
        """Return counts, the latest checkpoints with the part of each shard, and percentiles over completed ones."""
        return self._executor.statistics()

    @property
    def recoveries(self) -> tuple[RecoveryMetrics, ...]:
        """Metrics of the starts and restarts of this coordinator's queries, oldest first."""
        return tuple(self._supervisor.recoveries)

    @property
    def restored(self) -> Checkpoint | None:
        """The checkpoint that this coordinator restored when it was created; None if there was none."""
        point = self._taken.point
        return Checkpoint.of(point.manifest, point.root) if point else None

    @property
    def monitor_url(self) -> str | None:
        """Where this driver answers for its metrics and its health; None without ``CheckpointConfig.page``."""
        return self._parts.monitor_url

    @property
    def verdict(self) -> ShadowVerdict | None:
        """What this driver has found as the shadow of its pipeline; None if it is none."""
        return self._rerun.verdict if self._rerun else None

    @property
    def life(self) -> Life:
        """Whether the pipeline runs, and why it does not: ``phase`` and ``because``."""
        return self._supervisor.life

    @property
    def queries(self) -> tuple[CheckpointedQuery, ...]:
        """The pipeline's queries, in the order in which they were started."""
        return self._starter.queries

    # --- machines -------------------------------------------------------------------------------------------

    def drain(self, machine: str, timeout: Duration = "10 min") -> None:
        """Move all shards of a machine to others, while the queries run, and return when it has none.

        Before maintenance: afterwards no state is lost with the machine. Shards that wait there for the next state host
        count as on it. It gets no shards as long as it has a state host, or an executor that may start one. Shards move
        with a checkpoint, which this takes, and then between two batches: a query whose batches take long keeps its
        shards as long. Such a checkpoint that fails does not count as a failure of the pipeline. Tasks go on to run on
        the machine until its executors end.

        Args:
            machine: its name, as in ``assignment``.
            timeout: how long to wait. Shards not moved by then keep moving.

        Raises:
            DrainError: the machine has no state host, no other machine has one, the time was too short, or the pipeline
                has ended meanwhile.
            ConfigError: the timeout is no duration.
        """
        self._check_running()
        protocol = self._executor.protocol
        protocol.await_outcome(protocol.handle(DrainRequested(machine, seconds(timeout))))

    # --- running and stopping --------------------------------------------------------------------------------

    def run(self, timeout: Duration = "1 min", *, hand_over: bool = False) -> Exit:
        """Wait until the pipeline ends, and stop it: what a program does after it has started its queries.

        SIGTERM and SIGINT stop it as ``stop`` does: running batches commit, and a last checkpoint has them. A second
        signal does what it would have done without this call. Call it in the main thread::

            sys.exit(coordinator.run())

        Args:
            timeout: as for ``stop``. Give the program a little more time than that before it is killed.
            hand_over: whether a standby takes over when a signal stops this driver, as when a scheduler moves it.

        Returns:
            How it has ended, which is the exit code for the program: 0 if all queries have ended by themselves or a
            signal has stopped them, 70 if the pipeline has failed for good, 75 if another driver has taken it over,
            even if this one has followed it since.

        Raises:
            ArgumentError: no query has been started, or it is not the main thread.
        """
        ended = run(self, timeout, hand_over=hand_over)
        return ended if self._rerun is None else self._rerun.exit(ended)

    def stop(
        self,
        savepoint: str | None = None,
        timeout: Duration = "1 min",
        *,
        checkpoint: bool = True,
        hand_over: bool = False,
    ) -> Checkpoint | None:
        """Stop the pipeline gracefully: running batches commit first, and a last checkpoint has them.

        So the next start repeats no batch; without a last checkpoint it goes back to the latest one. If the last
        checkpoint fails, the pipeline stops all the same, and a warning in the log says so. What this machine has of
        the pipeline then stays as if the driver had been killed, so that the next start can resume from it.

        It waits for other threads that are adding an operator or a query, or are stopping the pipeline. What they read
        of a checkpoint meanwhile is interrupted, and so are tasks of theirs that wait for executors. So a start fails,
        and a restore is given up.

        Args:
            savepoint: target of a savepoint of the stopped pipeline, as in ``savepoint``; None: take none. If there are
                transactional sinks, a last checkpoint comes before it, so that all output is published.
            timeout: longest time to wait for running batches, and then again for the last checkpoint. A batch that
                takes longer is cancelled: it has no effect, and runs again after a restore.
            checkpoint: whether to take a last checkpoint. None is taken if there is a savepoint, if the latest
                checkpoint has all committed batches, or if the pipeline has failed or another coordinator has taken it
                over.
            hand_over: whether a standby takes over now. Otherwise the pipeline stays stopped: drivers that stand by go
                on waiting, until another one has been started and ends. It makes no difference without ``standby``,
                nor if the pipeline has failed: then a standby takes over.

        Returns:
            The savepoint or the last checkpoint; None if none was taken.

        Raises:
            CheckpointError: the savepoint failed, for one because a state host was lost meanwhile. The queries have
                been started again, or are about to be, and the coordinator goes on.
            PipelineFailedError: the savepoint failed, and the pipeline cannot go on.
            InvalidPlaceError: as for ``savepoint``; nothing was stopped.
            CoordinatorStoppedError: a savepoint was requested, but the coordinator has already stopped.
        """
        patience = seconds(timeout)
        if self._rerun is not None:
            savepoint, checkpoint = None, False
        with named(pipeline=self._pipeline):
            target = None if savepoint is None else self._parts.savepoints.uri(savepoint)
            stop = partial(self._stop, target, patience, timeout, checkpoint, hand_over)
            return self._acts.do(ActKind.STOP, self._pipeline, lambda _: stop())

    def _stop(
        self, target: str | None, patience: float, timeout: Duration, checkpoint: bool, hand_over: bool
    ) -> Checkpoint | None:
        # The acts of a shadow are others than those of the leader that it becomes.
        with self._stopping:
            if self._rerun is not None:
                self._rerun.await_end()
            end_growth(self._changing, self._end_waits)
            if self._executor.is_closed:
                # What is left of one that could not change sides.
                self._closing.close()
                if target is not None:
                    raise CoordinatorStoppedError(self._pipeline)
                return None
            stop = GracefulStop(self._executor, self._supervisor, self._taken.catalog.store.uri)
            taken = stop.stop(target, patience, checkpoint=checkpoint)
            if replicas := self.replicas:
                with runtime.pool(len(replicas), "chandy-replicas") as pool:
                    list(pool.map(lambda replica: replica.stop(timeout), replicas))
            if not hand_over and not self.life.is_over:
                self._taken.leadership.stop()
            self._closing.close()
            self._taken.drop_claimed(self._taken.generation.generation)
            return taken

    def _end_waits(self) -> None:
        """End what other threads wait for, because the pipeline is to be stopped."""
        self._parts.interrupt()
        self._offering.interrupt()

    def __repr__(self) -> str:
        storage, status = self._taken.catalog.store.uri, self.life.phase.value
        return f"CheckpointCoordinator(pipeline={self._pipeline!r}, storage={storage!r}, status={status})"

    def _repr_html_(self) -> str:
        rows = [(query.name, query.life.phase.value, query.guarantee.level) for query in self.queries]
        return html.table(repr(self), ("query", "status", "guarantee"), rows)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is not None and self._rerun is not None:
            self._rerun.cancel()
        # A program that fails has not stopped its pipeline on purpose. Ctrl-C and sys.exit are no ``Exception``.
        self.stop(hand_over=isinstance(error, Exception))

    @contextmanager
    def _growing(self) -> Iterator[None]:
        """Let one thread at a time add something to the pipeline, while the pipeline runs."""
        with named(pipeline=self._pipeline), self._acts.between_stops(self._changing), self._refusing():
            yield

    @contextmanager
    def _refusing(self) -> Iterator[None]:
        """Tell of what a running pipeline refuses inside of the ``with``."""
        self._check_running()
        try:
            yield
        except ChandyError as error:
            self._supervisor.news.refused(error)
            raise

    def _check_running(self) -> None:
        if self._executor.is_closed:
            raise CoordinatorStoppedError(self._pipeline)
