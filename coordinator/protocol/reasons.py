"""Why a request for a checkpoint was rejected, or why a checkpoint failed."""

from __future__ import annotations

import enum
from typing import Self


class Reason(enum.StrEnum):
    """Why there is no checkpoint. The names are Flink's where Flink has the case.

    A failure of the checkpoint itself counts against the tolerable number of failures. A policy that rejected the
    request and the end of the pipeline do not count.
    """

    counted: bool
    """Whether the failure counts against the tolerable number."""
    meaning: str
    """What happened and what to do, as a sentence without its full stop."""

    def __new__(cls, name: str, counted: bool, meaning: str) -> Self:
        """Make a member whose value is its name, so that it reads the same in logs and in JSON."""
        member = str.__new__(cls, name)
        member._value_ = name
        member.counted = counted
        member.meaning = meaning
        return member

    COORDINATOR_SHUTDOWN = (
        "COORDINATOR_SHUTDOWN",
        False,
        "the coordinator has stopped; start a new one on the pipeline",
    )
    COORDINATOR_SUSPENDED = (
        "COORDINATOR_SUSPENDED",
        False,
        "the pipeline has failed for good; mend what its error says, and start it again",
    )
    TOO_MANY_REQUESTS = (
        "TOO_MANY_REQUESTS",
        False,
        "too many requests are waiting; ask again later",
    )
    NOT_ALL_REQUIRED_TASKS_RUNNING = (
        "NOT_ALL_REQUIRED_TASKS_RUNNING",
        False,
        "not every query of the pipeline is running; ask again once all are",
    )
    TRIGGER_CHECKPOINT_FAILURE = (
        "TRIGGER_CHECKPOINT_FAILURE",
        True,
        "the checkpoint could not be triggered",
    )
    IO_EXCEPTION = (
        "IO_EXCEPTION",
        True,
        "reading or writing the storage failed; check that it can be reached and written",
    )
    DECLINED = (
        "DECLINED",
        True,
        "a state host could not take or upload its snapshot",
    )
    EXPIRED = (
        "EXPIRED",
        True,
        "the checkpoint did not complete in time; see the statistics for its slowest part, or raise the timeout",
    )
    SUBSUMED = (
        "SUBSUMED",
        False,
        "a newer checkpoint completed first; use that one",
    )
    FINALIZE_CHECKPOINT_FAILURE = (
        "FINALIZE_CHECKPOINT_FAILURE",
        True,
        "every participant acknowledged, but the manifest could not be written",
    )
    OBJECTS_DROPPED = (
        "OBJECTS_DROPPED",
        False,
        "it shares objects with an older checkpoint that retention was deleting; the next checkpoint stores its own",
    )
    JOB_FAILOVER = (
        "JOB_FAILOVER",
        False,
        "the pipeline failed and restarts; ask again once it runs",
    )
    FENCED = (
        "FENCED",
        False,
        "another coordinator has taken the pipeline over; this one can complete no more checkpoints",
    )
