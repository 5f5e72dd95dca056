"""Requests for checkpoints: the order they wait in, and whether the first of them may start."""

from __future__ import annotations

import bisect
import enum
from collections.abc import Iterator

import attrs

from ...storage.manifest import CheckpointKind
from .reasons import Reason


@attrs.frozen(eq=False)
class Request:
    """Somebody's wish for a checkpoint. Each is its own: two that say the same are two."""

    kind: CheckpointKind
    forced: bool
    """Whether it may start although as many checkpoints as allowed are under way."""
    created_at: float
    """Seconds since 1970."""
    target: str | None = None
    """URI to write it to; None: the pipeline's own store."""

    @property
    def is_periodic(self) -> bool:
        """Whether the schedule made it, not a user."""
        return self.kind is CheckpointKind.PERIODIC

    @property
    def urgency(self) -> tuple[bool, bool, bool, float]:
        """What requests are sorted by, least first: savepoint, forced, by a user, periodic; then by age."""
        is_savepoint = self.kind is CheckpointKind.SAVEPOINT
        return not is_savepoint, not self.forced, self.is_periodic, self.created_at


@attrs.define
class RequestQueue:
    """Requests that wait, the most urgent first; those of one urgency in the order in which they came."""

    limit: int
    """How many may wait."""
    _waiting: list[Request] = attrs.field(factory=list, init=False)

    def admit(self, request: Request) -> Request | None:
        """Let a request wait.

        Returns:
            The request that must be failed because the queue is full: the least urgent one, but never a
            user's that waits already in favour of one that has just come; None where all can wait.
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
        """Take out all requests; returns them."""
        waiting, self._waiting = tuple(self._waiting), []
        return waiting

    def holds(self, kind: CheckpointKind) -> bool:
        """Whether a request of this kind waits."""
        return any(request.kind is kind for request in self._waiting)

    @property
    def first(self) -> Request | None:
        """The most urgent request; None if none waits."""
        return self._waiting[0] if self._waiting else None

    def __len__(self) -> int:
        return len(self._waiting)

    def __iter__(self) -> Iterator[Request]:
        return iter(tuple(self._waiting))


class Hold(enum.StrEnum):
    """What the first request waits for."""

    NOTHING_WAITS = "nothing waits"
    TRIGGERING = "another checkpoint is being triggered"
    DELETING = "old checkpoints wait to be deleted"
    NO_PLACE = "as many checkpoints as allowed are under way"


@attrs.frozen
class Start:
    """Take the request out of the queue and trigger its checkpoint."""

    request: Request


@attrs.frozen
class Drop:
    """Take the request out of the queue, refuse it, and let the schedule try again."""

    request: Request
    reason: Reason
    retry_at: float
    """When a periodic checkpoint may start."""


@attrs.frozen
class Wait:
    """Do nothing until something has changed."""

    hold: Hold


Decision = Start | Drop | Wait


def decide(
    queue: RequestQueue,
    now: float,
    *,
    pending: int,
    max_concurrent: int,
    triggering: bool,
    last_completed_at: float | None,
    min_pause: float,
    deletions_waiting: int,
) -> Decision:
    """Say what is to be done with the most urgent request. The rules are Flink's (CheckpointRequestDecider).

    Whoever carries out a Start or a Drop removes the request and asks again, and also asks again whenever a
    checkpoint ends in whatever way or a deletion is done: there is no state here that could be stuck.

    * One checkpoint is triggered at a time.
    * While more old checkpoints wait to be deleted than may be under way, none starts, or the store fills up.
    * A request waits for a place, a savepoint too, though as the first in the queue. A forced one does not.
    * The pause is for periodic checkpoints only, unless forced. It counts from the last completion, not from
      a failure: after a failure the state is the least protected.

    Args:
        queue: the requests that wait; left as it is.
        now: seconds since 1970.
        pending: checkpoints under way that take a place.
        max_concurrent: places.
        triggering: whether a checkpoint is being planned.
        last_completed_at: when a checkpoint last completed; None: never.
        min_pause: seconds from then to the next periodic one.
        deletions_waiting: dropped checkpoints that are not deleted yet.
    """
    request = queue.first
    if request is None:
        return Wait(Hold.NOTHING_WAITS)
    if triggering:
        return Wait(Hold.TRIGGERING)
    if deletions_waiting > max_concurrent:
        return Wait(Hold.DELETING)
    if request.forced:
        return Start(request)
    if pending >= max_concurrent:
        return Wait(Hold.NO_PLACE)
    if request.is_periodic and last_completed_at is not None and now < last_completed_at + min_pause:
        return Drop(request, Reason.MINIMUM_TIME, last_completed_at + min_pause)
    return Start(request)
