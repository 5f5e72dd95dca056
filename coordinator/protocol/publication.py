"""The completed checkpoints whose output transactional sinks are publishing."""

from __future__ import annotations

import attrs

from ...storage.checkpoints.manifest import Manifest
from ...storage.ids import CheckpointId
from .requests import Request


@attrs.define
class Publication:
    """A completed checkpoint whose output is being published."""

    manifest: Manifest
    queries: set[str]
    """The queries whose sinks have not published all of it."""
    deadline: float
    """When its request is answered all the same."""
    request: Request | None
    """The request that waits for it."""

    def take_request(self) -> Request | None:
        """Return the request that waits, to be answered now; None if it is answered, or there was none."""
        request, self.request = self.request, None
        return request


@attrs.define
class Publications:
    """The publications of a pipeline that are under way."""

    limit: int
    """How many checkpoints may wait for the targets of sinks."""
    under_way: dict[CheckpointId, Publication] = attrs.field(factory=dict, init=False)

    @property
    def are_full(self) -> bool:
        """Whether as many checkpoints as may wait have output that is not published."""
        return len(self.under_way) >= self.limit

    def begin(
        self, manifest: Manifest, queries: set[str], deadline: float, request: Request | None
    ) -> Publication:
        """Wait until the sinks of all queries have published what a checkpoint has."""
        publication = self.under_way[manifest.id] = Publication(manifest, queries, deadline, request)
        return publication

    def published(self, checkpoint: CheckpointId, query: str) -> Publication | None:
        """Record what one query's sinks have published; return the publication if it has ended with that."""
        publication = self.under_way.get(checkpoint)
        if publication is None or query not in publication.queries:
            return None
        publication.queries.discard(query)
        return None if publication.queries else self.under_way.pop(checkpoint)

    def removed(self, query: str) -> list[Publication]:
        """Expect nothing more of a query that is gone; return the publications that have ended with that."""
        ended = [self.published(checkpoint, query) for checkpoint in list(self.under_way)]
        return [one for one in ended if one is not None]

    def overdue(self, now: float) -> list[Publication]:
        """Return the publications whose requests wait no longer."""
        return [one for one in self.under_way.values() if now >= one.deadline]

    def deadlines(self) -> list[float]:
        """Return when requests wait no longer."""
        return [one.deadline for one in self.under_way.values() if one.request is not None]
