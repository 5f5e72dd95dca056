"""Bugs in who leads a pipeline."""

from __future__ import annotations

from typing import Final

from .bug import LEADERS, tests, text

LEADERSHIP: Final = (
    text(
        "a lease is trusted for ever",
        "coordinator.leadership.lease:HeldLease.hold",
        """if self._has_run_out(self._clock()):
        with""",
        """if False:
        with""",
        by=LEADERS,
        seed=47,
    ),
    text(
        "a renewal has the number of the one before",
        "coordinator.leadership.lease:HeldLease._write",
        "self._lease.renewals + 1",
        "self._lease.renewals",
        by=LEADERS,
        seed=8,
    ),
    text(
        "a leader that is silent is waited for, for ever",
        "coordinator.leadership.election:Election._may_take_over",
        "return lease is not None and silent >= lease.seconds",
        "return False",
        by=LEADERS,
        seed=16,
    ),
    text(
        "a driver that has died between its claim and its record is waited for, for ever",
        "coordinator.leadership.election:Election._may_take_over",
        "return silent >= (self.patience if lease is None else lease.seconds)",
        "return False",
        by=LEADERS,
        seed=8,
    ),
    text(
        "a standby undoes a stop",
        "coordinator.leadership.election:Election._may_take_over",
        "lease.stopped and self.has_waited",
        "False",
        by=LEADERS,
        seed=18,
    ),
    text(
        "whoever came after a stop has waited, too",
        "coordinator.leadership.election:Election.decide",
        "if seen.lease is None or not seen.lease.stopped:",
        "if True:",
        by=LEADERS,
        seed=70,
    ),
    text(
        "the JVM of a frozen driver goes on",
        "coordinator.leadership.leadership:_end_java",
        "if not java.kill():",
        "if False:",
        by=LEADERS,
        seed=112,
    ),
    text(
        "a driver is dead although its JVM lives",
        "coordinator.leadership.leadership:_sign",
        "python.lives or java.lives",
        "python.lives",
        by=LEADERS,
        seed=4,
    ),
    text(
        "a look from before a gap in the lease counts",
        "coordinator.execution.successor_watch:SuccessorWatch.check",
        "self._looked_at < held_since or ",
        "",
        by=LEADERS,
        seed=55,
    ),
    text(
        "a driver steps down before its queries have ended",
        "coordinator.leadership.leadership:Leadership.step_down_after",
        "if ended(_END_SECONDS):",
        "if ended(_END_SECONDS) or True:",
        by=LEADERS,
        seed=206,
    ),
    text(
        "a driver that has offered follows whoever claims",
        "coordinator.leadership.offering:Offering._is_of",
        "claim is not None and claim.nonce == request.nonce",
        "True",
        by=tests("tests/coordinator/test_leading_on.py"),
    ),
    text(
        "a standby claims whatever has been claimed since",
        "storage.checkpoints.catalog:Catalog.claim_after",
        "return None",
        "pass",
        by=LEADERS,
        seed=10,
    ),
)
