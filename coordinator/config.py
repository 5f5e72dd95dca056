"""The configuration of a pipeline: what users set about checkpoints, recovery and resources, checked at once."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import TypeVar

import attrs

from ..state.rpc.addresses import PortRange
from . import fields
from .durations import Duration, seconds
from .listening import Page
from .protocol.limits import HISTORY, MAX_UNPUBLISHED, ProtocolLimits
from .protocol.restart_tracker import RestartStrategy
from .recovery.pipeline_events import PipelineEvent
from .recovery.restart import ExponentialBackoff
from .savepoints import Savepoints

MIB = 1024 * 1024
Usual = TypeVar("Usual", float, float | None)


def tuned(name: str, usual: Usual) -> float | Usual:
    """Return a constant, or the number that a test or a benchmark sets in its place by ``CHANDY_<name>``."""
    given = os.environ.get(f"CHANDY_{name}")
    return usual if given is None else float(given)


def _savepoints(given: Savepoints | str | None) -> Savepoints:
    return Savepoints(given) if given is None or isinstance(given, str) else given


@fields.known
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

    The first one comes at a random time within it, so that pipelines that start together do not all write at once.
    None: take no periodic checkpoints, only those that are requested.
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
    allow_unfenced: bool = attrs.field(default=False, validator=fields.instance(bool))
    """Whether to accept a store that cannot create objects exclusively: only if there is never more than one driver.

    On such a store two drivers of one pipeline can both complete checkpoints.
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
    page: Page | None = attrs.field(default=None, validator=fields.optional(fields.instance(Page)))
    """Where the driver answers for a page, metrics, probes and an API, such as ``Page("127.0.0.1:9464")``.

    None: nowhere.
    """
    on_event: Callable[[PipelineEvent], object] | None = attrs.field(
        default=None, repr=False, validator=fields.optional(fields.function)
    )
    """Function that is called with what happens: checkpoints that complete or fail, recoveries, the pipeline's end.

    Each is a ``PipelineEvent``: ``CheckpointCompleted``, ``CheckpointFailed``, ``CheckpointMeasured``,
    ``StartRefused``, ``HostReplaced``, ``Recovering``, ``Recovered`` or ``PipelineEnded``. The function is called on a
    thread of its own, one event after the other. It may take its time, and what it raises is logged. While 1,000 events
    wait for it, further ones are dropped, and the log says so. A stop waits 5 s for it. With None, there are no calls.
    """
    traces: bool = attrs.field(default=False, validator=fields.instance(bool))
    """Whether checkpoints and recoveries become spans of OpenTelemetry, with their phases.

    It needs ``chandy[traces]``, and a tracer provider that the program sets up.
    """

    record_batches: bool = attrs.field(default=False, validator=fields.instance(bool))
    """Whether checkpoints keep a record of the batches since the one before: so each can be run again and compared. A
    shadow has the driver that it follows keep them in any case.

    The record of a batch is what Spark has logged of it (offsets, clock, watermark, the files of a file source), and by
    transactional sink a digest of the rows that went out: their number, and a 128-bit sum of their hashes. It needs
    a few kilobytes for each batch. Digests take a few percent of the time that a sink needs to stage its rows.
    """

    @property
    def interval_seconds(self) -> float | None:
        """``interval`` in seconds; None without periodic checkpoints."""
        return None if self.interval is None else seconds(self.interval)

    @property
    def interval_during_backlog_seconds(self) -> float | None:
        """``interval_during_backlog`` in seconds; None if not given."""
        return None if self.interval_during_backlog is None else seconds(self.interval_during_backlog)

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
    def limits(self) -> ProtocolLimits:
        """What the checkpoint protocol needs of it."""
        return ProtocolLimits(
            interval=self.interval_seconds,
            interval_during_backlog=self.interval_during_backlog_seconds,
            initial_delay=tuned("INITIAL_DELAY", None),
            timeout=self.timeout_seconds,
            savepoint_timeout=self.savepoint_timeout_seconds,
            max_concurrent=self.max_concurrent,
            tolerable_failures=self.tolerable_failures,
            retained=self.retained,
            max_unpublished=int(tuned("MAX_UNPUBLISHED", MAX_UNPUBLISHED)),
            standbys=self.standbys,
            history=int(tuned("HISTORY", HISTORY)),
        )
