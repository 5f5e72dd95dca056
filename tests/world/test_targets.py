"""Whatever happens, each row is in each target once, with its checkpoint and not before."""

from __future__ import annotations

import logging

import pytest

from ..effort import IS_FULL, examples
from .bugs import SeededBug
from .events import OF_TARGETS, events_of
from .publisher_bugs import PUBLISHER_BUGS
from .runs import run


@pytest.fixture(autouse=True)
def quiet(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(logging.root.manager, "disable", logging.CRITICAL)


def publish(seed: int) -> None:
    """Run a world whose query has transactional sinks."""
    run(seed, events_of(seed, 12, 0.4, OF_TARGETS), publishes=True)


def test_each_row_is_seen_once_with_its_checkpoint() -> None:
    for seed in range(examples(12)):
        try:
            publish(seed)
        except AssertionError as error:
            raise AssertionError(f"seed {seed}: {error}") from error


OFTEN = {bug.name for bug in PUBLISHER_BUGS} - {
    "a lost answer is taken for a yes",
    "a connection is kept after an error",
    "epochs stay when the pipeline goes back",
    "what a start is to publish is not published",
    "epochs of checkpoints that have failed are lost",
}
"""What almost every run finds; the others take some dozens of runs."""


@pytest.mark.parametrize(
    "bug", [bug for bug in PUBLISHER_BUGS if IS_FULL or bug.name in OFTEN], ids=lambda bug: bug.name
)
def test_a_run_finds(bug: SeededBug, monkeypatch: pytest.MonkeyPatch) -> None:
    bug.put_in(monkeypatch)
    with pytest.raises(AssertionError):
        # Where it was last found, and then others: schedules change with the product.
        for seed in (bug.seed, *range(100)):
            publish(seed)
