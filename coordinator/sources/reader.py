"""Who reads a source: what a source may need of its query and its pipeline."""

from __future__ import annotations

from typing import TYPE_CHECKING

import attrs

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from ...storage.checkpoints.proof import FenceProof
    from ...storage.store import Store


@attrs.frozen(kw_only=True)
class SourceReader:
    """The query that reads a source, and what a source may need of its pipeline."""

    spark: SparkSession
    pipeline: str
    """The pipeline's name."""
    query: str
    """The query's name."""
    store: Store
    """The pipeline's own."""
    proof: FenceProof
    """That no successor has taken the pipeline over."""
    taken_back: frozenset[str] = frozenset()
    """The directories into which queries of the pipeline write by Spark's file sink, which a restore puts back."""
    begins_anew: bool
    """Whether the user wants it to start over, whatever earlier lives have done."""
