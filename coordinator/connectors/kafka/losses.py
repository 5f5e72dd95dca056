"""Whether Kafka still has what a query goes on with: offsets of Spark's log beside those of the cluster. Pure."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Final

import attrs

from ...sources.errors import LostOffsets, SourceLostError, listed

TopicPartition = tuple[str, int]
"""A topic and one of its partitions."""
Offsets = Mapping[TopicPartition, int]
"""The next offset to be read, by partition."""
_NAMED: Final = 3
"""Partitions that a message names."""


@attrs.frozen
class Range:
    """What a partition has."""

    earliest: int
    """Its first offset that is still there."""
    end: int
    """The offset after its last one."""


def offsets_of(logged: str) -> dict[TopicPartition, int]:
    """Return the offsets that Spark's log has of a Kafka source, such as ``{"flights":{"0":5}}``.

    Raises:
        ValueError: they are not written so.
    """
    topics = json.loads(logged)
    try:
        return {
            (topic, int(partition)): int(offset)
            for topic, partitions in topics.items()
            for partition, offset in partitions.items()
        }
    except (AttributeError, TypeError) as error:
        raise ValueError(f"{logged} are no offsets of Kafka") from error


def losses(
    needed: Offsets, found: Mapping[TopicPartition, Range], *, all_partitions: bool
) -> tuple[LostOffsets, ...]:
    """Return what is needed and not there any more, by topic and partition.

    Args:
        needed: where a query goes on.
        found: what the partitions of these topics have.
        all_partitions: whether the query reads partitions that have come since, which it reads from their beginning.
    """
    wanted = dict(needed)
    if all_partitions:
        wanted |= {place: 0 for place in found if place not in needed}
    return tuple(
        _loss(place, offset, found.get(place))
        for place, offset in sorted(wanted.items())
        if not _has(found.get(place), offset)
    )


def _has(range_: Range | None, offset: int) -> bool:
    return range_ is not None and range_.earliest <= offset <= range_.end


def _loss(place: TopicPartition, needed: int, range_: Range | None) -> LostOffsets:
    topic, partition = place
    part = f"partition {partition} of topic {topic!r}"
    if range_ is None:
        return LostOffsets(part, needed, None, None)
    return LostOffsets(part, needed, range_.earliest, range_.end)


def lost(query: str, cluster: str, found: tuple[LostOffsets, ...]) -> SourceLostError:
    """Return the error for losses, at least one.

    Args:
        query: the query that cannot go on.
        cluster: the cluster, for messages.
        found: the losses.
    """
    return SourceLostError(
        f"query {query!r} cannot go on where it stood, because {cluster} no longer has what comes next",
        listed(f"offset {one.needed} in {one.part}" for one in found),
        listed(map(_found, found)),
        _advice(found),
        found,
    )


def _found(loss: LostOffsets) -> str:
    if loss.earliest is None or loss.end is None:
        return "no such partition"
    if loss.needed > loss.end:
        return f"offsets {loss.earliest} to {loss.end}, so the topic was deleted and recreated, or has lost its end"
    if loss.earliest == loss.end:
        return f"nothing before {loss.end}: all of it was deleted, most likely by retention"
    last = loss.earliest - 1
    return f"{loss.earliest} as the earliest: {loss.needed} to {last} were deleted, most likely by retention"


def _advice(found: tuple[LostOffsets, ...]) -> str:
    if any(one.earliest is None or one.needed > (one.end or 0) for one in found):
        begin = (
            "if the topic was recreated on purpose, start over with the coordinator's restore='none', "
            "or with other names of pipeline and query"
        )
    else:
        begin = (
            "restore a newer checkpoint or a savepoint that stands behind what was deleted, if there is one "
            "(`chandy show` tells offsets); or start over with restore='none'"
        )
    return (
        f"{begin}; or put the records back; or have the reader's option failOnDataLoss be false, and go on without "
        "them: they are counted nowhere. Keep retention longer than a pipeline may be down"
    )
