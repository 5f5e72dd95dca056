"""Whether a pipeline does its work: the reasons why not, in words."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from .facts import DriverState, Facts

_INTERVALS: Final = 10
"""How many intervals may pass without a completed checkpoint."""
_LEAST_SECONDS: Final = 60.0
"""How long a checkpoint may take to come in any case."""


def troubles(facts: Facts | None) -> Iterator[str]:
    """Yield why a pipeline is not ready; nothing if it is.

    Args:
        facts: what is known of it; None if the driver has not taken it over yet.
    """
    if facts is None:
        yield "the driver stands by, or takes the pipeline over"
        return
    if facts.life is DriverState.STORED:
        yield facts.trouble or "no driver was asked: this is what the storage has"
        return
    if facts.life is DriverState.FAILED:
        yield f"the pipeline has failed for good: {facts.trouble}"
    if facts.life is DriverState.STOPPED:
        yield "the pipeline is being stopped"
    if not facts.queries:
        yield "no query has been started"
    for name, query in facts.queries.items():
        if not query.is_active:
            yield f"query {name!r} does not run"
    if facts.longest_interval is not None:
        bound = max(_INTERVALS * facts.longest_interval, _LEAST_SECONDS)
        age = facts.now - max(facts.began, facts.completed_at or facts.began)
        if age > bound:
            yield f"no checkpoint has completed for {age:.0f} s, more than {bound:.0f} s"
