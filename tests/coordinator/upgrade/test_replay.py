from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from chandy.coordinator.errors import GivenBatchError
from chandy.coordinator.upgrade.following import Stage
from chandy.coordinator.upgrade.replay import Replay
from chandy.coordinator.upgrade.requested import requested
from chandy.coordinator.upgrade.stretch import Leg, Stretch
from chandy.storage.backends.open import open_store
from chandy.storage.checkpoints.locate import Located
from chandy.storage.ids import CheckpointId

from ...builders import make_manifest


def replay(tmp_path: Path) -> Replay:
    """A replay of no batch."""
    stages = [Stage(CheckpointId(id), {}, {}) for id in (1, 2)]
    located = {stage.id: Located(make_manifest(stage.id), open_store(str(tmp_path))) for stage in stages}
    return Replay("p", Stretch(stages[0], (Leg(stages[1], ()),)), located)


def test_a_program_that_makes_no_coordinator_is_told_so(tmp_path: Path) -> None:
    with pytest.raises(GivenBatchError, match="a program with a coordinator of pipeline 'p'"):
        replay(tmp_path).by(lambda: None)


@pytest.mark.parametrize("end", [lambda: None, lambda: sys.exit(0)])
def test_a_replay_that_has_compared_nothing_does_not_say_that_all_is_equal(
    tmp_path: Path, end: Callable[[], None]
) -> None:
    def program() -> None:
        requested("p")
        end()

    with pytest.raises(GivenBatchError, match="nothing could be compared"):
        replay(tmp_path).by(program)


def test_what_a_program_raises_is_not_taken_for_its_end(tmp_path: Path) -> None:
    with pytest.raises(ZeroDivisionError):
        replay(tmp_path).by(lambda: 1 // 0)
    with pytest.raises(SystemExit):
        replay(tmp_path).by(lambda: sys.exit(3))
