"""What sources of ticks are told to watch. ``tests/integration/test_time.py`` runs them."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import attrs
import pytest

from chandy.coordinator.spark.ticks import Ticks
from chandy.coordinator.spark.writer_facts import SinkFacts, Trigger, WriterFacts
from chandy.state.operators.ticks import TickTarget
from chandy.state.operators.time_mode import TimeMode

FACTS = WriterFacts(sink=SinkFacts("noop"), output_mode="append", trigger=Trigger.PROCESSING_TIME)
BATCH: Any = SimpleNamespace(isStreaming=False)
"""A DataFrame that no source is added to."""


def ticks(folder: Path, **modes: TimeMode) -> Ticks:
    made = Ticks(folder, period_ms=250)
    for uid, mode in modes.items():
        made.attach(BATCH, uid, mode)
    return made


def targets(folder: Path) -> dict[str, TickTarget | None]:
    return {path.stem: TickTarget.read(path) for path in folder.glob("*.json")}


@pytest.mark.parametrize(
    ("modes", "event_time", "period_ms"),
    [
        ({"a": TimeMode.EVENT}, True, None),
        ({"a": TimeMode.PROCESSING}, False, 250),
        ({"a": TimeMode.EVENT, "b": TimeMode.PROCESSING}, True, 250),
    ],
)
def test_each_operator_with_timers_watches_the_run_for_all_timers_of_the_query(
    tmp_path: Path, modes: dict[str, TimeMode], event_time: bool, period_ms: int | None
) -> None:
    pipeline = ticks(tmp_path, none=TimeMode.NONE, other=TimeMode.EVENT, **modes)
    pipeline.watch(["none", *modes], tmp_path / "run", FACTS)
    assert targets(tmp_path) == dict.fromkeys(modes, TickTarget(str(tmp_path / "run"), event_time, period_ms))


def test_a_query_that_may_not_run_batches_without_data_has_no_ticks(tmp_path: Path) -> None:
    pipeline = ticks(tmp_path, a=TimeMode.EVENT, b=TimeMode.PROCESSING)
    pipeline.watch(["a", "b"], tmp_path / "run", attrs.evolve(FACTS, no_data_batches=False))
    assert targets(tmp_path) == dict.fromkeys("ab", TickTarget(str(tmp_path / "run"), False, None))


def test_the_source_of_a_query_that_is_to_end_knows_it(tmp_path: Path) -> None:
    ending = attrs.evolve(FACTS, trigger=Trigger.AVAILABLE_NOW)
    ticks(tmp_path, a=TimeMode.EVENT).watch(["a"], tmp_path / "run", ending)
    assert targets(tmp_path) == {"a": TickTarget(str(tmp_path / "run"), True, available_now=True)}


def test_a_query_without_timers_watches_nothing(tmp_path: Path) -> None:
    ticks(tmp_path, a=TimeMode.EVENT).watch(["b"], tmp_path / "run", FACTS)
    assert targets(tmp_path) == {}
