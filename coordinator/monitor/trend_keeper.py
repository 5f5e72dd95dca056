"""Keeps the trends of a pipeline, and stores them beside the journal, so that they outlive the driver."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Final

import attrs

from ...storage import runtime
from ...storage.checkpoints.layout import JOURNAL, trends_key
from ...storage.codec import from_json_of_any_version, to_json
from ...storage.errors import ChandyError, CodecError
from ...storage.logs import logger
from ...storage.store import Store
from ..recovery.pipeline_events import CheckpointMeasured, PipelineEnded, PipelineEvent
from .trends import Measured, StoredSpan, Trends

log = logger(__name__)

_STORE_SECONDS: Final = 10.0
"""How long a request to the store may take."""
_EVERY_SECONDS: Final = 300.0
"""How often trends are stored. What has been since is lost with a driver that is killed."""


@attrs.define
class TrendKeeper:
    """The trends of one life of a driver, and those that it has found. One thread calls ``take``, any the rest."""

    _store: Store
    _generation: int
    _clock: Callable[[], float]
    """Seconds since 1970."""
    _own: Trends = attrs.field(factory=Trends, init=False)
    _earlier: Trends | None = attrs.field(default=None, init=False)
    _stored_at: float = attrs.field(init=False)
    _adding: runtime.Lock = attrs.field(factory=runtime.lock, init=False)
    _loading: runtime.Lock = attrs.field(factory=runtime.lock, init=False)

    def __attrs_post_init__(self) -> None:
        self._store = self._store.within(_STORE_SECONDS)
        self._stored_at = self._clock()

    def take(self, event: PipelineEvent) -> None:
        """Add the checkpoint that an event tells of, and store the trends from time to time and at the end."""
        if isinstance(event, CheckpointMeasured):
            self.add(Measured.checkpoint(event.statistics))
        is_due = event.at - self._stored_at >= _EVERY_SECONDS
        if is_due or isinstance(event, PipelineEnded):
            self._stored_at = event.at
            self._write()

    def add(self, measured: Measured) -> None:
        """Add what was measured just now."""
        with self._adding:
            self._own = self._own.plus(self._clock(), measured)

    def known(self) -> Trends:
        """Return the trends of this driver and, as of the first call, of the one before."""
        with self._loading:
            if self._earlier is None:
                self._earlier = self._read_earlier()
        return self._earlier.merged(self._own)

    def _read_earlier(self) -> Trends:
        try:
            return read_trends(self._store)
        except (ChandyError, OSError) as error:
            log.warning("the trends of earlier drivers cannot be read", error=str(error))
            return Trends()

    def _write(self) -> None:
        lines = b"".join(to_json(one) + b"\n" for one in self.known().lines())
        try:
            self._store.write(trends_key(self._generation), lines)
            # It has what they have.
            old = [one for one in _generations(self._store) if one < self._generation]
            self._store.delete_all([trends_key(generation) for generation in old])
        except (ChandyError, OSError) as error:
            log.warning("the trends cannot be stored", error=str(error))


def read_trends(store: Store) -> Trends:
    """Return the trends that the newest driver has stored; empty if none has.

    Raises:
        StoreFailedError: the store cannot be read.
    """
    newest = max(_generations(store), default=None)
    return Trends() if newest is None else Trends.of(_lines(store.read(trends_key(newest))))


def _lines(data: bytes) -> Iterator[StoredSpan]:
    for line in data.splitlines():
        with contextlib.suppress(CodecError):
            yield from_json_of_any_version(StoredSpan, line)


def _generations(store: Store) -> list[int]:
    return [generation for key in store.list(JOURNAL) if (generation := trends_key.number(key)) is not None]
