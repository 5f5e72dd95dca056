"""When a standby driver takes a pipeline over: values and the rule, without I/O and without a clock.

No clock of another machine counts. A standby looks again and again at how often the leader has renewed its lease, and
measures by its own clock for how long that number has not grown.
"""

from __future__ import annotations

import enum

import attrs

from ...storage.checkpoints.fencing import LeaseRecord


class Leader(enum.Enum):
    """What is known of the driver of the newest generation."""

    NONE = "it writes into no sink: it has stepped down, or is only beginning"
    DEAD = "its processes have ended"
    THERE = "it lives, or nobody can tell"


class Decision(enum.Enum):
    """What a standby does."""

    TAKE_OVER = "claim the next generation"
    WAIT = "look again later"


@attrs.frozen
class Sighting:
    """What one look at the storage has shown."""

    generation: int
    """The newest one; 0 if there was none."""
    leader: Leader
    has_started: bool
    """Whether the generation has begun to write into the pipeline's sinks."""
    lease: LeaseRecord | None
    """The leader's lease; None if it keeps none."""
    began: float
    """When the look began, in seconds by the standby's own clock."""
    ended: float
    """When it ended. What was seen is from some moment between the two."""


@attrs.frozen
class Silence:
    """A leader that does not renew its lease."""

    generation: int
    lease: LeaseRecord | None
    since: float
    """When its last renewal had been seen, in seconds by the standby's own clock."""


_Sign = tuple[int, Leader, bool, LeaseRecord | None]


@attrs.define
class Election:
    """The decisions of one standby, look after look."""

    patience: float
    """Seconds to wait for a driver that has claimed a generation and not done anything since."""
    has_waited: bool = False
    """Whether there was a leader to wait for. One that was stopped on purpose before is none."""
    _last: _Sign | None = None
    _since: float = 0.0
    _seen: float = 0.0

    def decide(self, seen: Sighting) -> Decision:
        """Decide after a look that has succeeded."""
        if self._may_take_over(seen):
            return Decision.TAKE_OVER
        if seen.lease is None or not seen.lease.stopped:
            self.has_waited = True
        return Decision.WAIT

    def lost_sight(self) -> None:
        """Note that a look has failed: the leader may not reach the storage either, and be well."""
        self._last = None

    def has_lost(self) -> None:
        """Note that another standby has claimed the generation."""
        self.has_waited = True
        self._last = None

    @property
    def silence(self) -> Silence | None:
        """The silence because of which the standby takes over; None if it does so for another reason."""
        if self._last is None or self._last[1] is not Leader.THERE:
            return None
        return Silence(self._last[0], self._last[3], self._since)

    def _may_take_over(self, seen: Sighting) -> bool:
        silent = self._silent(seen)
        if seen.generation == 0:
            return True
        lease = seen.lease
        if lease is not None and lease.stopped and self.has_waited:
            # A user who starts the program again wants it to run. A driver that only waited does not undo the stop.
            return False
        match seen.leader:
            case Leader.DEAD:
                return True
            case Leader.NONE if seen.has_started:
                # Without a lease, it could not say whether it was stopped on purpose.
                return lease is not None or not self.has_waited
            case Leader.NONE:
                # It has died between its claim and its record, or is between them.
                return silent >= (self.patience if lease is None else lease.seconds)
            case Leader.THERE:
                return lease is not None and silent >= lease.seconds

    def _silent(self, seen: Sighting) -> float:
        """Return for how many seconds nothing has changed, at least."""
        sign = (seen.generation, seen.leader, seen.has_started, seen.lease)
        longest = (self.patience if seen.lease is None else seen.lease.seconds) / 2
        # After a long gap the storage may have been away meanwhile, for the leader as well.
        if sign != self._last or seen.began - self._seen > longest:
            self._last, self._since = sign, seen.ended
        self._seen = seen.ended
        return max(0.0, seen.began - self._since)
