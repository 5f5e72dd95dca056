"""Whatever happens, each row is in each target once, with its checkpoint and not before."""

from __future__ import annotations

import logging

import pytest

from ..effort import rounds
from .bugs.bug import publish


@pytest.fixture(autouse=True)
def quiet(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(logging.root.manager, "disable", logging.CRITICAL)


def test_each_row_is_seen_once_with_its_checkpoint() -> None:
    for seed in range(rounds(3, full=120)):
        try:
            publish(seed)
        except AssertionError as error:
            raise AssertionError(f"seed {seed}: {error}") from error
