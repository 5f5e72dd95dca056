"""What a user can choose about checkpoints and recovery, checked when it is chosen."""

from __future__ import annotations

import attrs

from . import fields
from .durations import Duration, seconds
from .protocol.limits import Limits
from .recovery.restart import ExponentialBackoff, RestartStrategy

MIB = 1024 * 1024


@attrs.frozen(kw_only=True)
class CheckpointConfig:
    """How a pipeline is checkpointed, restored and restarted.

    Durations are kept as they were given; the properties that end in ``_seconds`` read them.

    Raises:
        ConfigError: a value cannot be used; it names the field, what was found and what is expected.
    """

    interval: Duration | None = attrs.field(
        default="10 s", validator=fields.optional(fields.positive_duration)
    )
    """From one periodic checkpoint to the next; None: none are taken but those asked for by hand."""
    min_pause: Duration = attrs.field(default="0 s", validator=fields.duration)
    """The least time from the completion of a checkpoint to the next periodic one.

    It counts from the last completion, not from a failure: after a failure the state is the least protected.
    A checkpoint by hand and a savepoint do not wait for it.
    """
    initial_delay: Duration | None = attrs.field(default=None, validator=fields.optional(fields.duration))
    """From the start to the first periodic checkpoint; None: by chance from min_pause to interval."""
    timeout: Duration = attrs.field(default="10 min", validator=fields.positive_duration)
    """How long a checkpoint may take until it is aborted."""
    savepoint_timeout: Duration = attrs.field(default="1 h", validator=fields.positive_duration)
    """The same for a savepoint, which uploads everything."""
    max_concurrent: int = attrs.field(default=1, validator=fields.whole(at_least=1))
    """How many checkpoints may be under way at once.

    A savepoint waits for its turn like any other, but then takes no place: the hour that it may need would
    be an hour without periodic checkpoints.
    """
    tolerable_failures: int = attrs.field(default=3, validator=fields.whole(at_least=0))
    """How many checkpoints may fail in a row; one more fails the pipeline."""
    max_queued: int = attrs.field(default=1000, validator=fields.whole(at_least=1))
    """How many requests may wait."""
    retained: int = attrs.field(default=3, validator=fields.whole(at_least=1))
    """How many of the newest completed checkpoints are kept. Savepoints are kept beside them, for ever."""
    savepoints: str | None = attrs.field(default=None, validator=fields.optional(fields.filled))
    """URI under which savepoints go that are asked for without a place; None: such a request is refused."""
    restart: RestartStrategy = attrs.field(
        factory=ExponentialBackoff, validator=fields.instance(RestartStrategy)
    )
    """What is done when the pipeline fails."""
    host_memory: int = attrs.field(default=512 * MIB, validator=fields.whole(at_least=16 * MIB))
    """Bytes of memory that one state host may use for state: half for RocksDB's caches and buffers, a quarter for
    values that were used lately, a quarter for changes that wait for a checkpoint."""
    work_dir: str | None = attrs.field(default=None, validator=fields.optional(fields.filled))
    """Directory for the queries' working checkpoint directories; None: a private one on the driver's machine.

    Queries with state of Spark's own need one that all executors reach, where these are not the driver itself.
    """
    cache_dir: str | None = attrs.field(default=None, validator=fields.optional(fields.filled))
    """Directory on each machine for the state hosts' RocksDB, their changelogs, and files of snapshots for local
    recovery; None: ``cache`` in the runtime directory, which is ``CHANDY_RUNTIME_DIR`` or below ``/tmp``."""
    changelog: bool = attrs.field(default=True, validator=fields.instance(bool))
    """Whether state hosts write down what each batch changes, below ``cache_dir``, until a checkpoint has it.

    Then a pipeline whose state host or whose driver was killed goes on where it stood, and runs no batch again, given
    that the machine (Linux) has not been started anew meanwhile, that no other coordinator ran the pipeline since, and
    that queries and operators are as they were; otherwise it goes back to the latest checkpoint. In local mode only,
    and where workers run the driver's own Python.
    """
    timer_period: Duration = attrs.field(default="1 s", validator=fields.positive_duration)
    """How long a query is idle until a batch looks for timers of processing time: how late one may fire.

    Timers of event time need none: their batch follows at once when the watermark has advanced.
    """
    allow_unfenced: bool = attrs.field(default=False, validator=fields.instance(bool))
    """Use a store that cannot create exclusively. Two drivers on one pipeline can then both go on."""
    allow_non_restored: bool = attrs.field(default=False, validator=fields.instance(bool))
    """Restore although the checkpoint holds a query or an operator that the pipeline no longer has."""
    claim: bool = attrs.field(default=False, validator=fields.instance(bool))
    """Whether a savepoint that is restored belongs to this pipeline from then on.

    Such a savepoint is deleted when nothing needs it any more: a checkpoint has completed since, and the
    coordinator that was restored from it has stopped. Otherwise nothing in it is ever changed or deleted.
    """
    history: int = attrs.field(default=32, validator=fields.whole(at_least=1))
    """How many checkpoints that have ended the statistics show one by one."""

    @property
    def interval_seconds(self) -> float | None:
        """From one periodic checkpoint to the next: the interval, or min_pause if that is longer."""
        return None if self.interval is None else max(seconds(self.interval), self.min_pause_seconds)

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
    def limits(self) -> Limits:
        """What the checkpoint protocol needs of it."""
        return Limits(
            interval=self.interval_seconds,
            min_pause=self.min_pause_seconds,
            initial_delay=self.initial_delay_seconds,
            timeout=self.timeout_seconds,
            savepoint_timeout=self.savepoint_timeout_seconds,
            max_concurrent=self.max_concurrent,
            max_queued=self.max_queued,
            tolerable_failures=self.tolerable_failures,
            retained=self.retained,
            history=self.history,
        )
