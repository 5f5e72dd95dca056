"""The command line `chandy`: list, show, compare and verify checkpoints, go to and from plain Spark, clean up."""

from __future__ import annotations

from . import comparing, dead_letters, listing, plain_spark, showing, upkeep, verifying
from .group import main

__all__ = ["comparing", "dead_letters", "listing", "main", "plain_spark", "showing", "upkeep", "verifying"]
