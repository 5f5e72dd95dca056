"""Which generation may complete which checkpoints: the values and the rule, without I/O.

Taking over has two steps, because what the predecessors have completed can only be known once they can
complete nothing more:

1. *Claim*: create ``generations/<g>.json`` exclusively. From here on every lower generation is fenced: after
   each manifest that it commits it looks for the next generation's claim, and if there is one the checkpoint
   does not count as completed.
2. *Start*: list the manifests that are there and create ``generations/<g>.start.json`` with the highest id
   among them. A manifest of a lower generation with a higher id is void, for every reader and for ever.

A checkpoint that counts as completed was committed before its committer looked for a claim and found none,
hence before the claim, hence before the list: no start record ever makes it void. With one record in place of
two, a checkpoint completed between the successor's list and its create would be void though its sinks have
published.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable

import attrs


@attrs.frozen
class Claim:
    """The record that fences all lower generations."""

    generation: int
    owner: str
    """Who claims, for people: machine, process."""
    created_at: float
    """Seconds since 1970, the claimant's clock."""
    nonce: str = ""
    """Something random: no two claims are equal, so that each claimant knows its own again."""


@attrs.frozen
class Generation:
    """The record with which one life of a coordinator begins its work."""

    generation: int
    predecessors_end: int
    """Highest id of a checkpoint that lower generations have committed; 0 if none."""
    next_id: int
    """The first checkpoint id that it may use."""
    created_at: float
    """Seconds since 1970, the coordinator's clock."""
    owner: str
    """Whose life it is, for people: machine, process."""


def voided_by(generation: int, checkpoint: int, started: Iterable[Generation]) -> Generation | None:
    """Return the lowest generation that makes a manifest void; None if it counts.

    Args:
        generation: the generation that committed it.
        checkpoint: its id.
        started: the start records of all generations.
    """
    voiding = [s for s in started if s.generation > generation and s.predecessors_end < checkpoint]
    return min(voiding, key=lambda start: start.generation, default=None)


def begin(
    claim: Claim,
    committed: Collection[int],
    touched: Collection[int],
    started: Collection[Generation],
    first_id: int,
) -> Generation:
    """Decide where a generation begins.

    Args:
        claim: its claim.
        committed: ids of all manifests that were there after the claim, void ones too: those stay void.
        touched: ids of all checkpoints that have left anything behind.
        started: the start records of earlier generations.
        first_id: the lowest id to use, e.g. one above a savepoint's that is restored.
    """
    used = [0, first_id - 1, *committed, *touched]
    used += [max(start.next_id - 1, start.predecessors_end) for start in started]
    return Generation(
        claim.generation, max(committed, default=0), max(used) + 1, claim.created_at, claim.owner
    )
