"""Faces of packages whose names are imported when they are first used: each process pays for what it uses."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from importlib import import_module
from typing import Any


def importer(package: str, names: Mapping[str, Sequence[str]]) -> Callable[[str], Any]:
    """Return the ``__getattr__`` of a package's module (PEP 562).

    Args:
        package: its ``__name__``.
        names: those that it hands on, by the module in it that has them.
    """
    modules = {name: module for module, held in names.items() for name in held}

    def get(name: str) -> Any:
        if name not in modules:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        return getattr(import_module(f".{modules[name]}", package), name)

    return get
