"""The name of the data source and the words of its options, for who needs nothing else of it."""

from __future__ import annotations

from typing import Final

FORMAT: Final = "chandy"
"""The name of the data source."""
BATCH: Final = "batch"
CHECKPOINT: Final = "checkpoint"
