"""What a DataStreamWriter would start, as plain values, and the check that it can be checkpointed."""

from __future__ import annotations

import enum
from collections.abc import Mapping
from typing import Final

import attrs

from ..errors import WriterError
from .logs.compact_log import DEFAULT_INTERVAL

KAFKA: Final = "kafka"
"""The name of every source that reads Kafka by Spark's own connector."""


class Trigger(enum.StrEnum):
    """When a query runs its next batch; the values are the arguments of ``DataStreamWriter.trigger``."""

    PROCESSING_TIME = "processingTime"
    AVAILABLE_NOW = "availableNow"
    ONCE = "once"
    CONTINUOUS = "continuous"
    REAL_TIME = "realTime"


@attrs.frozen
class SourceFacts:
    """One streaming source of a query."""

    name: str
    """Its format, or its class if it has no short name."""
    replayable: bool
    """Whether it returns the same records for the same offsets, also in another process."""
    clean_source: str | None = None
    """The option ``cleanSource`` of a file source, in lower case; None if it is off."""
    options: Mapping[str, str] = attrs.field(factory=dict, repr=False)
    """With their names in lower case. Some may be secret."""
    label: str = ""
    """The name that the user has given it, by which Spark's offset log may call it; empty if it has none."""
    is_files: bool = False
    """Whether it is Spark's own source of files, of any format: that one keeps a log of the files that it has read."""
    ignores_missing_files: bool = False
    """Whether a source of files goes on without those that are gone."""


@attrs.frozen
class SinkFacts:
    """Where a query writes."""

    format: str
    path: str | None = None
    table: str | None = None
    """The table of ``toTable``."""
    file_format: bool = False
    """Whether Spark's own file sink writes it: that sink keeps a log of its batches in the output directory."""


@attrs.frozen
class WriterFacts:
    """What a writer is set to. Nothing has been started."""

    sink: SinkFacts
    output_mode: str
    trigger: Trigger
    checkpoint_location: str | None = None
    """The writer's own option. The session's default does not count: an option overrides it."""
    query_name: str | None = None
    async_progress: bool = False
    """Whether the query writes its logs asynchronously, later than it runs the batches."""
    operators: tuple[str, ...] = ()
    """Uids of the Chandy operators in the plan, without duplicates, in the order of the plan."""
    inputs: Mapping[str, tuple[int, ...]] = attrs.field(factory=dict)
    """By the uid of an operator the numbers of the sources that it reads."""
    merged_operators: tuple[str, ...] = ()
    """The members of ``operators`` that are below a union or a coalesce without a shuffle in between."""
    native_state: bool = False
    """Whether Spark keeps state of its own for the query: for an aggregate, a join of streams, deduplication, ..."""
    sources: tuple[SourceFacts, ...] = ()
    """Each source once, in the order of Spark's offset log."""
    no_data_batches: bool = True
    """Whether Spark may run batches without data: ``spark.sql.streaming.noDataMicroBatches.enabled``."""
    source_compact_interval: int = DEFAULT_INTERVAL
    """The compaction interval of a file source's log, in batches."""
    sink_compact_interval: int = DEFAULT_INTERVAL
    """The same for a file sink."""
    ignores_sink_log: bool = False
    """Whether file sources list a directory although it has the log of a file sink."""
    real_time_seconds: float | None = None
    """How long a batch of a real-time query lasts; None: it runs micro-batches."""
    watermarks: int = 0
    """How often the plan has a watermark."""
    single_watermark: bool = False
    """Whether a row is late by the batch's own watermark instead of the one before (``batch_log.batch_times``)."""


def check(facts: WriterFacts) -> None:
    """Refuse a writer that cannot be checkpointed or restored.

    Raises:
        WriterError: it sets its own checkpoint location, has no micro-batches or logs them late, reads what it cannot
            read again, or has an operator whose tasks cannot know their shards.
    """
    if facts.checkpoint_location is not None:
        raise _refused(
            "no option checkpointLocation",
            repr(facts.checkpoint_location),
            "remove the option: the coordinator gives the query a new directory after each restore",
        )
    if facts.trigger is Trigger.CONTINUOUS:
        raise _refused(
            "a trigger that runs batches, because barriers are placed between them",
            f"trigger({facts.trigger.value}=...)",
            "use processingTime, availableNow or once; realTime is as fast",
        )
    if facts.trigger is Trigger.REAL_TIME:
        _check_real_time(facts)
    if facts.async_progress:
        raise _refused(
            "a log entry for each batch before it runs, because a barrier is placed behind the newest one",
            "the option asyncProgressTrackingEnabled",
            "remove the option",
        )
    for source in facts.sources:
        _check_source(source)
    if facts.merged_operators:
        raise _refused(
            f"a shuffle between operator {facts.merged_operators[0]!r} and a union or coalesce, which renumber the "
            "partitions by which the operator's tasks know their shards",
            "none",
            "call .repartition(n) on the operator's output first",
        )


def check_duration(facts: WriterFacts, timeout: float) -> None:
    """Refuse real-time batches that outlast a checkpoint, which waits for the end of one.

    Args:
        facts: of the query.
        timeout: how many seconds a checkpoint may take.

    Raises:
        WriterError: they do.
    """
    if facts.real_time_seconds is not None and facts.real_time_seconds >= timeout:
        raise _refused(
            f"real-time batches of less than {timeout:g} s, the timeout of checkpoints, which wait for the end of one",
            f"batches of {facts.real_time_seconds:g} s",
            "give trigger(realTime=...) a shorter time, or CheckpointConfig a longer timeout",
        )


def _check_real_time(facts: WriterFacts) -> None:
    """Refuse what needs micro-batches."""
    if facts.operators:
        # Measured: 3 s in the median with a row at a time.
        raise _refused(
            f"a trigger that runs micro-batches for operator {facts.operators[0]!r}, because Spark hands rows "
            "to Python many at a time, which takes seconds in real-time mode",
            "trigger(realTime=...)",
            "use processingTime, or state of Spark's own in this query",
        )
    if facts.sink.format.lower() == "foreachbatch":
        raise _refused(
            "a sink that takes rows one by one, because a real-time batch is open for long",
            "trigger(realTime=...) and a sink that takes whole batches",
            "use Spark's sink for Kafka, or foreach; or use processingTime",
        )


def _check_source(source: SourceFacts) -> None:
    if source.clean_source is not None:
        raise _refused(
            f"cleanSource to be off for {source.name}, because a restore reads again what came after the checkpoint",
            repr(source.clean_source),
            "remove the option, and delete files that are older than the oldest checkpoint by other means",
        )
    if not source.replayable:
        raise _refused(
            "sources that can be read again from an offset",
            repr(source.name),
            "write what it sends to files or Kafka first, and read those",
        )


def _refused(expected: str, found: str, advice: str) -> WriterError:
    return WriterError("the query cannot be checkpointed", expected, found, advice)
