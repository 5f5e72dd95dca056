"""What is known of a pipeline at one moment: from memory alone, so that it is told whatever stores and hosts do."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from typing import Protocol

import attrs

from ...state.rpc.messages import DiskSpace
from ...state.rpc.metrics import OperatorMetrics
from ...storage.checkpoints.journal import JournalEntry
from ...storage.checkpoints.manifest import ChannelRecord
from ...storage.store import StoreRequests
from ..assigned_shard import AssignedShard, assigned_shards
from ..observer import Orders, Running
from ..protocol.life import LifePhase, QueryPhase
from ..protocol.state_machine import PipelineStateMachine
from ..protocol.statistics import Statistics
from ..protocol.totals import Totals
from ..query import CheckpointedQuery
from ..recovery.metrics import RecoveryMetrics
from ..replica_status import ReplicaStatus
from ..verdict import ShadowVerdict
from .activity import Activity, QueryActivity
from .journaling import JournalWriter
from .shadow_look import ShadowLook
from .state_sizes import OperatorSize, StateSizes
from .trend_keeper import TrendKeeper
from .trends import Trends


@attrs.frozen(kw_only=True)
class Home:
    """Where a pipeline lives: its storage, and the driver that leads it."""

    storage: str
    """URI of the pipeline's folder."""
    machine: str = ""
    """The machine of the driver; empty if no driver leads."""
    pid: int | None = None
    application: str = ""
    """Spark's id of the application; empty if that is not known."""
    spark_ui: str = ""
    """Address of Spark's own pages; empty if there are none."""


@attrs.frozen
class QueryFacts:
    """One query of the pipeline."""

    life: QueryPhase | None
    """What it does; None: the storage alone was looked at."""
    committed: int
    """The newest batch that is known to have committed; -1: none."""
    guarantee: str = ""
    """What its sink promises, and why."""
    sinks: tuple[str, ...] = ()
    """The uids of its transactional sinks."""
    operators: tuple[str, ...] = ()
    """The uids of its operators."""
    reads: tuple[str, ...] = ()
    """The queries whose output it reads."""
    activity: QueryActivity = attrs.field(factory=QueryActivity)
    """What it has done."""
    because: str = ""
    """Why it restarts or has ended, in one line; empty if no error is the reason."""
    attempts: int = 0
    """How often it has been started again since it last committed, the next attempt included."""
    next_attempt_at: float | None = None
    """When it is started again, in seconds since 1970; None: it does not wait for that."""


@attrs.frozen
class Unpublished:
    """Output of a query that its transactional sinks have not published."""

    checkpoints: int
    oldest: float
    """When the oldest of these checkpoints completed, in seconds since 1970."""


@attrs.frozen(kw_only=True)
class Facts:
    """A pipeline at one moment."""

    generation: int
    life: LifePhase | None
    """What the pipeline does under this driver; None: the storage alone was looked at."""
    because: str = ""
    """Why it goes back, ends or has ended, in one line, or why the storage cannot be read; empty if no error is the
    reason."""
    now: float
    """Seconds since 1970, by the driver's clock, as all times here."""
    began: float
    """When the driver took the pipeline over."""
    interval: float | None
    """Seconds from one periodic checkpoint to the next; None if there are no periodic checkpoints."""
    longest_interval: float | None
    """The same while the pipeline is behind its sources, and never shorter."""
    totals: Totals
    restored: int
    """How often a checkpoint was restored."""
    last_completed_at: float | None
    """When the latest checkpoint completed; None: none has."""
    completed: int | None = None
    """Its id."""
    size: int | None
    """Bytes that a restore of it reads."""
    operators: Mapping[str, OperatorSize]
    """The state of each operator in the checkpoint that the pipeline's state has grown from, by uid."""
    checkpoints_in_progress: int
    checkpoints_queued: int
    """Requests for checkpoints that wait."""
    queries: Mapping[str, QueryFacts]
    hosts: Mapping[str, int]
    """State hosts by machine."""
    disks: Mapping[str, DiskSpace]
    """Where they keep their files, by machine."""
    shards: Mapping[str, int]
    """Shards by the machine that has them."""
    shards_unassigned: int
    """Shards that no task has needed yet."""
    shards_moving: int
    """Shards that are about to move."""
    shards_with_standby: int
    """Shards with a standby that is in sync."""
    promoted: int = 0
    """Lost shards whose standbys have taken their place since this driver leads."""
    reopened: int = 0
    """Lost shards that another host on their machine has opened again since this driver leads."""
    unpublished: Mapping[str, Unpublished]
    """By query."""
    recoveries: Mapping[str, int]
    """How often queries were started or restarted, by how."""
    recovery_seconds: float | None
    """How long the latest of them took, up to the first commit; None: not known yet."""
    replicas: Mapping[str, ReplicaStatus] = attrs.field(factory=dict)
    """By name."""
    shadows: Mapping[str, ShadowVerdict] = attrs.field(factory=dict)
    """What those have found that run its batches beside it, by name."""
    work: Mapping[str, OperatorMetrics] = attrs.field(factory=dict)
    """What each operator has done since this driver leads, by uid."""
    channels: tuple[ChannelRecord, ...] = ()
    """What was between its queries at the checkpoint that ``operators`` is of."""
    home: Home = Home(storage="")
    store: StoreRequests | None = None
    """What the driver has asked of the store with the checkpoints; None: that is a disk of its machine."""


