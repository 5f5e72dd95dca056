"""Requests for checkpoints: the order in which they wait, and whether the first of them may start."""

from __future__ import annotations

import bisect
from collections.abc import Iterator

import attrs

from ...storage.checkpoints.manifest import CheckpointKind


@attrs.frozen
class Request:
    """A request for a checkpoint."""

    number: int
    """Unique in the coordinator's life; later requests have higher numbers."""
    kind: CheckpointKind
    created_at: float
    """Seconds since 1970."""
    target: str | None = None
    """URI to write the checkpoint to; None: the pipeline's own store."""
    is_final: bool = False
    """Whether a stop waits for it. Nothing restarts meanwhile, so it does not wait for the pipeline to go back."""

    for_moves: bool = False
    """Whether it is for shards that are to leave their hosts. Its failure does not count."""

    @property
    def is_periodic(self) -> bool:
        """Whether the schedule made it, not a user."""
        return self.kind is CheckpointKind.PERIODIC

    @property
    def is_savepoint(self) -> bool:
        """Whether it asks for a savepoint."""
        return self.kind is CheckpointKind.SAVEPOINT

    @property
    def urgency(self) -> tuple[bool, bool, float]:
        """The sort key of requests, the most urgent first: savepoint, a user's, periodic; then by age."""
        return not self.is_savepoint, self.is_periodic, self.created_at


@attrs.define
class RequestQueue:
    """The requests that wait, the most urgent first. Equally urgent ones wait in the order in which they came."""

    limit: int
    """How many may wait."""
    _waiting: list[Request] = attrs.field(factory=list, init=False)

    def admit(self, request: Request) -> Request | None:
        """Add a request.

        Returns:
            The request that must fail because the queue is full; None if all can wait. It is the least urgent one,
            but a user's request that waits already never gives way to a new one.
        """
        if len(self._waiting) >= self.limit and not any(one.is_periodic for one in self._waiting):
            return request
        bisect.insort_right(self._waiting, request, key=lambda one: one.urgency)
        return self._waiting.pop() if len(self._waiting) > self.limit else None

    def remove(self, request: Request) -> None:
        """Take out a request that waits.

        Raises:
            ValueError: it does not wait.
        """
        self._waiting.remove(request)

    def clear(self) -> tuple[Request, ...]:
        """Take out all requests, and return them."""
        waiting, self._waiting = tuple(self._waiting), []
        return waiting

    def count(self, kind: CheckpointKind) -> int:
        """How many requests of this kind wait."""
        return sum(request.kind is kind for request in self._waiting)

    def holds(self, kind: CheckpointKind) -> bool:
        """Whether a request of this kind waits."""
        return self.count(kind) > 0

    @property
    def first(self) -> Request | None:
        """The most urgent request; None if none waits."""
        return self._waiting[0] if self._waiting else None

    def __len__(self) -> int:
        return len(self._waiting)

    def __iter__(self) -> Iterator[Request]:
        return iter(tuple(self._waiting))


def startable(
    queue: RequestQueue,
    *,
    pending: int,
    max_concurrent: int,
    triggering: bool,
    deletions_waiting: int,
    is_output_full: bool = False,
) -> Request | None:
    """Return the most urgent request if its checkpoint may begin; None: wait until something has changed.

    The rules are Flink's (CheckpointRequestDecider). The caller takes the request out of the queue and asks again. It
    also asks again whenever a checkpoint has ended or a deletion is done: the decision keeps no state that could get
    stuck.

    * One checkpoint is triggered at a time.
    * No checkpoint starts while more dropped checkpoints wait to be deleted than may be pending. Otherwise the store
      fills up.
    * No checkpoint starts while the output of as many as may wait is still to be published, because the queries have
      paused. That of a stop does: its queries have stopped.
    * A request waits for a free place. So does a savepoint, but it is the first in the queue.

    Args:
        queue: the requests that wait; it is not changed.
        pending: how many pending checkpoints take a place.
        max_concurrent: how many places there are.
        triggering: whether a checkpoint is being planned.
        deletions_waiting: how many dropped checkpoints are not deleted yet.
        is_output_full: whether no more output may wait to be published.
    """
    request = queue.first
    if request is None or triggering or (is_output_full and not request.is_final):
        return None
    if deletions_waiting > max_concurrent or pending >= max_concurrent:
        return None
    return request
