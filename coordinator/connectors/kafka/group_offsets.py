"""Publishes how far a query has come as the offsets of a consumer group, where tools look that show lag.

A consumer that belongs to no group commits them. The admin client could do it, too, but librdkafka 2.16 ends the whole
process by an assertion if a broker answers one of its requests about a group's offsets after that has timed out.
"""

from __future__ import annotations

import time
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, Final

import attrs

from ....storage.errors import ChandyError, RefusedError
from ....storage.logs import logger
from ...sources.background import Newest
from .cluster import Cluster, Heard, library
from .errors import ClientFailure, described
from .losses import Offsets

if TYPE_CHECKING:
    from confluent_kafka import Consumer

log = logger(__name__)

_HAS_MEMBERS: Final = ("UNKNOWN_MEMBER_ID", "NON_EMPTY_GROUP", "REBALANCE_IN_PROGRESS", "ILLEGAL_GENERATION")
"""How the broker refuses offsets of a group whose members commit their own."""
_TURN: Final = 0.02
"""Seconds for which an answer is waited for at a time."""


@attrs.frozen
class _Answer:
    """What became of a commit."""

    refusal: str | None
    """Why the broker refuses it, or some of it."""


class GroupOffsets:
    """Publishes on a thread of its own the newest offsets that it is given; those in between are left out.

    What cannot be published is logged once. Nobody waits for it but ``close``.
    """

    def __init__(self, cluster: Cluster, group: str) -> None:
        """Make a publisher that has not connected.

        Args:
            cluster: where to.
            group: the group. It has no members, because Spark's consumers belong to none.
        """
        self._cluster = cluster
        self._group = group
        self._heard = Heard()
        self._consumer: Consumer | None = None
        self._answer: _Answer | None = _Answer(None)
        """What became of the latest commit; None if it is not known yet."""
        self._has_failed = False
        self._newest = Newest("chandy-group-offsets", self._publish)

    def publish(self, offsets: Offsets) -> None:
        """Publish offsets some time soon, instead of those that are not published yet."""
        self._newest.give(offsets)

    def close(self, seconds: float) -> None:
        """Publish the latest offsets within ``seconds``, then stop."""
        self._newest.close(seconds)

    def _publish(self, offsets: Offsets) -> None:
        try:
            self._tell(self._refusal(offsets))
        except Exception as error:  # noqa: BLE001 (nothing about it may end the thread, nor the pipeline)
            self._tell(_reason(error))

    def _refusal(self, offsets: Offsets) -> str | None:
        """Publish offsets; return why they are not published, None if they are.

        Raises:
            Exception: the client cannot be used.
        """
        kafka = library()
        if self._consumer is None:
            self._consumer = self._cluster.observer(self._heard, self._group, self._committed)
        places = [kafka.TopicPartition(*place, offset) for place, offset in sorted(offsets.items())]
        # One at a time: the client keeps for a broker that is away whatever it is given.
        if self._await_answer() is not None:
            self._consumer.commit(offsets=places, asynchronous=True)
            # The answer comes while this thread polls.
            self._answer = None
            if (answer := self._await_answer()) is not None:
                return answer.refusal
        return f"the broker does not answer{self._heard.reason}"

    def _await_answer(self) -> _Answer | None:
        """Wait for what became of the latest commit; None if it is not known in time."""
        assert self._consumer is not None
        deadline = time.monotonic() + self._cluster.timeout
        while self._answer is None and time.monotonic() < deadline and not self._newest.is_closing:
            self._consumer.poll(_TURN)
        return self._answer

    def _committed(self, error: ClientFailure | None, places: Iterable[Any]) -> None:
        # Each partition has an error of its own, of which the first argument need not tell.
        failures = [error, *(place.error for place in places)]
        failure = next((one for one in failures if one is not None), None)
        self._answer = _Answer(None if failure is None else _described(failure))

    def _tell(self, refusal: str | None) -> None:
        """Log the first of several failures in a row, and the end of them."""
        had_failed, self._has_failed = self._has_failed, refusal is not None
        if refusal is not None and not had_failed:
            log.warning(
                "the offsets of a completed checkpoint cannot be published for lag tools; checkpoints go on",
                group=self._group,
                kafka=self._cluster.servers,
                error=refusal,
            )
        elif refusal is None and had_failed:
            log.info("offsets are published again", group=self._group, kafka=self._cluster.servers)


def _described(failure: ClientFailure) -> str:
    if failure.name() in _HAS_MEMBERS:
        return (
            f"the group has members, so it is another program's; name one for this query alone by the reader's "
            f"option chandy.group.id ({failure.name()})"
        )
    return described(failure)


def _reason(error: Exception) -> str:
    if isinstance(error, RefusedError):
        return error.found
    return str(error) if isinstance(error, ChandyError) else f"{type(error).__name__}: {error}"
