"""What the tests of the protocol share."""

from __future__ import annotations

import logging

import pytest

from .bench import Bench


@pytest.fixture(autouse=True)
def _no_log(monkeypatch: pytest.MonkeyPatch) -> None:
    """What fails in interleavings is told so often that it would cost more than the rest."""
    monkeypatch.setattr(logging.root.manager, "disable", logging.CRITICAL)


@pytest.fixture
def bench() -> Bench:
    return Bench()
