"""Adds sources of ticks to operators with timers, and tells these sources which run of the query to watch."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING

import attrs

from ...state.operators.ticks import TICKS, TickTarget, with_ticks
from ...state.operators.time_mode import TimeMode
from . import plan
from .writer_facts import Trigger, WriterFacts

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


@attrs.define
class Ticks:
    """The operators of a pipeline that have timers, and their time modes.

    One source of ticks serves an operator with timers and all operators after it in its query.
    """

    folder: Path
    """Existing directory with a file for each source that says what to watch."""
    period_ms: int
    """Milliseconds that a query is idle before it runs a batch for processing-time timers."""
    _modes: dict[str, TimeMode] = attrs.field(factory=dict)

    def attach(self, df: DataFrame, uid: str, mode: TimeMode) -> DataFrame:
        """Return the input of an operator, with a source of ticks if the operator has timers.

        Args:
            df: the input.
            uid: the operator's uid.
            mode: the operator's time mode.
        """
        if mode is TimeMode.NONE:
            return df
        self._modes[uid] = mode
        if not df.isStreaming or plan.has_ticks(df):
            return df
        return with_ticks(df, self._target(uid), f"{TICKS}_{uid.encode().hex()}")

    def mode(self, uid: str) -> str:
        """Return the time mode of an operator, as PySpark names it."""
        return str(self._modes.get(uid, TimeMode.NONE))

    def watch(self, uids: Iterable[str], directory: Path, facts: WriterFacts) -> None:
        """Make the sources of a query watch the run that is about to begin.

        Args:
            uids: the query's operators.
            directory: the working checkpoint directory of the run.
            facts: the query's. If it must not run batches without data, there are no ticks.
        """
        modes = {uid: mode for uid in uids if (mode := self._modes.get(uid))}
        target = TickTarget(
            directory=str(directory),
            event_time=facts.no_data_batches and TimeMode.EVENT in modes.values(),
            period_ms=self.period_ms
            if facts.no_data_batches and TimeMode.PROCESSING in modes.values()
            else None,
            available_now=facts.trigger is Trigger.AVAILABLE_NOW,
        )
        for uid in modes:
            target.write(self._target(uid))

    def _target(self, uid: str) -> Path:
        return self.folder / f"{uid}.json"
