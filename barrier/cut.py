"""The order in which a checkpoint looks at the queries of a pipeline when it chooses its cut."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from graphlib import CycleError, TopologicalSorter

import attrs

from ..storage.errors import ChandyError


@attrs.define(eq=False)
class QueryCycleError(ChandyError):
    """Queries read each other's output in a circle, so no order of them is downstream first."""

    queries: tuple[str, ...]

    def __str__(self) -> str:
        circle = " -> ".join(self.queries)
        return (
            f"expected queries that read each other's output without a circle, found {circle}; "
            "take one `reads=` away, or put the queries into pipelines of their own"
        )


@attrs.define(eq=False)
class UnknownQueryError(ChandyError):
    """A query is said to read the output of one that the pipeline does not have."""

    query: str
    reads: str
    known: tuple[str, ...]

    def __str__(self) -> str:
        return (
            f"query {self.query!r} says that it reads {self.reads!r}, but the pipeline has only "
            f"{', '.join(self.known) or 'no query'} so far; start the producer first, under that name"
        )


def downstream_first(reads: Mapping[str, Sequence[str]]) -> tuple[str, ...]:
    """Order queries so that each comes before those whose output it reads.

    A cut chosen in this order is consistent: what a query had consumed when it was looked at was produced
    before its producer was looked at (the consistent cut of Chandy and Lamport, "Distributed Snapshots", 1985).
    Queries that nothing orders come last started first: a consumer is usually started after its producer.

    Args:
        reads: by query, in the order they were started, the queries whose output it reads.

    Raises:
        UnknownQueryError: a query reads one that is not there.
        QueryCycleError: they read each other in a circle.
    """
    for query, producers in reads.items():
        for producer in producers:
            if producer not in reads:
                raise UnknownQueryError(query, producer, tuple(reads))
    # The sorter puts predecessors first; a consumer must come before its producer.
    sorter: TopologicalSorter[str] = TopologicalSorter(dict.fromkeys(reversed(list(reads)), ()))
    for query, producers in reads.items():
        for producer in producers:
            sorter.add(producer, query)
    try:
        return tuple(sorter.static_order())
    except CycleError as error:
        raise QueryCycleError(tuple(error.args[1])) from None
