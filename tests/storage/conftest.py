"""Values and stores that the tests of storage share."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path

import pytest

from chandy.storage import CheckpointKind, Handle, LocalStore, Manifest, OperatorRecord, QueryRecord

MakeManifest = Callable[..., Manifest]


@pytest.fixture
def store(tmp_path: Path) -> LocalStore:
    return LocalStore(tmp_path / "store")


@pytest.fixture(scope="session")
def make_manifest() -> MakeManifest:
    def make(
        id: int = 1,
        generation: int = 1,
        shards: Iterable[Handle | None] = (),
        files: Handle = Handle(),  # noqa: B008
        new_bytes: int = 0,
    ) -> Manifest:
        return Manifest(
            id=id,
            kind=CheckpointKind.PERIODIC,
            pipeline="flights",
            generation=generation,
            triggered_at=1000.0,
            completed_at=1000.5,
            queries=(QueryRecord("delays", 41, files),),
            operators=(OperatorRecord("totals", "delays", "{}", {"sum": "{}"}, tuple(shards)),),
            new_bytes=new_bytes,
            versions={"chandy": "0.1.0"},
        )

    return make
