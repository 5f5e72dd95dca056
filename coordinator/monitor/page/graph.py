"""The pipeline as a graph, as values: for each query a lane from its sources to its sinks."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Final

import attrs
from rich.filesize import decimal

from ....state.rpc.metrics import OperatorMetrics
from ....storage.checkpoints.manifest import ChannelRecord
from ...protocol.life import QueryPhase
from ..facts import Facts, QueryFacts
from ..health import said
from .texts import ago, many, rounded, seconds
from .words import look

_FAR: Final = 2.0
"""A largest shard that is so many times the average stands out."""


@attrs.frozen
class Badge:
    """A few words with a reason behind them."""

    text: str
    why: str


@attrs.frozen
class Box:
    """What rows go through: a source, a channel, an operator, a query or a sink."""

    kind: str
    name: str
    facts: tuple[str, ...] = ()
    badge: Badge | None = None
    stands_out: tuple[str, ...] = ()
    """Why it stands out among all boxes of the page."""


@attrs.frozen
class Lane:
    """A query, with what it reads and writes."""

    query: str
    doing: str
    """In a word what it does."""
    why: str
    """More of it; empty if there is no more."""
    steps: tuple[tuple[Box, ...], ...]
    """Boxes beside each other, from sources to sinks."""

    @property
    def look(self) -> str:
        """The classes by which it is drawn."""
        return look(self.doing)


def lanes(facts: Facts, skews: Mapping[str, float]) -> tuple[Lane, ...]:
    """Return the lanes of a pipeline, writers before the readers of what they write.

    Args:
        facts: what is known.
        skews: the largest shard of each operator in relation to the average, by uid.
    """
    return tuple(_lane(name, facts, skews) for name in _in_order(facts.queries))


def _in_order(queries: Mapping[str, QueryFacts]) -> list[str]:
    found: list[str] = []

    def put(name: str) -> None:
        if name in queries and name not in found:
            for writer in queries[name].reads:
                if writer != name:
                    put(writer)
            found.append(name)

    for name in sorted(queries):
        put(name)
    return found


def _lane(name: str, facts: Facts, skews: Mapping[str, float]) -> Lane:
    query = facts.queries[name]
    doing, why = doing_of(query, facts)
    steps = (
        (*_channels(name, query, facts), *_sources(query)),
        tuple(_operator(uid, facts, skews) for uid in query.operators),
        (_query(name, query, doing),),
        (_sink(name, query, facts),),
    )
    return Lane(name, doing, why, tuple(boxes for boxes in steps if boxes))


def doing_of(query: QueryFacts, facts: Facts) -> tuple[str, str]:
    """Return in a word what a query does, and why; the reason is empty if there is none."""
    if query.life is None:
        return "is stored", ""
    if query.life in (QueryPhase.WAITING, QueryPhase.RESTARTING):
        return QueryPhase.RESTARTING.value, f"{said(query, facts.now)}: {query.because}"
    return query.life.value, query.because


def _channels(name: str, query: QueryFacts, facts: Facts) -> Iterator[Box]:
    for writer in query.reads:
        known = [one for one in facts.channels if (one.writer, one.reader) == (writer, name)]
        said = tuple(fact for one in known for fact in _left_in(one)) or ("nothing unread at the checkpoint",)
        yield Box("channel", f"from {writer}", said)


def _left_in(channel: ChannelRecord) -> Iterator[str]:
    if channel.rows_to_publish:
        yield f"{many(channel.rows_to_publish, 'row')} to be published"
    if channel.files is not None and channel.files.files:
        rows = "" if channel.files.rows is None else f", {many(channel.files.rows, 'row')}"
        yield f"{many(channel.files.files, 'file')} unread{rows}"
    unread = [one.unread for one in channel.partitions if one.unread is not None]
    if sum(unread):
        yield f"{sum(unread):,} offsets unread"


def _sources(query: QueryFacts) -> Iterator[Box]:
    for one in query.activity.sources:
        yield Box("source", one.name or "source", tuple(_flow(one.rows_per_second, one.behind)))


def _flow(rate: float | None, behind: float | None) -> Iterator[str]:
    if rate is not None:
        yield f"{rounded(rate)} rows/s"
    if behind is not None:
        yield f"{rounded(behind)} offsets behind"


def _operator(uid: str, facts: Facts, skews: Mapping[str, float]) -> Box:
    work, size = facts.work.get(uid), facts.operators.get(uid)
    said = [f"{many(work.rows, 'row')} taken"] if work and work.tasks else []
    if work and work.seconds:
        said.append(f"works {100 * _works(work):.0f} % of its tasks' time")
    if size is not None:
        said.append(decimal(size.bytes))
    outstanding = []
    if len(facts.work) > 1 and uid == _busiest(facts.work):
        outstanding.append("the busiest operator")
    if skews and uid == max(sorted(skews), key=lambda one: skews[one]) and skews[uid] >= _FAR:
        outstanding.append(f"the largest shard: {skews[uid]:.1f} times the average")
    return Box("operator", uid, tuple(said), stands_out=tuple(outstanding))


def _works(work: OperatorMetrics) -> float:
    """Return the share of its tasks' time in which an operator waits neither for rows nor for who takes its rows."""
    return (
        max(0.0, work.seconds - work.input_seconds - work.output_seconds) / work.seconds
        if work.seconds
        else 0.0
    )


def _busiest(work: Mapping[str, OperatorMetrics]) -> str | None:
    busy = {uid: _works(one) for uid, one in work.items()}
    found = max(sorted(busy), key=lambda uid: busy[uid])
    return found if busy[found] > 0 else None


def _query(name: str, query: QueryFacts, doing: str) -> Box:
    said = [doing, "no batch yet" if query.committed < 0 else f"batch {query.committed}"]
    said += list(_flow(query.activity.rows_per_second, query.activity.behind))
    if query.activity.last_seconds is not None:
        said.append(f"took {seconds(query.activity.last_seconds)}")
    return Box("query", name, tuple(said))


def _sink(name: str, query: QueryFacts, facts: Facts) -> Box:
    called = query.activity.sink or ", ".join(query.sinks) or "sink"
    level, _, why = query.guarantee.partition(": ")
    left = facts.unpublished.get(name)
    said = (
        (
            f"still to be published: {many(left.checkpoints, 'checkpoint')}, the oldest {ago(facts.now, left.oldest)}",
        )
        if left
        else ()
    )
    return Box("sink", called, said, Badge(level, why) if level else None)
