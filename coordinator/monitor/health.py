"""Whether a pipeline does its work: the reasons why not, in words."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from ..durations import text
from ..protocol.life import LifePhase, QueryPhase
from .facts import Facts, QueryFacts

_INTERVALS: Final = 10
"""How many intervals may pass without a completed checkpoint."""
_LEAST_SECONDS: Final = 60.0
"""How long a checkpoint may take to come in any case."""
_NOT_WELL: Final = {
    LifePhase.RECOVERING: "goes back to a checkpoint",
    LifePhase.STOPPING: "is being stopped",
    LifePhase.STOPPED: "has been stopped",
    LifePhase.FAILED: "has failed for good",
    LifePhase.FENCED: "was taken over by another driver",
}


def said(query: QueryFacts, now: float) -> str:
    """Return what a query does, without the reason.

    Args:
        now: seconds since 1970.
    """
    if query.life is None:
        return "stored"
    if query.life not in (QueryPhase.WAITING, QueryPhase.RESTARTING):
        return query.life.value
    said = "restarts" if query.attempts < 2 else f"restarts, attempt {query.attempts}"
    if query.next_attempt_at is None:
        return said
    return f"{said}, in {text(max(0, round(query.next_attempt_at - now)))}"


def troubles(facts: Facts | None) -> Iterator[str]:
    """Yield why a pipeline is not ready; nothing if it is.

    Args:
        facts: what is known of it; None if the driver has not taken it over yet.
    """
    if facts is None:
        yield "the driver stands by, or takes the pipeline over"
        return
    if facts.life is None:
        yield facts.because or "no driver was asked: this is what the storage has"
        return
    if facts.life in _NOT_WELL:
        yield f"the pipeline {_NOT_WELL[facts.life]}{facts.because and ': '}{facts.because}"
    if not facts.queries:
        yield "no query has been started"
    for name, query in facts.queries.items():
        if query.life is not QueryPhase.RUNNING:
            yield f"query {name!r} {said(query, facts.now)}{query.because and ': '}{query.because}"
    if facts.longest_interval is not None:
        bound = max(_INTERVALS * facts.longest_interval, _LEAST_SECONDS)
        age = facts.now - max(facts.began, facts.last_completed_at or facts.began)
        if age > bound:
            yield f"no checkpoint has completed for {age:.0f} s, more than {bound:.0f} s"
