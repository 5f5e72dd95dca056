"""The pipelines of a storage, as a page's values."""

from __future__ import annotations

from collections.abc import Sequence
from urllib.parse import quote

import attrs
from rich.filesize import decimal

from ..stored_pipelines import PipelineStanding
from .texts import ago, ordinal, rounded
from .words import look


@attrs.frozen
class PipelineRow:
    """One pipeline."""

    name: str
    link: str
    state: str
    look: str
    behind: str
    checkpoint: str
    size: str
    leader: str


@attrs.frozen(kw_only=True)
class StoragePage:
    """All pipelines of a storage."""

    pipeline: str
    """The storage, which is what this page is about."""
    rows: tuple[PipelineRow, ...]
    trouble: str = ""
    """Why there are none; empty if there are some."""


def storage_page(uri: str, found: Sequence[PipelineStanding], now: float, trouble: str = "") -> StoragePage:
    """Return what is to be said of a storage."""
    return StoragePage(pipeline=uri, rows=tuple(_row(one, now) for one in found), trouble=trouble)


def _row(one: PipelineStanding, now: float) -> PipelineRow:
    nth = f"{ordinal(one.generation)} driver" if one.generation else ""
    return PipelineRow(
        name=one.name,
        link=f"/pipelines/{quote(one.name, safe='')}/",
        state=f"{one.state}{f', a replica of {one.replica_of}' if one.replica_of else ''}",
        look=look("failed" if one.is_well is False else "plain"),
        behind=rounded(one.behind),
        checkpoint=f"{one.checkpoint}, {ago(now, one.completed_at)}"
        if one.completed_at is not None
        else "none",
        size="" if one.size is None else decimal(one.size),
        leader=", ".join(filter(None, (one.leader, nth))),
    )
