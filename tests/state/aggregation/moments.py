"""Moments by milliseconds."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def at(ms: int) -> datetime:
    return EPOCH + timedelta(milliseconds=ms)
