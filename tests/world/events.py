"""What happens to a run from outside: what users ask, and what breaks. A run's events follow from its seed.

An event says when, and numbers that mean something whatever the state of the world is then: 0.37 is the host at 37 % of
those that live. So a run without one of its events is a run, too.
"""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from itertools import combinations_with_replacement
from typing import Final

import attrs

from .store import OPERATIONS, Trouble


@attrs.frozen
class WorldEvent:
    """Something that happens from outside."""

    at: float
    """Seconds since the run began."""
    kind: str
    """A method of ``Director``."""
    which: float
    """Of those that it could happen to, and so on."""
    seconds: float
    """How long it lasts."""
    what: str = ""
    """Of the store's calls."""

    def __str__(self) -> str:
        what = f" {self.what}" if self.what else ""
        return f"{self.at:8.3f} s {self.kind}{what} which={self.which:.3f} for {self.seconds:.1f} s"


KINDS: Final = {
    "checkpoint": 6,
    "savepoint": 2,
    "store_fails": 8,
    "connection_breaks": 4,
    "host_dies": 2,
    "host_ends": 1,
    "host_freezes": 2,
    "host_joins": 2,
    "machine_is_drained": 2,
    "driver_dies": 1,
    "driver_freezes": 1,
    "successor_starts": 1,
    "driver_is_taken_over": 1,
    "successor_starts_in_a_commit": 1,
    "machines_are_cut_off": 1,
    "power_fails": 1,
    "disk_fills": 1,
    "clock_jumps": 1,
    "store_slows_down": 1,
    "reader_pins": 2,
    "user_goes_back": 1,
    "operator_is_rescaled": 3,
    "pipeline_rests": 1,
    "pipeline_is_stopped": 1,
    "replica_is_asked_for": 2,
}
"""What can happen, and how often in relation."""
OF_TARGETS: Final = {
    "checkpoint": 6,
    "savepoint": 1,
    "store_fails": 3,
    "host_dies": 2,
    "driver_dies": 2,
    "driver_freezes": 2,
    "successor_starts": 2,
    "user_goes_back": 3,
    "target_goes_away": 4,
    "target_loses_answers": 4,
    "target_is_late": 4,
    "operator_is_rescaled": 1,
    "pipeline_rests": 1,
    "pipeline_is_stopped": 1,
}
"""What can happen if a query has transactional sinks."""
EVERYTHING: Final = OF_TARGETS | KINDS | {"object_is_damaged": 1}
"""What can happen if a query has transactional sinks, and an object is damaged that is in a store."""
PARTS: Final = ("", "", "manifest", "generations/", "checkpoints/", "shared/")
CALLS: Final = (
    "begin",
    "fetch",
    "collect",
    "commit",
    "CopyReport",
    "DropStandby",
    "AskBatch",
    "ClaimShards",
    "Ack",
    "Decline",
    "HostPulse",
    "hand_over",
    "forward",
    "forward",
    "forward",
    "orders",
)


KINDS_OF_TROUBLE: Final = {
    "store_fails": tuple(f"{one} {trouble.name}" for one, found in OPERATIONS.items() for trouble in found),
    "connection_breaks": tuple(dict.fromkeys(CALLS)),
}
"""Of what there are some kinds."""


def pairs_of(kinds: Mapping[str, int]) -> list[tuple[str, str]]:
    """Return all pairs of kinds of events, each trouble as a kind of its own."""
    found = sorted(f"{kind} {what}".strip() for kind in kinds for what in KINDS_OF_TROUBLE.get(kind, ("",)))
    return list(combinations_with_replacement(found, 2))


def events_of(seed: object, number: int, rate: float, kinds: Mapping[str, int] = KINDS) -> list[WorldEvent]:
    """Return the events of a run.

    Args:
        seed: of the run.
        number: how many.
        rate: of them a second, on average; some runs have fewer.
        kinds: what can happen, and how often in relation.
    """
    chance = random.Random(f"{seed} events")
    # Each run has about half of the kinds (swarm testing, Groce et al. 2012): what would hide others is absent then.
    kinds = {kind: weight for kind, weight in kinds.items() if kind == "checkpoint" or chance.random() < 0.5}
    # In some there is time to become whole again.
    rate *= chance.choice((0.3, 1.0))
    found, at = [], 5.0
    for _ in range(number):
        at += chance.expovariate(rate)
        [kind] = chance.choices(list(kinds), list(kinds.values()))
        what = ""
        if kind == "store_fails":
            # What completes and what deletes a checkpoint is where a failure counts most.
            anything = chance.choice(list(OPERATIONS)), chance.choice(PARTS)
            operation, part = chance.choice(
                (anything, anything, ("create", "manifest"), ("create", "manifest"), ("delete", "manifest"))
            )
            what = f"{operation} {chance.choice(OPERATIONS[operation]).name} {part}"
        elif kind == "connection_breaks":
            what = chance.choice(CALLS)
        found.append(_event(chance, at, kind, what))
    return found


def together(seed: object, pairs: Sequence[tuple[str, str]], seconds: float) -> list[WorldEvent]:
    """Return events of a run by pairs, the two of each soon after each other.

    Args:
        seed: of the run.
        pairs: of kinds.
        seconds: in which they come.
    """
    chance, found = random.Random(f"{seed} together"), []
    for pair in pairs:
        at = 5.0 + seconds * chance.random()
        for one in pair:
            kind, _, what = one.partition(" ")
            part = f" {chance.choice(PARTS)}" if kind == "store_fails" else ""
            found.append(_event(chance, at, kind, what + part))
            at += chance.random()
    return found


def _event(chance: random.Random, at: float, kind: str, what: str) -> WorldEvent:
    # Until what was asked again has come and gone.
    mean = 30.0 if f" {Trouble.LATE.name} " in what else 8.0
    return WorldEvent(at, kind, chance.random(), chance.expovariate(1 / mean), what)
