"""A copy of a shard goes from phase to phase as the table says, and in no other way."""

from __future__ import annotations

import itertools

import pytest

from chandy.coordinator.protocol.copies import NEXT, CopyPhase, ShardCopy
from chandy.coordinator.protocol.errors import PhaseError
from chandy.state.shards import CopyId, ShardId


@pytest.mark.parametrize(("phase", "to"), itertools.product(CopyPhase, CopyPhase))
def test_only_a_phase_that_follows_is_entered(phase: CopyPhase, to: CopyPhase) -> None:
    one = ShardCopy(CopyId(1), "q", ShardId("op", 0), "a", "b", phase, deadline=3.0)
    if to in NEXT[phase]:
        one.enter(to, 5.0)
        assert (one.phase, one.deadline) == (to, 5.0)
    else:
        with pytest.raises(PhaseError, match=f"from '{phase}' to '{to}'"):
            one.enter(to, 5.0)
        assert (one.phase, one.deadline) == (phase, 3.0)


def test_every_phase_leads_to_the_hand_over() -> None:
    # A copy that follows its owner begins with a plan, that of a lost host with the loss.
    reached = found = {CopyPhase.PLANNED, CopyPhase.LOST}
    while found:
        found = {to for phase in found for to in NEXT[phase]} - reached
        reached = reached | found
    assert reached == set(CopyPhase)
