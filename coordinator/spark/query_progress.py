"""Reads the progress of a running query from its JVM: only what is new to the caller."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from ..state_progress import newest_batch

if TYPE_CHECKING:
    from pyspark.sql.streaming.query import StreamingQuery


def latest_progress(query: StreamingQuery) -> dict[str, Any] | None:
    """Return the newest progress of a query, as Spark's JSON has it; None if there is none."""
    latest: Any = query._jsq.lastProgress()
    return None if latest is None else json.loads(latest.json())


def waits_for_data(query: StreamingQuery) -> bool:
    """Return whether a query has looked at its sources, and found nothing new there."""
    return str(query.status["message"]).startswith("Waiting for")


def progress_after(query: StreamingQuery, run: str, batch: int) -> list[dict[str, Any]]:
    """Return the progress of a query that says more than is known, as Spark's JSON has it, oldest first.

    It is read from the newest one back, because each is a request to the JVM, and Spark keeps a hundred.

    Args:
        query: Spark's query.
        run: Spark's id of a run.
        batch: the newest batch of that run whose progress is known.
    """
    kept: Any = query._jsq.recentProgress()
    found: list[dict[str, Any]] = []
    for at in reversed(range(len(kept))):
        progress = json.loads(kept[at].json())
        if progress["runId"] == run and newest_batch(progress) <= batch:
            break
        found.append(progress)
    return found[::-1]
