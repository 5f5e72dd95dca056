"""What a query promises about its output when it goes back to a checkpoint; state is exactly once always."""

from __future__ import annotations

import enum
from typing import TYPE_CHECKING

import attrs

if TYPE_CHECKING:
    from ..spark.writer_facts import WriterFacts


class Level(enum.StrEnum):
    """How often a row's effect can be seen in the output after a restore."""

    EXACTLY_ONCE = "exactly once"
    AT_LEAST_ONCE = "at least once"


@attrs.frozen
class Guarantee:
    """The promise about a query's output, and the reason for it."""

    level: Level
    because: str

    def __str__(self) -> str:
        return f"{self.level}: {self.because}"


_AGAIN = "a restore runs the batches after the checkpoint again"

_REASONS = {
    "foreachbatch": f"{_AGAIN}, and calls the foreachBatch function with them a second time; to write once, "
    "make it idempotent by something in the rows, as batch numbers repeat with other content",
    "foreach": f"{_AGAIN}, and calls the foreach writer with their rows a second time",
    "console": f"{_AGAIN}, and prints their rows a second time",
    "kafka": f"{_AGAIN}, and Spark's Kafka sink does not write in transactions",
    "memory": "the result is held by this process alone and is computed anew when the query starts again",
    "noop": "nothing is written",
}


def guarantee(facts: WriterFacts) -> Guarantee:
    """Return what a query's output promises.

    Spark's file sink, by path or as a table of a file format, is exactly once for those who read it through
    Spark: the log of its batches in the output directory goes back together with the query.
    """
    sink = facts.sink
    if sink.file_format:
        return Guarantee(
            Level.EXACTLY_ONCE,
            f"the log of the {sink.format} sink goes back with the query, and files of batches after the "
            "checkpoint are set aside",
        )
    because = _REASONS.get(
        sink.format.lower(), f"{_AGAIN}, and nothing is known of how {sink.format} takes them"
    )
    return Guarantee(Level.AT_LEAST_ONCE, because)
