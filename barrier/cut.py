"""The order in which a checkpoint looks at the queries of a pipeline when it chooses its cut."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from graphlib import CycleError, TopologicalSorter

from ..state.errors import DefinitionError


def downstream_first(reads: Mapping[str, Sequence[str]]) -> tuple[str, ...]:
    """Order queries so that each comes before those whose output it reads.

    A cut chosen in this order is consistent: what a query had consumed when it was looked at was produced
    before its producer was looked at (the consistent cut of Chandy and Lamport, "Distributed Snapshots", 1985).
    Where this leaves a choice, the query that was started last comes first: a query that reads the output of another
    must be started after it. So the order is right also where nobody has said who reads from whom.

    The order matters where output is visible before the checkpoint that has it, as that of Spark's own file sink is.
    Output of a transactional sink becomes visible once a checkpoint has completed, so what a consumer has read belongs
    to an earlier checkpoint than any that is being taken: every order is right then.

    Args:
        reads: by query, in the order they were started, the queries whose output it reads.

    Raises:
        DefinitionError: a query reads one that the pipeline does not have, or queries read each other in a circle.
    """
    for query, producers in reads.items():
        for producer in producers:
            if producer not in reads:
                raise DefinitionError(
                    f"query {query!r} reads {producer!r}, which the pipeline does not have",
                    f"one of {', '.join(reads)}",
                    repr(producer),
                    "start the producer first, under that name",
                )
    # The sorter puts predecessors first; a consumer must come before its producer.
    sorter: TopologicalSorter[str] = TopologicalSorter(dict.fromkeys(reads, ()))
    for query, producers in reads.items():
        for producer in producers:
            sorter.add(producer, query)
    try:
        sorter.prepare()
    except CycleError as error:
        raise DefinitionError(
            "queries read each other's output in a circle",
            "an order in which each query comes before those it reads",
            " -> ".join(error.args[1]),
            "remove one `reads=`, or put the queries into separate pipelines",
        ) from None
    started = {query: number for number, query in enumerate(reads)}
    order: list[str] = []
    ready: set[str] = set()
    while sorter.is_active():
        ready.update(sorter.get_ready())
        # One at a time: a query that is ready now may have been started before the producers of this one.
        last = max(ready, key=started.__getitem__)
        ready.remove(last)
        sorter.done(last)
        order.append(last)
    return tuple(order)
