"""Keyed state: shards on RocksDB, the hosts that keep them, and the processors that use them.

Names are imported when they are first used: every state host starts through this package, and needs no Spark.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .operators.arrow_processor import ArrowInput as ArrowInput
    from .operators.arrow_processor import ArrowProcessor as ArrowProcessor
    from .operators.arrow_processor import ArrowResult as ArrowResult
    from .reader.reading import read_state as read_state
    from .reader.reading import register as register

_MODULES = {
    "ArrowInput": "operators.arrow_processor",
    "ArrowProcessor": "operators.arrow_processor",
    "ArrowResult": "operators.arrow_processor",
    "read_state": "reader.reading",
    "register": "reader.reading",
}

__all__ = ["ArrowInput", "ArrowProcessor", "ArrowResult", "read_state", "register"]


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f".{_MODULES[name]}", __name__), name)
