"""Every other sink: Spark calls it again with the batches after the checkpoint, so rows can come twice."""

from __future__ import annotations

from typing import Final

import attrs

from .guarantee import Guarantee, Level
from .sink import Sink

_AGAIN: Final = "a restore runs the batches after the checkpoint again"

_REASONS: Final = {
    "foreachbatch": f"{_AGAIN}, and calls the foreachBatch function with them a second time; to write once, "
    "make it idempotent by something in the rows, as batch numbers repeat with other content",
    "foreach": f"{_AGAIN}, and calls the foreach writer with their rows a second time",
    "console": f"{_AGAIN}, and prints their rows a second time",
    "kafka": f"{_AGAIN}, and Spark's Kafka sink does not write in transactions",
    "memory": "the result is held by this process alone and is computed again when the query starts again",
    "noop": "nothing is written",
}


@attrs.frozen
class AtLeastOnceSink(Sink):
    """A sink of which a checkpoint keeps nothing, and which stays as it is when the query goes back."""

    format: str

    @property
    def guarantee(self) -> Guarantee:
        """At least once, for a reason that depends on the format."""
        because = _REASONS.get(
            self.format.lower(), f"{_AGAIN}, and nothing is known of how {self.format} takes them"
        )
        return Guarantee(Level.AT_LEAST_ONCE, because)
