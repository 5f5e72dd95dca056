"""What users say about savepoints: where they go, and whether they are taken by schedule."""

from __future__ import annotations

import attrs

from . import fields
from .durations import Duration


@fields.known
@attrs.frozen
class Savepoints:
    """Where a pipeline's savepoints go, and the schedule of those that nobody asks for.

    Raises:
        ConfigError: a value cannot be used.
    """

    place: str | None = attrs.field(default=None, validator=fields.optional(fields.filled))
    """Storage URI below which savepoints are written: to ``<place>/<pipeline>/<name>``.

    A savepoint without a name is named by the time. None: they are written to
    ``<storage>/<pipeline>/savepoints/<name>``, and one without a name is refused.
    """
    every: Duration | None = attrs.field(
        default=None, kw_only=True, validator=fields.optional(fields.positive_duration)
    )
    """Time from one scheduled savepoint to the next, across restarts. None: take none."""
    keep: int = attrs.field(default=7, kw_only=True, validator=fields.whole(at_least=1))
    """Number of scheduled savepoints that are kept. Older ones are deleted, and no other savepoint ever is."""
