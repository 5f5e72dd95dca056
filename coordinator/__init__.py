"""The driver side of Chandy: make a ``CheckpointCoordinator``, wrap queries, take checkpoints, restore.

Names are imported when they are first used: the command line needs none of Spark.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..storage.lazy import importer

if TYPE_CHECKING:
    from .checkpoint import Checkpoint as Checkpoint
    from .config import CheckpointConfig as CheckpointConfig
    from .coordinator import CheckpointCoordinator as CheckpointCoordinator
    from .environment import check_environment as check_environment
    from .errors import ChandyError as ChandyError
    from .errors import CheckpointError as CheckpointError
    from .guarantee import Guarantee as Guarantee
    from .query import CheckpointedQuery as CheckpointedQuery
    from .reasons import Reason as Reason
    from .recoveries import Recovery as Recovery
    from .restart import ExponentialBackoff as ExponentialBackoff
    from .restart import FixedDelay as FixedDelay
    from .restart import NoRestart as NoRestart
    from .statistics import Statistics as Statistics

__getattr__ = importer(
    __name__,
    {
        "checkpoint": ["Checkpoint"],
        "config": ["CheckpointConfig"],
        "coordinator": ["CheckpointCoordinator"],
        "environment": ["check_environment"],
        "errors": ["ChandyError", "CheckpointError"],
        "guarantee": ["Guarantee"],
        "query": ["CheckpointedQuery"],
        "reasons": ["Reason"],
        "recoveries": ["Recovery"],
        "restart": ["ExponentialBackoff", "FixedDelay", "NoRestart"],
        "statistics": ["Statistics"],
    },
)

__all__ = [
    "ChandyError",
    "Checkpoint",
    "CheckpointConfig",
    "CheckpointCoordinator",
    "CheckpointError",
    "CheckpointedQuery",
    "ExponentialBackoff",
    "FixedDelay",
    "Guarantee",
    "NoRestart",
    "Reason",
    "Recovery",
    "Statistics",
    "check_environment",
]
