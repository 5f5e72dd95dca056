"""The command line `chandy`: lists, shows and verifies checkpoints, watches drivers, goes to and from plain Spark."""

from __future__ import annotations

from . import (
    class_archive,
    cleanup,
    comparing,
    dead_letters,
    demo,
    history,
    largest,
    listing,
    plain_spark,
    readers,
    shadow,
    showing,
    switching,
    top,
    ui,
    verifying,
)
from .group import main

__all__ = [
    "class_archive",
    "cleanup",
    "comparing",
    "dead_letters",
    "demo",
    "history",
    "largest",
    "listing",
    "main",
    "plain_spark",
    "readers",
    "shadow",
    "showing",
    "switching",
    "top",
    "ui",
    "verifying",
]
