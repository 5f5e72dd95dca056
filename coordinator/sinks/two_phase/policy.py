"""What a user allows the transactional sinks of a pipeline."""

from __future__ import annotations

import attrs


@attrs.frozen(kw_only=True)
class OutputPolicy:
    """Choices that depend on what may happen to a target."""

    max_unpublished: int
    """How many completed checkpoints may wait for a target before their query pauses."""
    allow_repeated_output: bool
    """Whether to go on behind what a target has, and publish those rows again."""
    allow_lost_output: bool
    """Whether to go on although a target has lost what it had."""
