"""Batches are recorded from when a shadow reads the pipeline on, and each look tells whether one does."""

from __future__ import annotations

from pathlib import Path

import pytest

from chandy.coordinator.execution.recording import Recording
from chandy.storage.backends.local import LocalStore
from chandy.storage.checkpoints.catalog import Catalog
from chandy.storage.checkpoints.pins import Pins, reader_of
from chandy.storage.checkpoints.proof import Unshared
from chandy.storage.errors import StoreFailedError
from chandy.storage.ids import CheckpointId

from ...builders import make_manifest
from ...waiting import DEADLINE
from .one_life import OneLife


class Unlistable(LocalStore):
    """A store that cannot list."""

    asked_for = 0

    def list(self, prefix: str = "") -> list[str]:
        self.asked_for += 1
        raise StoreFailedError(self.uri, prefix, "list", "connection reset")


def test_a_shadow_turns_it_on_and_neither_another_reader_nor_a_store_that_is_away_does(
    tmp_path: Path,
) -> None:
    store = LocalStore(tmp_path)
    Catalog(store).commit(make_manifest(1))
    recording = Recording(store=store)
    other, shadow = Pins(store, "shadows"), Pins(store, reader_of("next"))
    other.hold(CheckpointId(1), 0.0)
    recording.look()
    assert not recording.is_on
    shadow.hold(CheckpointId(1), 0.0)
    Recording(store=None).look()
    recording.store = away = Unlistable(tmp_path)
    recording.look()
    assert (recording.is_on, away.asked_for) == (False, 1)
    recording.store = store
    recording.look()
    assert recording.is_on and recording.is_followed
    shadow.release(Unshared())
    recording.store = away
    recording.look()
    assert recording.is_on and recording.is_followed, "nobody has seen it go"
    recording.store = store
    recording.look()
    assert recording.is_on and not recording.is_followed


@pytest.mark.parametrize("is_given_up", [False, True])
def test_a_checkpoint_looks_for_a_shadow_before_its_cut_is_chosen(setup: OneLife, is_given_up: bool) -> None:
    setup.completed()
    pins = Pins(setup.store, reader_of("next"))
    pins.hold(CheckpointId(1), 0.0)
    if is_given_up:
        pins.release(Unshared())
    setup.queries.may_plan.clear()
    setup.queries.is_planning.clear()
    setup.request()
    # It asks for the batch that runs: from now on, one that begins is behind the cut.
    assert setup.queries.is_planning.wait(DEADLINE)
    assert setup.recording.is_on is not is_given_up
    setup.queries.may_plan.set()
