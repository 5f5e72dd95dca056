"""The driver side of Chandy: ``CheckpointCoordinator``, its configuration, and the objects that it returns.

Names are imported when they are first used: the command line does not need Spark.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..storage.lazy import importer

if TYPE_CHECKING:
    from .checkpoint import Checkpoint as Checkpoint
    from .config import CheckpointConfig as CheckpointConfig
    from .coordinator import CheckpointCoordinator as CheckpointCoordinator
    from .errors import ChandyError as ChandyError
    from .errors import CheckpointError as CheckpointError
    from .protocol.reasons import Reason as Reason
    from .protocol.statistics import Statistics as Statistics
    from .query import CheckpointedQuery as CheckpointedQuery
    from .recovery.metrics import RecoveryMetrics as RecoveryMetrics
    from .recovery.restart import ExponentialBackoff as ExponentialBackoff
    from .recovery.restart import FixedDelay as FixedDelay
    from .recovery.restart import NoRestart as NoRestart
    from .sinks.guarantee import Guarantee as Guarantee
    from .spark.environment import check_environment as check_environment

__getattr__ = importer(
    __name__,
    {
        "checkpoint": ["Checkpoint"],
        "config": ["CheckpointConfig"],
        "coordinator": ["CheckpointCoordinator"],
        "spark.environment": ["check_environment"],
        "errors": ["ChandyError", "CheckpointError"],
        "sinks.guarantee": ["Guarantee"],
        "query": ["CheckpointedQuery"],
        "protocol.reasons": ["Reason"],
        "recovery.metrics": ["RecoveryMetrics"],
        "recovery.restart": ["ExponentialBackoff", "FixedDelay", "NoRestart"],
        "protocol.statistics": ["Statistics"],
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
    "RecoveryMetrics",
    "Statistics",
    "check_environment",
]
