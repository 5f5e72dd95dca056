"""What the tests of the executor and its parts share."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from chandy.coordinator.execution import checkpoint_jobs

from .one_life import Elsewhere, HeldStore, Setup


@pytest.fixture
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Elsewhere]:
    """Makes stores for savepoints, by what they do not answer."""
    made: dict[str, HeldStore] = {}
    right = checkpoint_jobs.open_store
    monkeypatch.setattr(checkpoint_jobs, "open_store", lambda uri: made.get(uri) or right(uri))

    def make_store(*held: str) -> HeldStore:
        store = HeldStore(tmp_path / f"elsewhere{len(made)}", *held)
        made[store.uri] = store
        return store

    yield make_store
    for store in made.values():
        store.let_go.set()


@pytest.fixture
def make(tmp_path: Path) -> Iterator[Callable[..., Setup]]:
    made: list[Setup] = []

    def make_setup(**config: Any) -> Setup:
        made.append(Setup(tmp_path, **config))
        return made[-1]

    yield make_setup
    for setup in made:
        setup.close()


@pytest.fixture
def setup(make: Callable[..., Setup]) -> Setup:
    return make()