class ObservedPipeline(Protocol):
    """A pipeline as the server in its driver knows it.

    All but ``orders`` comes from memory, at once; only the first calls of ``history`` and ``trends`` read the store.
    """

    @property
    def orders(self) -> Orders | None:
        """What does as it is told; None if there is nobody who could."""
        ...

    def facts(self) -> Facts:
        """Return what is known now."""
        ...

    def statistics(self) -> Statistics:
        """Return the statistics of its checkpoints."""
        ...

    def assignment(self) -> tuple[AssignedShard, ...]:
        """Return who has which shard."""
        ...

    def recoveries(self) -> tuple[RecoveryMetrics, ...]:
        """Return its recoveries, oldest first."""
        ...

    def history(self) -> tuple[JournalEntry, ...]:
        """Return what has failed in this life of the driver and in earlier ones, oldest first."""
        ...

    def trends(self) -> Trends:
        """Return what was measured in the last hour and day, also by the driver before."""
        ...


@attrs.frozen
class Observed:
    """The ``ObservedPipeline`` of a pipeline that runs."""

    orders: Orders
    running: Running
    journal: JournalWriter
    kept: TrendKeeper
    home: Home
    clock: Callable[[], float]
    began: float
    activity: Activity
    shadows: ShadowLook
    _sizes: StateSizes = attrs.field(factory=StateSizes, init=False)

    def facts(self) -> Facts:
        """Return what is known now. It asks no store, no host and no JVM."""
        # Not within the lock: there may be ten thousand shards.
        base, taken = self.running.executor.protocol.read(
            lambda state: (
                state.checkpoints.retained.base_manifest,
                state.checkpoints.history.latest_completed,
            )
        )
        sizes = self._sizes.of(base, taken)
        statuses = [replica.status for replica in self.orders.replicas]
        facts = self.running.executor.protocol.read(lambda state: self._read(state, sizes))
        return attrs.evolve(
            facts,
            replicas={status.name: status for status in statuses},
            shadows={verdict.shadow: verdict for verdict in self.shadows.known},
            channels=base.channels if base else (),
            home=self.home,
        )

    def statistics(self) -> Statistics:
        """Return the statistics of its checkpoints."""
        return self.running.executor.statistics()

    def assignment(self) -> tuple[AssignedShard, ...]:
        """Return who has which shard."""
        return self.running.executor.protocol.read(assigned_shards)

    def recoveries(self) -> tuple[RecoveryMetrics, ...]:
        """Return its recoveries, oldest first."""
        return tuple(self.running.supervisor.recoveries)

    def history(self) -> tuple[JournalEntry, ...]:
        """Return what has failed in this life of the driver and in earlier ones, oldest first."""
        return self.journal.known()

    def trends(self) -> Trends:
        """Return what was measured in the last hour and day, also by the driver before."""
        return self.kept.known()

    def _read(self, state: PipelineStateMachine, sizes: Mapping[str, OperatorSize]) -> Facts:
        supervisor, latest = self.running.supervisor, state.checkpoints.history.latest_completed
        life, recoveries = supervisor.life, supervisor.recoveries
        owners, known = _owners(state), self.activity.of_queries
        shards = sum(len(query.assignment.shards) for query in state.queries.values())
        return Facts(
            generation=state.generation,
            life=life.phase,
            because=life.because,
            now=self.clock(),
            began=self.began,
            interval=state.admission.schedule.current,
            longest_interval=state.limits.longest_interval,
            totals=state.checkpoints.history.totals.copy(),
            restored=state.checkpoints.history.counts.restored,
            last_completed_at=latest.completed_at if latest else None,
            completed=latest.id if latest else None,
            size=latest.size if latest else None,
            operators=sizes,
            checkpoints_in_progress=len(state.checkpoints.pending),
            checkpoints_queued=len(state.admission.queue),
            queries={query.name: _query(state, query, known) for query in supervisor.queries},
            disks=self.running.executor.hosts.disks.by_machine(),
            hosts=Counter(host.machine for host in state.members.hosts.values()),
            shards=owners,
            shards_unassigned=shards - sum(owners.values()),
            shards_moving=len(state.placement.moves.under_way),
            shards_with_standby=state.placement.standbys.count_in_sync(state.members.hosts),
            promoted=state.placement.promoted,
            reopened=state.placement.reopened,
            unpublished=_unpublished(state),
            recoveries=dict(supervisor.recovered),
            recovery_seconds=recoveries[-1].total if recoveries else None,
            work=self.activity.of_operators,
            store=self.running.store.asked,
        )


def _query(
    state: PipelineStateMachine, query: CheckpointedQuery, activity: Mapping[str, QueryActivity]
) -> QueryFacts:
    known, definition, life = state.queries.get(query.name), query.definition, query.life
    return QueryFacts(
        life=life.phase,
        because=life.because,
        attempts=life.attempts,
        next_attempt_at=life.next_attempt_at,
        committed=known.committed if known else -1,
        guarantee=str(query.guarantee),
        sinks=tuple(definition.sink.uids),
        operators=tuple(operator.uid for operator in definition.operators),
        reads=definition.reads,
        activity=activity.get(query.name, QueryActivity()),
    )


def _owners(state: PipelineStateMachine) -> Counter[str]:
    owners: Counter[str] = Counter()
    for query in state.queries.values():
        for host, hello in state.members.hosts.items():
            if share := query.assignment.share(host):
                owners[hello.machine] += share
    return owners


def _unpublished(state: PipelineStateMachine) -> dict[str, Unpublished]:
    found: dict[str, Unpublished] = {}
    for publication in state.checkpoints.publications.under_way.values():
        completed = publication.manifest.completed_at
        for query in publication.queries:
            before = found.get(query, Unpublished(0, completed))
            found[query] = Unpublished(before.checkpoints + 1, min(before.oldest, completed))
    return found
