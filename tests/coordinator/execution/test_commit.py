"""The commit of a checkpoint in stores that do not tell what became of a manifest."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from chandy.coordinator.execution.commit import commit_steps
from chandy.coordinator.execution.job_steps import JobSteps, Pause
from chandy.storage import ObjectExistsError
from chandy.storage.checkpoints.catalog import Catalog
from chandy.storage.checkpoints.layout import MANIFEST
from chandy.storage.checkpoints.manifest import CheckpointKind
from chandy.storage.errors import OutcomeUnknownError, StoreFailedError

from ...builders import MemoryStore, make_manifest

KINDS = pytest.mark.parametrize("kind", [CheckpointKind.PERIODIC, CheckpointKind.SAVEPOINT])


class Unsure(MemoryStore):
    """Fails each create of a manifest, as it is told."""

    def __init__(self, fails: list[type[StoreFailedError]], writes: bool = False) -> None:
        super().__init__()
        self.fails: Iterator[type[StoreFailedError]] = iter(fails)
        self.writes = writes

    def create(self, key: str, data: bytes) -> None:
        failure = next(self.fails, None) if key.endswith(MANIFEST) else None
        if failure is None or (self.writes and key not in self.objects):
            super().create(key, data)
        if failure is not None:
            raise failure(self.uri, key, "create", "no answer", transient=True)


def steps(store: Unsure, kind: CheckpointKind, is_closed: bool = False) -> JobSteps:
    catalog = Catalog(store)
    generation = catalog.take_over("driver", 1.0).generation
    manifest = make_manifest(generation=generation, kind=kind)
    return commit_steps(manifest, store.uri, catalog, lambda uri: store, lambda: is_closed)


@KINDS
@pytest.mark.parametrize("writes", [False, True])
def test_a_store_is_asked_again_until_it_tells_that_a_manifest_is_there(
    kind: CheckpointKind, writes: bool
) -> None:
    store = Unsure([OutcomeUnknownError, StoreFailedError, OutcomeUnknownError], writes)
    asked_again: list[object] = []

    def run() -> JobSteps:
        asked_again.append((yield from steps(store, kind)))

    assert sum(isinstance(step, Pause) for step in run()) == 3
    # A savepoint's folder is its own.
    assert asked_again == [kind is not CheckpointKind.SAVEPOINT]
    assert [key for key in store.objects if key.endswith(MANIFEST)]


@KINDS
def test_a_manifest_that_a_store_has_refused_is_not_asked_for_again(kind: CheckpointKind) -> None:
    with pytest.raises(StoreFailedError) as caught:
        list(steps(Unsure([StoreFailedError]), kind))
    assert not isinstance(caught.value, OutcomeUnknownError)


@KINDS
def test_nobody_knows_of_a_manifest_that_is_given_up(kind: CheckpointKind) -> None:
    with pytest.raises(OutcomeUnknownError):
        list(steps(Unsure([OutcomeUnknownError]), kind, is_closed=True))


@KINDS
def test_a_manifest_does_not_take_the_place_of_one_that_came_meanwhile(kind: CheckpointKind) -> None:
    store = Unsure([OutcomeUnknownError])
    left = steps(store, kind)
    while not isinstance(next(left), Pause):
        pass
    key = MANIFEST if kind is CheckpointKind.SAVEPOINT else f"checkpoints/1/{MANIFEST}"
    store.write(key, b"another's")
    with pytest.raises(ObjectExistsError):
        list(left)
    assert store.objects[key] == b"another's"
