"""Makes the transactional sinks of a pipeline's queries."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..protocol.events import Published
from ..sinks.two_phase.contract import Fence
from ..sinks.two_phase.query_sink import TransactionalSink
from ..sinks.two_phase.sink_set import check_together, sinks_of
from .assembly import Assembly

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


def transactional_sink(parts: Assembly, query: str, given: object, rows: DataFrame) -> TransactionalSink:
    """Make what writes the output of a query.

    Args:
        parts: the pipeline.
        query: the query's name.
        given: one sink or several.
        rows: what it takes.

    Raises:
        WriterError: there is something else, or the sinks do not go together.
    """
    config, pipeline, protocol = parts.ground.driver.config, parts.pipeline, parts.executor.protocol
    check_together(sinks := sinks_of(given))
    return TransactionalSink(
        [sink.for_rows(rows) for sink in sinks],
        Fence(pipeline.name, query, "", pipeline.catalog.store.uri, pipeline.generation.generation),
        pipeline.watch.proof,
        max_unpublished=config.limits.max_unpublished,
        permits=pipeline.permits,
        first_epoch=pipeline.generation.next_id,
        on_published=lambda checkpoint: protocol.handle(Published(checkpoint, query)),
        on_failure=parts.supervisor.output_failed,
        takes_digests=lambda: parts.recording.is_on,
    )
