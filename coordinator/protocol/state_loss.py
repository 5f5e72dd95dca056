"""What a pipeline has lost of its state, and whether it may resume from its changelogs all the same."""

from __future__ import annotations

import attrs

from ...state.shards import NotResumable


@attrs.frozen
class StateLoss:
    """State is lost, so that the pipeline must go back."""

    why: str
    distrust: str | None
    """What was lost otherwise, so that the changelogs cannot be trusted; None: all of it was lost with state hosts."""

    @property
    def with_host(self) -> bool:
        """Whether all of it was lost with state hosts, so that the changelogs can be trusted."""
        return self.distrust is None

    def and_then(self, why: str, *, with_host: bool) -> StateLoss:
        """Return the loss of this and of more."""
        return attrs.evolve(self, distrust=self.distrust or (None if with_host else why))


def why_not_resumable(loss: StateLoss | None, *, is_half_way: bool) -> NotResumable | None:
    """Return why a pipeline that goes back may not resume where it stood; None if it may.

    Args:
        loss: what it has lost.
        is_half_way: whether it has begun to go back before, and did not arrive.
    """
    if is_half_way:
        return NotResumable("was going back already, so that queries may stand at different cuts")
    if loss is None:
        return NotResumable("has lost no state, and would come to the same failure again")
    if loss.distrust is not None:
        first, _, _ = loss.distrust.partition("\n")
        return NotResumable(f"has changelogs that cannot be trusted: {first}")
    return None
