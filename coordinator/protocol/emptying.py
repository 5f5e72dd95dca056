"""Hosts and machines that are to have no shards: who has asked for it, when it is done, and the checkpoints it takes.

A move begins with a checkpoint. As long as a shard that is to leave waits for one, it is requested: after a pause, so
that a store in trouble is not asked again and again, and without counting against the failures that the pipeline
tolerates. Machines that are drained and executors that leave are the same in this.
"""

from __future__ import annotations

import math
from typing import Final

import attrs

from ...storage.checkpoints.manifest import CheckpointKind
from .admission import Admission, Load
from .errors import DrainError
from .placement import Placement
from .reasons import Reason
from .requests import Request
from .user_requests import RequestPhase, UserRequest

PAUSE_SECONDS: Final = 1.0
"""From the end of a checkpoint with which shards leave to the next one."""
RETRY_SECONDS: Final = 10.0
"""From a request for a checkpoint that has failed to the next one."""
_NAMED: Final = 3


@attrs.define
class Emptying:
    """Has shards leave where they are to leave, and ends the requests for it."""

    placement: Placement
    admission: Admission
    drains: list[tuple[str, UserRequest]] = attrs.field(factory=list, init=False)
    """The requests that are not over, each after the name of its machine."""
    _asked: Request | None = attrs.field(default=None, init=False)
    """The latest checkpoint that was requested."""

    # --- requests -------------------------------------------------------------------------------------------

    def drain(self, machine: str, seconds: float, now: float) -> UserRequest:
        """Have all shards leave a machine; return the request, which is refused if that is not possible."""
        request = UserRequest(f"drain machine {machine!r}", now + seconds)
        try:
            self.placement.drain(machine)
        except DrainError as error:
            request.enter(RequestPhase.REFUSED, error)
            return request
        request.enter(RequestPhase.ADMITTED)
        self.drains.append((machine, request))
        return request

    def end(self, now: float) -> None:
        """End the requests that are done, or whose time is up, and all of them with the pipeline.

        Shards not moved in time keep moving.
        """
        for machine, request in self.drains:
            if (closed := self.admission.life.why_over) is not None:
                request.enter(RequestPhase.CANCELLED, _cancelled(machine, closed))
            elif self.placement.is_empty(machine):
                request.enter(RequestPhase.DONE)
            elif now >= request.deadline:
                request.enter(RequestPhase.FAILED, self._not_in_time(machine))
            elif request.phase is RequestPhase.ADMITTED and self.placement.plans:
                request.enter(RequestPhase.UNDER_WAY)
        self.drains = [one for one in self.drains if not one[1].is_over]

    def _not_in_time(self, machine: str) -> DrainError:
        left = self.placement.shards_on(machine)
        names = [
            f"shard {one.shard.shard} of {one.shard.uid!r} {one.phase.value if one.phase else 'has no move yet'}"
            for one in left[:_NAMED]
        ]
        return DrainError(
            f"machine {machine!r} is not drained yet",
            "no shards there in time",
            f"{len(left)}: {', '.join(names)}" if left else "a pipeline that goes back to a checkpoint",
            "wait for longer; what has not moved goes on to do so",
        )

    # --- the checkpoints that it takes ----------------------------------------------------------------------

    def deadlines(self, load: Load) -> list[float]:
        """Return when something is due."""
        times = [request.deadline for _, request in self.drains]
        return times if (due := self._due_at(load)) is None else [*times, due]

    def request_what_is_due(self, now: float, load: Load) -> None:
        """Request a checkpoint if shards that are to leave wait for one."""
        due = self._due_at(load)
        if due is None or now < due:
            return
        self.placement.plan_moves()
        self._asked = self.admission.new_request(CheckpointKind.MANUAL, now, for_moves=True)
        self.admission.request(self._asked, load)

    def _due_at(self, load: Load) -> float | None:
        """Return when a checkpoint is to be requested; None: none is."""
        if not self.admission.life.takes_checkpoints or self._is_under_way(load):
            return None
        waits = any(one.waits_for_checkpoint for one in self.placement.shards_leaving())
        return self._not_before if waits else None

    @property
    def _not_before(self) -> float:
        """When the next one may be requested."""
        asked, completed = self._asked, self.admission.last_completed_at
        if asked is None:
            return -math.inf
        if completed is not None and completed >= asked.created_at:
            return completed + PAUSE_SECONDS
        return asked.created_at + RETRY_SECONDS

    def _is_under_way(self, load: Load) -> bool:
        under_way = [*self.admission.queue, *(one.request for one in load.pending)]
        return any(one.for_moves for one in under_way)


def _cancelled(machine: str, reason: Reason) -> DrainError:
    return DrainError(
        f"machine {machine!r} has not been drained",
        "a pipeline that runs",
        f"{reason.value}: {reason.meaning}",
        "ask again once it runs",
    )
