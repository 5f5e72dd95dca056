"""The command line `chandy`: checkpoints and drivers, batches that run again, ways to and from plain Spark."""

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
    replaying,
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
    "replaying",
    "shadow",
    "showing",
    "switching",
    "top",
    "ui",
    "verifying",
]
