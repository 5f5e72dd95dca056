"""What a DataStreamWriter would start, as plain values, and whether that can be checkpointed at all."""

from __future__ import annotations

import enum

import attrs

from ..errors import (
    AsyncProgressError,
    CheckpointLocationError,
    CleanSourceError,
    MergedOperatorError,
    UnreplayableSourceError,
    UnsupportedTriggerError,
)


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
    """Its format, or its class where it has no short name."""
    replayable: bool
    """Whether it gives the same records again for the same offsets, in another process too."""
    clean_source: str | None = None
    """The option ``cleanSource`` of a file source, in lower case; None if it is off."""


@attrs.frozen
class SinkFacts:
    """Where a query writes."""

    format: str
    path: str | None = None
    table: str | None = None
    """The table of ``toTable``."""
    file_format: bool = False
    """Whether Spark's own file sink writes it, which keeps a log of its batches in the output directory."""

    @property
    def foreach_batch(self) -> bool:
        """Whether a user's function takes each batch."""
        return self.format.lower() == "foreachbatch"


@attrs.frozen
class WriterFacts:
    """A query that has not been started."""

    sink: SinkFacts
    output_mode: str
    trigger: Trigger
    checkpoint_location: str | None = None
    """The writer's own option; what the session sets as a default does not count, an option goes first."""
    query_name: str | None = None
    async_progress: bool = False
    """Whether the query writes its logs behind its batches, and not for each."""
    operators: tuple[str, ...] = ()
    """Uids of the Chandy operators in the plan, each once, in plan order."""
    merged_operators: tuple[str, ...] = ()
    """Those of them below a union or a coalesce without a shuffle in between."""
    native_state: bool = False
    """Whether Spark keeps state of its own for the query: an aggregate, a join of streams, duplicates, ..."""
    state_provider: str = ""
    """Class of the state store provider for that state."""
    sources: tuple[SourceFacts, ...] = ()
    no_data_batches: bool = True
    """Whether Spark may run a batch without data: ``spark.sql.streaming.noDataMicroBatches.enabled``."""
    single_watermark: bool = False
    """Whether Spark takes for late what lies before a batch's own watermark, as in ``batch_log.batch_times``."""


def check(facts: WriterFacts) -> None:
    """Refuse what could not be checkpointed or restored.

    Raises:
        CheckpointLocationError: the writer sets ``checkpointLocation``.
        UnsupportedTriggerError: continuous or real-time processing has no micro-batches.
        AsyncProgressError: the logs do not tell which batch is the newest.
        CleanSourceError: a file source removes what it has read.
        UnreplayableSourceError: a source cannot be read again.
        MergedOperatorError: an operator's tasks could not tell which shards are theirs.
    """
    if facts.checkpoint_location is not None:
        raise CheckpointLocationError(facts.checkpoint_location)
    if facts.trigger in (Trigger.CONTINUOUS, Trigger.REAL_TIME):
        raise UnsupportedTriggerError(facts.trigger.value)
    if facts.async_progress:
        raise AsyncProgressError()
    for source in facts.sources:
        if source.clean_source is not None:
            raise CleanSourceError(source.name, source.clean_source)
        if not source.replayable:
            raise UnreplayableSourceError(source.name)
    if facts.merged_operators:
        raise MergedOperatorError(facts.merged_operators[0])
