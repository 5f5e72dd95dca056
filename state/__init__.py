"""Keyed state: shards on RocksDB, the hosts that keep them, and the processors that use them.

Names are imported when they are first used: every state host starts through this package, and needs no Spark.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..storage.lazy import importer

if TYPE_CHECKING:
    from .operators.arrow_processor import ArrowInput as ArrowInput
    from .operators.arrow_processor import ArrowProcessor as ArrowProcessor
    from .operators.arrow_processor import ArrowResult as ArrowResult
    from .reader.reading import read_state as read_state
    from .reader.reading import register as register

__getattr__ = importer(
    __name__,
    {
        "operators.arrow_processor": ["ArrowInput", "ArrowProcessor", "ArrowResult"],
        "reader.reading": ["read_state", "register"],
    },
)

__all__ = ["ArrowInput", "ArrowProcessor", "ArrowResult", "read_state", "register"]
