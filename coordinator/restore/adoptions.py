"""The queries of a pipeline that were adopted from plain Spark, and where they begin until a checkpoint has them."""

from __future__ import annotations

import attrs

from .restore_point import RestorePoint


@attrs.define
class Adoptions:
    """Where adopted queries begin, by query. A query is added before it starts, and stays."""

    _points: dict[str, RestorePoint] = attrs.field(factory=dict)

    def add(self, query: str, point: RestorePoint) -> None:
        """Record where an adopted query begins."""
        self._points[query] = point

    def base(self, query: str, point: RestorePoint | None) -> RestorePoint | None:
        """Return what a query's state grows from.

        Args:
            point: the checkpoint that the pipeline's state grows from.

        Returns:
            The checkpoint, if it has the query. Otherwise where the query was adopted; the checkpoint, if it was not.
        """
        if point is not None and point.has(query):
            return point
        return self._points.get(query, point)

    def name(self, query: str) -> str:
        """Return a name that identifies what was adopted for a query; "" if it was not adopted."""
        found = self._points.get(query)
        return "" if found is None else f"{found.root}#{found.manifest.triggered_at}"
