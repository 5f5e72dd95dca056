"""Gives ticks to the operators that wait for time, and has them watch the runs of their queries."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import attrs

from ...state.operators.ticks import TICKS, TickTarget, with_ticks
from ...state.operators.time_mode import TimeMode
from ..query import Definition
from . import plan

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


@attrs.define
class Ticks:
    """Which operators of a pipeline have timers, and of which time.

    There is one source of ticks for an operator with timers and for all that is behind it in its query.
    """

    folder: Path
    """Where the sources find what they watch; it exists."""
    period_ms: int
    """Milliseconds that a query is idle until a batch looks for timers of processing time."""
    _modes: dict[str, TimeMode] = attrs.field(factory=dict)

    def attach(self, df: DataFrame, uid: str, mode: TimeMode) -> DataFrame:
        """Return the input of an operator, with a source of ticks if its timers need one.

        Args:
            df: the input.
            uid: the operator.
            mode: its time mode.
        """
        if mode is TimeMode.NONE:
            return df
        self._modes[uid] = mode
        if not df.isStreaming or plan.has_ticks(df):
            return df
        return with_ticks(df, self._target(uid), f"{TICKS}_{uid.encode().hex()}")

    def watch(self, definition: Definition, directory: Path) -> None:
        """Have the sources of a query watch the run that is about to begin.

        Args:
            definition: the query.
            directory: the working checkpoint directory of the run.
        """
        modes = {mode for operator in definition.operators if (mode := self._modes.get(operator.uid))}
        if not modes:
            return
        wanted = definition.facts.no_data_batches
        target = TickTarget(
            directory=str(directory),
            event_time=wanted and TimeMode.EVENT in modes,
            period_ms=self.period_ms if wanted and TimeMode.PROCESSING in modes else None,
        )
        for operator in definition.operators:
            if operator.uid in self._modes:
                target.write(self._target(operator.uid))

    def _target(self, uid: str) -> Path:
        return self.folder / f"{uid}.json"
