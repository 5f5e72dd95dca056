"""What a run leaves to chance: drawn from a seed, a stream of numbers for each concern.

The streams are apart so that an event that is taken out of a run moves no other event's numbers: what is left is still
the run that failed.
"""

from __future__ import annotations

import random
from typing import Final


class Choices:
    """All that a run leaves to chance.

    Args:
        seed: the same seed makes the same choices.
    """

    def __init__(self, seed: object) -> None:
        self.seed: Final = seed
        self._streams: dict[str, random.Random] = {}

    def stream(self, concern: str) -> random.Random:
        """Return the random numbers of a concern, which no other concern takes any of."""
        if (found := self._streams.get(concern)) is None:
            found = self._streams[concern] = random.Random(f"{self.seed} {concern}")
        return found
