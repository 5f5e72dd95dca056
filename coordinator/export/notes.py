"""What the user of an exported query must know, found out without changing anything."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path

from ...storage.checkpoints.manifest import QueryRecord
from ..sinks import file_sink_log
from .positions import SourcePosition

_NOWHERE = Path("/dev/null")
"""A directory that no output is below of."""


def output_of(log: Mapping[str, bytes]) -> Path | None:
    """Return the output directory that the log of a file sink is about; None if it names no file."""
    return file_sink_log.elsewhere(_NOWHERE, log.values())


def about_file_sink(batch: int, log: Mapping[str, bytes], kept: Path) -> list[str]:
    """Say whether plain Spark can go on in the output of a file sink.

    Args:
        batch: the query's last batch in the checkpoint.
        log: the output's log at the checkpoint.
        kept: where the export has it.
    """
    output = output_of(log)
    if output is None:
        return [
            f"Go on in its output directory if the newest entry of _spark_metadata there is {batch}. Spark would pass "
            f"over the batches of later entries; then put back the log from {kept}."
        ]
    newest = file_sink_log.newest(output)
    if newest == batch:
        return [
            f"Go on in its output {output}: the newest entry of _spark_metadata there is {batch}, as it must be. In "
            "another directory Spark's readers would not see what is here."
        ]
    if newest < 0:
        return [
            f"Its output {output} is not on this machine now. Go on in it if the newest entry of _spark_metadata there "
            f"is {batch}."
        ]
    if newest < batch:
        return [
            f"Its output {output} lacks what the checkpoint has: the newest entry of _spark_metadata there is "
            f"{newest}, and must be {batch}. Do not go on in it."
        ]
    return [
        f"Its output {output} is ahead of the checkpoint: the newest entry of _spark_metadata there is {newest}, and "
        f"must be {batch}. Spark would pass over batches {batch + 1} to {newest}. Either stop the pipeline by "
        "coordinator.stop() and export what that leaves, or replace the folder "
        f"{output / file_sink_log.LOG} by {kept}: Spark's readers then see no file of later batches, and their rows "
        "come again."
    ]


def about_output(query: QueryRecord) -> list[str]:
    """Say what becomes of the output of a query with transactional sinks."""
    return [
        f"Its transactional sink {output.sink!r} has published everything up to batch {query.batch}. Choose a sink of "
        "Spark for the rest, such as foreachBatch; its file sink takes no new directory for a query that has begun."
        for output in query.outputs
    ]


def about_other_sink(query: QueryRecord) -> list[str]:
    """Say what becomes of the output of a query with another sink of Spark's."""
    return [
        f"Its sink keeps no log that Chandy knows. If the query has written batches after {query.batch}, their rows "
        "come again."
    ]


def about_sources(seeded: Iterable[SourcePosition], others: Iterable[SourcePosition]) -> list[str]:
    """Say where the sources of a query without a checkpoint begin to read."""
    notes = [
        f"Source {position.plain_folder} is a file source. It takes the files that the checkpoint has not read: this "
        "checkpoint directory names those that it has."
        for position in seeded
    ]
    for position in others:
        if position.topics:
            notes.append(
                f"Source {position.plain_folder} is Kafka. Give it this option, and it begins where the checkpoint is: "
                f"startingOffsets = {position.offset}"
            )
        else:
            notes.append(
                f"Source {position.plain_folder} must begin behind the offset {position.offset}. Spark has no way "
                "to be told so; use an option of the source if it has one."
            )
    return notes


def about_beginning(query: QueryRecord, has_file_sink: bool, has_native_state: bool) -> list[str]:
    """Say what a query loses if it begins without a checkpoint."""
    notes = [
        "Its watermark starts over: rows that were late are not late until the first batches have passed."
    ]
    if has_file_sink:
        notes.append(
            "Give it a new output directory: in the old one Spark would pass over its batches, whose numbers are "
            "there already."
        )
    if has_native_state:
        notes.append(
            "LOST: it also has state of Spark's own operators (aggregations, deduplication, joins). Plain Spark cannot "
            "take it along with an initial state, and it is not in this export."
        )
    return notes
