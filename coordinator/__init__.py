"""The driver side of Chandy: make a ``CheckpointCoordinator``, wrap queries, take checkpoints, restore.

Names are imported when they are first used: the command line needs none of Spark.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

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

_MODULES = {
    "Checkpoint": "checkpoint",
    "CheckpointConfig": "config",
    "CheckpointCoordinator": "coordinator",
    "check_environment": "environment",
    "ChandyError": "errors",
    "CheckpointError": "errors",
    "Guarantee": "guarantee",
    "CheckpointedQuery": "query",
    "Reason": "reasons",
    "Recovery": "recoveries",
    "ExponentialBackoff": "restart",
    "FixedDelay": "restart",
    "NoRestart": "restart",
    "Statistics": "statistics",
}

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


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f".{_MODULES[name]}", __name__), name)
