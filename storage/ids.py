"""Types for the numbers that are mixed up most easily: a batch of a query is no checkpoint of the pipeline.

At run time they are plain integers. Public classes accept any ``int``, and stored records hold numbers.
"""

from __future__ import annotations

from typing import Final, NewType

BatchId = NewType("BatchId", int)
"""Spark's number of a micro-batch of one query, from 0. A cut is the last batch that a checkpoint contains."""
NO_BATCH: Final = BatchId(-1)
"""The position of a query before its first batch."""
CheckpointId = NewType("CheckpointId", int)
"""Numbers the checkpoints of a pipeline, from 1. An epoch of output has the number of the checkpoint that ends it."""
FIRST_CHECKPOINT: Final = CheckpointId(1)
"""The first checkpoint of a pipeline."""
