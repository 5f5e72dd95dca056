"""The configuration of a pipeline: what users set about checkpoints, recovery and resources, checked at once."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import attrs

from ..state.rpc.addresses import PortRange
from . import fields
from .durations import Duration, seconds
from .listening import Listening
from .protocol.limits import ProtocolLimits
from .recovery.pipeline_events import PipelineEvent
from .recovery.restart import ExponentialBackoff, RestartStrategy
from .savepoints import Savepoints
from .sinks.two_phase.policy import OutputPolicy

MIB = 1024 * 1024


def _savepoints(given: Savepoints | str | None) -> Savepoints:
    return Savepoints(given) if given is None or isinstance(given, str) else given


@attrs.frozen(kw_only=True)
class CheckpointConfig:
    """How a pipeline is checkpointed, restored and restarted.

    Durations and sizes are stored as given; the properties that end in ``_seconds`` and ``_bytes`` convert them.

    Raises:
        ConfigError: a value cannot be used. The error names the field, the value and what is accepted.
    """

    interval: Duration | None = attrs.field(
        default="10 s", validator=fields.optional(fields.positive_duration)
    )
    """Time from one periodic checkpoint to the next.

    If ``min_pause`` is longer, it is used instead. None: take no periodic checkpoints, only those that are
    requested.
    """
    interval_during_backlog: Duration | None = attrs.field(
        default=None, validator=fields.optional(fields.no_shorter_than("interval"))
    )
    """Time from one periodic checkpoint to the next while the pipeline is behind its sources, ``interval`` at least.

    With fewer checkpoints, a pipeline catches up sooner. Once it has, a checkpoint that is overdue by ``interval``
    begins at once. The pipeline is behind if the latest batch of a query has left something that a source had when the
    batch was planned, because of a limit such as ``maxOffsetsPerTrigger``. Kafka reports that, and so do Python data
    sources with ``reportLatestOffset``; Spark's file sources do not. None: always ``interval``.
    """
    min_pause: Duration = attrs.field(default="0 s", validator=fields.duration)
    """Least time from the completion of a checkpoint to the start of the next periodic one.

    Failed checkpoints do not count: after a failure the next checkpoint is needed soon. Manual checkpoints and
    savepoints do not wait for it.
    """
    initial_delay: Duration | None = attrs.field(default=None, validator=fields.optional(fields.duration))
    """Time from the start of the first query to the first periodic checkpoint.

    None: a random time between ``min_pause`` and ``interval``, so that pipelines that start together do not all
    write at once.
    """
    timeout: Duration = attrs.field(default="10 min", validator=fields.positive_duration)
    """Longest time that a checkpoint may take. A checkpoint that takes longer is aborted.

    If only the result of writing its manifest is missing by then, its request fails, but nothing is deleted: the
    checkpoint is complete as soon as the manifest appears. A request that has waited for its turn this long also fails,
    unless other checkpoints have begun or ended meanwhile.
    """
    savepoint_timeout: Duration = attrs.field(default="1 h", validator=fields.positive_duration)
    """The same for a savepoint. It is longer than ``timeout`` because a savepoint uploads everything."""
    max_concurrent: int = attrs.field(default=1, validator=fields.whole(at_least=1))
    """Number of checkpoints that may run at the same time.

    A savepoint waits for its turn like a checkpoint, but does not count once it runs: it may take an hour, in which
    no periodic checkpoint could start.
    """
    tolerable_failures: int = attrs.field(default=3, validator=fields.whole(at_least=0))
    """Number of checkpoints that may fail in a row. One more failure fails the pipeline."""
    max_queued: int = attrs.field(default=1000, validator=fields.whole(at_least=1))
    """Number of checkpoint requests that may wait. Further requests are refused.

    It is also the number of savepoints that may wait or run, because savepoints do not count for ``max_concurrent``.
    """
    retained: int = attrs.field(default=3, validator=fields.whole(at_least=1))
    """Number of completed checkpoints that are kept; older ones are deleted. Savepoints do not count."""
    savepoints: Savepoints = attrs.field(
        factory=Savepoints, converter=_savepoints, validator=fields.instance(Savepoints)
    )
    """Where savepoints go, and whether some are taken by schedule; a text is the place alone.

    ``Savepoints("s3://archive", every="1 day", keep=7)`` takes one each day, and keeps the newest seven of these.
    """
    restart: RestartStrategy = attrs.field(
        factory=ExponentialBackoff, validator=fields.instance(RestartStrategy)
    )
    """How often, and after which delay, the pipeline restarts when it fails.

    ``NoRestart``, ``FixedDelay`` or ``ExponentialBackoff``.
    """
    host_memory: int | str = attrs.field(default="512m", validator=fields.size(at_least=16 * MIB))
    """Memory that each state host may use for state: text with a unit, as in Spark's settings, or bytes as an integer.

    Half of it is for RocksDB's caches and buffers, a quarter for values that were used recently, and a quarter for
    changes that no checkpoint has yet.
    """
    host_timeout: Duration = attrs.field(default="1 min", validator=fields.positive_duration)
    """Longest time that a state host may be silent, as one whose process is stopped or whose disk does not answer.

    The log names a silent host after a few seconds. After this time it is taken for lost: nothing that it does counts
    any more, and the pipeline restarts as after the death of a host. It is killed if it runs on the driver's machine;
    otherwise the log says which process is to be killed.
    """
    java_timeout: Duration | None = attrs.field(
        default="2 min", validator=fields.optional(fields.positive_duration)
    )
    """Longest time that the JVM of the Spark session may be silent, as one that is frozen or out of memory.

    The log names a silent JVM after a few seconds. After this time it is killed, and the pipeline fails. So whatever
    waits for Spark comes to an end, ``stop()`` too, a standby takes over, and no query wakes later and writes. The
    default is what Spark gives its executors by ``spark.network.timeout``. With None, it is never killed: for a
    JVM in a debugger, or one whose large heap is dumped.
    """
    standbys: int = attrs.field(default=0, validator=fields.whole(at_least=0, at_most=1))
    """Number of standbys of each shard, 0 or 1: copies on the state hosts of other machines.

    A standby has what the shard has after every batch. If the state host of a shard is lost, with its machine or alone,
    the standby takes its place: no batch that has committed runs again, and the query does not restart. Spark runs the
    tasks of the running batch again that need it. So Spark must let tasks fail: ``spark.task.maxFailures`` is 4 by
    default, and 2 at least. A state host that is silent counts as lost after ``host_timeout``, for which those tasks
    wait. Standbys come with the second checkpoint after a start or a loss at the latest; until then, and if a shard
    and its standby are lost together, the pipeline goes back to its checkpoint.

    It costs memory and disk for as much state again, and each task waits until the standby has its changes, too. With
    one machine, as in local mode, there are no standbys.
    """
    work_dir: str | None = attrs.field(default=None, validator=fields.optional(fields.filled))
    """Directory for the queries' working checkpoint directories: a local path, or a URI as Hadoop writes it.

    With a URI such as ``hdfs://namenode/chandy`` or ``s3a://bucket/chandy``, queries with state of Spark's own have
    theirs there, through Spark's own file system and settings. All others stay on the driver's machine, because no
    executor reads them. On a cluster, a query with state of Spark's own needs such a URI, or a path that all
    machines share. In local mode, a URI costs the resumption after a kill without repeated batches.
    None: a private directory on the driver's machine.
    """
    shared: bool = attrs.field(default=False, validator=fields.instance(bool))
    """Whether local paths are on a file system that all machines of the cluster have mounted there.

    On a cluster of several machines, the storage, savepoints, ``work_dir`` for state of Spark's own, and the output of
    Spark's file sink may only then be local paths.
    """
    cache_dir: str | None = attrs.field(default=None, validator=fields.optional(fields.filled))
    """Local path, on each machine, of the directory for the state hosts' RocksDB files, their changelogs, and the
    snapshot files that local recovery uses.

    None: ``cache`` in the runtime directory, which is ``CHANDY_RUNTIME_DIR`` or, if that is not set,
    ``/tmp/chandy-<user id>``.
    """
    ports: str | None = attrs.field(default=None, validator=fields.optional(fields.ports))
    """Ports that the driver and the state hosts may listen on, unless Spark runs in local mode: ``"40000-40099"``.

    The driver needs one, and each executor of a machine one. None: any port. Firewalls must let them through, between
    all machines in both directions.
    """
    changelog: bool = attrs.field(default=True, validator=fields.instance(bool))
    """Whether state hosts log what each batch changes, below ``cache_dir``, until a checkpoint contains it.

    With a changelog, a pipeline whose state host was killed goes on after its newest committed batch and repeats none.
    On a cluster, the next state host on the same machine opens the shards again, and no query restarts. In local mode
    the queries restart, also after the driver was killed; this needs Linux, workers that run the driver's own Python, a
    machine that has not been rebooted, no other coordinator on the pipeline in between, and the same queries and
    operators. Otherwise, and without a changelog, the pipeline goes back to the latest checkpoint.
    """
    timer_period: Duration = attrs.field(default="1 s", validator=fields.positive_duration)
    """Longest time that an idle query waits before it runs a batch for processing-time timers.

    A timer may fire this much late. Event-time timers do not need it: a batch for them follows as soon as the
    watermark advances.
    """
    allow_unfenced: bool = attrs.field(default=False, validator=fields.instance(bool))
    """Whether to accept a store that cannot create objects exclusively.

    On such a store two drivers of one pipeline can both complete checkpoints. Only set it if there is never more than
    one.
    """
    allow_non_restored: bool = attrs.field(default=False, validator=fields.instance(bool))
    """Whether a query may be started although the restored checkpoint has operators of it that it no longer has.

    Their state is dropped.
    """
    dropped_queries: Sequence[str] = attrs.field(
        default=(), converter=fields.as_tuple, validator=fields.names
    )
    """Names of queries that the restored checkpoint has and the pipeline no longer has.

    Their state is dropped, and so is output of them that transactional sinks have not published. There is no
    checkpoint before all other queries of the restored one have been started: it would drop theirs as well.
    """
    allow_new_output: bool = attrs.field(default=False, validator=fields.instance(bool))
    """Whether a query with a file sink may write into another directory than it did in the restored checkpoint, or a
    transactional sink may be gone whose output is not all published.

    The new output begins empty, at the checkpoint: the rows from before it stay in the old one. It is for a pipeline
    that is forked from a savepoint.
    """
    max_unpublished: int = attrs.field(default=10, validator=fields.whole(at_least=1))
    """Number of completed checkpoints whose output may wait for the target of a transactional sink.

    While a target is away, its query goes on until so many wait. Then it pauses, no checkpoint starts, and the log says
    so; it goes on by itself once the target takes what waits.
    """
    check_invariants: bool = attrs.field(default=False, validator=fields.instance(bool))
    """Whether the checkpoint protocol checks itself after every event; if it is not as it must be, the pipeline fails.

    Set it to look for a bug of Chandy. It costs the driver time in proportion to the shards and hosts of the pipeline.
    """
    take_over_output: bool = attrs.field(default=False, validator=fields.instance(bool))
    """Whether transactional sinks may publish into the output of a pipeline of this name with another storage.

    Set it for the first start of a pipeline that was moved by a savepoint. From then on the pipeline in the other
    storage cannot publish, unless it is started with this setting, too.
    """
    allow_repeated_output: bool = attrs.field(default=False, validator=fields.instance(bool))
    """Whether to restore a checkpoint although a transactional sink has published what comes after it.

    A target that can take rows back does so. Any other gets them a second time.
    """
    allow_lost_output: bool = attrs.field(default=False, validator=fields.instance(bool))
    """Whether to go on although the target of a transactional sink has lost what was published.

    For example, it was restored from a backup or created again. The rows stay lost.
    """
    claim: bool = attrs.field(default=False, validator=fields.instance(bool))
    """Whether a savepoint that is restored belongs to this pipeline from then on.

    A claimed savepoint is deleted when it is no longer needed: after a newer checkpoint has completed and the
    coordinator that restored it has stopped. A savepoint that is not claimed is never changed or deleted.
    """
    takeover_timeout: Duration = attrs.field(default="30 s", validator=fields.duration)
    """Longest time to wait, when the pipeline starts, for the driver that has run it before to end its queries.

    Only a driver that still lives is waited for: it notices its successor within two seconds. If it is on this
    machine and does not end its queries in time, the start fails. If it is on another machine, or in another
    container, and does not answer in time, it is taken for dead. So after such a machine has died a start takes this
    long.

    With ``standby=True`` it is also the time of the driver's lease: one that has not renewed it for this long is taken
    for dead by its standbys, wherever it runs.
    """
    listen: str | None = attrs.field(default=None, validator=fields.optional(fields.listening))
    """Address at which the driver tells how the pipeline does: ``"127.0.0.1:9464"``, say.

    ``/`` is a page for people, ``/metrics`` is for Prometheus, ``/healthz`` says that the process answers, ``/readyz``
    whether the pipeline does its work, or why not, and ``/api/v1`` tells of checkpoints, shards and recoveries as JSON.
    An address that other machines reach needs a ``token``. Port 0 is any free one; ``coordinator.monitor_url`` says
    which. It needs ``chandy[monitor]``. With None, the driver does not listen.
    """
    token: str | None = attrs.field(default=None, repr=False, validator=fields.optional(fields.token))
    """Bearer token that all requests but those of probes must carry. A browser is asked for it as a password.

    With None they need none, and ``/api/v1`` takes no checkpoints.
    """
    tls_certificate: str | None = attrs.field(default=None, validator=fields.optional(fields.filled))
    """Path of a certificate, with those above it, to serve metrics by TLS; None if they are served in the clear."""
    tls_key: str | None = attrs.field(default=None, validator=fields.optional(fields.filled))
    """Path of the certificate's private key; None if it is in the certificate's file."""
    on_event: Callable[[PipelineEvent], object] | None = attrs.field(
        default=None, repr=False, validator=fields.optional(fields.function)
    )
    """Function that is called with what happens: checkpoints that complete or fail, recoveries, the pipeline's end.

    Each is a ``PipelineEvent``: ``CheckpointCompleted``, ``CheckpointFailed``, ``CheckpointMeasured``,
    ``HostReplaced``, ``Recovering``, ``Recovered`` or ``PipelineEnded``. The function is called on a thread of its own,
    one event after the other. It may take its time, and what it raises is logged. While 1,000 events wait for it,
    further ones are dropped, and the log says so. A stop waits 5 s for it. With None, there are no calls.
    """
    traces: bool = attrs.field(default=False, validator=fields.instance(bool))
    """Whether checkpoints and recoveries become spans of OpenTelemetry, with their phases.

    It needs ``chandy[traces]``, and a tracer provider that the program sets up.
    """
    history: int = attrs.field(default=32, validator=fields.whole(at_least=1))
    """Number of finished checkpoints that ``statistics()`` lists one by one."""

    @property
    def interval_seconds(self) -> float | None:
        """``interval`` in seconds, or ``min_pause`` if that is longer; None without periodic checkpoints."""
        return None if self.interval is None else max(seconds(self.interval), self.min_pause_seconds)

    @property
    def interval_during_backlog_seconds(self) -> float | None:
        """``interval_during_backlog`` in seconds, or ``interval_seconds`` if that is longer; None if not given."""
        if self.interval_during_backlog is None or (usual := self.interval_seconds) is None:
            return None
        return max(seconds(self.interval_during_backlog), usual)

    @property
    def min_pause_seconds(self) -> float:
        """``min_pause`` in seconds."""
        return seconds(self.min_pause)

    @property
    def timer_period_seconds(self) -> float:
        """``timer_period`` in seconds."""
        return seconds(self.timer_period)

    @property
    def initial_delay_seconds(self) -> float | None:
        """``initial_delay`` in seconds."""
        return None if self.initial_delay is None else seconds(self.initial_delay)

    @property
    def timeout_seconds(self) -> float:
        """``timeout`` in seconds."""
        return seconds(self.timeout)

    @property
    def savepoint_timeout_seconds(self) -> float:
        """``savepoint_timeout`` in seconds."""
        return seconds(self.savepoint_timeout)

    @property
    def takeover_timeout_seconds(self) -> float:
        """``takeover_timeout`` in seconds."""
        return seconds(self.takeover_timeout)

    @property
    def host_timeout_seconds(self) -> float:
        """``host_timeout`` in seconds."""
        return seconds(self.host_timeout)

    @property
    def java_timeout_seconds(self) -> float | None:
        """``java_timeout`` in seconds."""
        return None if self.java_timeout is None else seconds(self.java_timeout)

    @property
    def patience_seconds(self) -> float:
        """How long a task waits for its shards to get another owner: until a lost host is noticed, and replaced."""
        return self.host_timeout_seconds + 15.0 if self.standbys or self.changelog else 0.0

    @property
    def host_memory_bytes(self) -> int:
        """``host_memory`` in bytes."""
        return fields.in_bytes(self.host_memory)

    @property
    def port_range(self) -> PortRange | None:
        """``ports`` as a value."""
        return None if self.ports is None else fields.port_range(self.ports)

    @property
    def listening(self) -> Listening | None:
        """``listen`` and what goes with it as a value."""
        if self.listen is None:
            return None
        return Listening.parse(self.listen, self.token, self.tls_certificate, self.tls_key)

    @property
    def output_policy(self) -> OutputPolicy:
        """What transactional sinks need of it."""
        return OutputPolicy(
            max_unpublished=self.max_unpublished,
            allow_repeated_output=self.allow_repeated_output,
            allow_lost_output=self.allow_lost_output,
        )

    @property
    def limits(self) -> ProtocolLimits:
        """What the checkpoint protocol needs of it."""
        return ProtocolLimits(
            interval=self.interval_seconds,
            interval_during_backlog=self.interval_during_backlog_seconds,
            min_pause=self.min_pause_seconds,
            initial_delay=self.initial_delay_seconds,
            timeout=self.timeout_seconds,
            savepoint_timeout=self.savepoint_timeout_seconds,
            max_concurrent=self.max_concurrent,
            max_queued=self.max_queued,
            tolerable_failures=self.tolerable_failures,
            retained=self.retained,
            max_unpublished=self.max_unpublished,
            standbys=self.standbys,
            history=self.history,
        )
