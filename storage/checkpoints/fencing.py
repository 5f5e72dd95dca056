"""Fencing: the rule which generation may complete which checkpoints, and its records, without I/O.

A coordinator takes over in two steps, because it can only know what its predecessors completed once they can complete
nothing more:

1. *Claim*: it creates ``generations/<g>.json`` exclusively. This fences every lower generation: after each manifest
   that it commits, it looks for the next generation's claim, and if there is one, the checkpoint does not count.
2. *Start*: it lists the manifests and creates ``generations/<g>.start.json`` with the ids of those that count. Every
   other manifest of a lower generation is void, for every reader and for ever.

So the newest start record decides, and older records are deleted. The newest claim stays until there are several newer
ones, so the highest number never goes: no number is handed out twice, and a coordinator that comes back after any time
finds a number above its own.

Between the two it waits until no predecessor writes into the pipeline's sinks any more. A driver is a *leader* from
its claim until it has stopped all its queries: as long as there is ``generations/<g>.driver.json``, by which others on
its machine can find out whether it lives. One that has claimed and not started is fenced before it touches a sink. So
a successor waits for all drivers down to the newest that has started, which has waited for those before.

A leader that has standbys also renews a *lease*, ``generations/<g>.lease.json``, so that they notice its end when it is
on another machine. A standby claims exactly the generation after the one that it watched. Of several standbys, one
succeeds, and the others go on waiting.

A start record also gets the checkpoint or savepoint that a user chose, before the generation changes an output for it:
its sinks may take back what newer checkpoints have published. As long as no checkpoint has completed since, that is
what the pipeline stands at, and the next generation takes it over into its own record. What a user permitted the
generation to give up is there, too, before it is given up.

No start record makes a completed checkpoint void: its coordinator committed it, then looked for a claim and found none,
so the manifest was there before the claim and is found, by a list or by its id. With a single record, a checkpoint that
completes between the successor's list and its create would be void although its sinks have published.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import Final

import attrs

from ..ids import CheckpointId

KEPT: Final = 5
"""The newest generations, whose records are kept. One would be enough for a store whose lists are of one moment; on a
local disk, a list may miss a record that is made and one that is deleted while it is read."""


@attrs.frozen
class Claim:
    """The record that fences all lower generations."""

    generation: int
    owner: str
    """The driver that claims, for users to read: machine, process."""
    created_at: float
    """Seconds since 1970 by the claimant's clock."""
    nonce: str = ""
    """Random, so that no two claims are equal and each claimant recognises its own."""
    shadow: str = ""
    """The name by which the program of the driver is a shadow, unless it leads; empty: it is none."""


@attrs.frozen
class DriverRecord:
    """The record of a leader: which processes write into the pipeline's sinks."""

    generation: int
    host: str
    """Name of the machine, for users to read."""
    machine: str
    """Within it, process ids mean the same."""
    pid: int
    started: int
    """When that process began, as its machine counts; another process with the same id has another number."""
    java: int
    """Process id of the JVM that Spark's queries run in."""
    java_started: int
    nonce: str = ""
    """What only this leadership has: a store may have several URIs, and a process several leaders."""


@attrs.frozen
class LeaseRecord:
    """The record by which a leader tells its standbys that it lives.

    It has no time: nobody compares the clocks of two machines. A standby looks whether the number of renewals grows.
    """

    generation: int
    seconds: float
    """After so long without a renewal, a standby may take over, and the leader has stopped beginning batches."""
    renewals: int
    """How often it was renewed."""
    stopped: bool = False
    """Whether the pipeline was stopped on purpose: then no standby takes over."""


@attrs.frozen
class Generation:
    """The start record of one life of a coordinator."""

    generation: int
    predecessors_end: int
    """Highest id of a checkpoint that lower generations committed; 0 if there is none."""
    next_id: CheckpointId
    """The first checkpoint id that this generation may use."""
    created_at: float
    """Seconds since 1970 by the coordinator's clock."""
    owner: str
    """The driver that took over, for users to read: machine, process."""
    counted: tuple[int, ...] | None = None
    """Ids of the checkpoints of lower generations that count: all others are void. None in the first version's records:
    those above ``predecessors_end`` are void, and so are those that an earlier record makes void."""
    restored: str = ""
    """The checkpoint or savepoint that a user chose, here or in an earlier life after which none has completed: its id
    or its URI. Empty: the pipeline stands at the newest."""
    permitted: tuple[str, ...] = ()
    """What a user has permitted this life to give up, and it has: a line for each, for people."""

    def voids(self, generation: int, checkpoint: CheckpointId) -> bool:
        """Whether it makes the manifest with this id void that this generation committed."""
        if generation >= self.generation:
            return False
        if self.counted is None:
            return checkpoint > self.predecessors_end
        return checkpoint not in self.counted


def voided_by(generation: int, checkpoint: CheckpointId, started: Iterable[Generation]) -> Generation | None:
    """Return the lowest generation that makes a manifest void; None if the manifest counts.

    Args:
        generation: the generation that committed it.
        checkpoint: its id.
        started: the start records that decide: the newest, and in a storage of the first version all of them.
    """
    voiding = [start for start in started if start.voids(generation, checkpoint)]
    return min(voiding, key=lambda start: start.generation, default=None)


def begin(
    claim: Claim,
    committed: Collection[int],
    counted: Collection[int],
    touched: Collection[int],
    started: Collection[Generation],
    first_id: CheckpointId,
) -> Generation:
    """Decide the start record of a generation.

    Args:
        committed: ids of all manifests that were there after the claim, including void ones.
        counted: those of them that are not void.
        touched: ids of all checkpoints that left any object.
        started: the start records of earlier generations that decide.
        first_id: the lowest id to use, such as one above the id of a restored savepoint.
    """
    last = max(started, key=lambda start: start.generation, default=None)
    has_completed = last is None or not set(counted) <= set(last.counted or ())
    used = [0, first_id - 1, *committed, *touched]
    used += [max(start.next_id - 1, start.predecessors_end) for start in started]
    return Generation(
        claim.generation,
        max(committed, default=0),
        CheckpointId(max(used) + 1),
        claim.created_at,
        claim.owner,
        tuple(sorted(counted)),
        "" if last is None or has_completed else last.restored,
    )


def is_outdated(generation: int, newest: int) -> bool:
    """Whether the records of a generation can go once the generation ``newest`` has started."""
    return generation <= newest - KEPT
