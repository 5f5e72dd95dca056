"""The folders of a pipeline's lives on a store: whose are deleted, and whose are not."""

from __future__ import annotations

from pathlib import Path
from typing import Any, cast

import attrs
import pytest

from chandy.coordinator.errors import WorkingDirectoryError
from chandy.coordinator.restore.remote_directories import RemoteDirectories, folder_name
from chandy.coordinator.spark.hadoop_folder import HadoopFolder
from chandy.storage.backends.local import LocalStore
from chandy.storage.checkpoints.catalog import Catalog
from chandy.storage.checkpoints.fencing import Claim
from chandy.storage.checkpoints.layout import generation_key


@attrs.define
class MemoryFolder:
    """The part of a ``HadoopFolder`` that is asked here, in memory: who may delete what is decided by names alone."""

    uri: str
    files: set[str]
    broken: bool = False

    def below(self, name: str) -> MemoryFolder:
        return MemoryFolder(f"{self.uri}/{name}", self.files, self.broken)

    def names(self) -> list[str]:
        if self.broken:
            raise WorkingDirectoryError("cannot list", "an answer", "none")
        return sorted({name.split("/")[1] for name in self.files})

    def delete(self, name: str = "") -> None:
        if self.broken:
            raise WorkingDirectoryError("cannot delete", "an answer", "none")
        prefix = f"{self.uri}/{name}" if name else self.uri
        self.files.difference_update({one for one in self.files if one.startswith(f"{prefix}/")})


@pytest.fixture
def catalog(tmp_path: Path) -> Catalog:
    return Catalog(LocalStore(tmp_path / "store"))


def begin(folder: MemoryFolder, catalog: Catalog, claim: Claim, pipeline: str = "p") -> RemoteDirectories:
    return RemoteDirectories.begin(cast(HadoopFolder, folder), pipeline, catalog, claim)


def lives(catalog: Catalog, count: int) -> list[Claim]:
    return [catalog.claim("me", 0.0) for _ in range(count)]


def files_of(*claims: Claim, pipeline: str = "p") -> set[str]:
    return {f"w/{folder_name(pipeline, claim)}/1-q/checkpoint/metadata" for claim in claims}


def test_a_life_deletes_what_those_before_have_left_and_nothing_of_later_ones(catalog: Catalog) -> None:
    first, second, third, fourth = lives(catalog, 4)
    folder = MemoryFolder("w", files_of(first, second, third, fourth))
    begin(folder, catalog, third)
    assert folder.files == files_of(third, fourth)


def test_what_others_have_there_stays(catalog: Catalog, tmp_path: Path) -> None:
    elsewhere = Catalog(LocalStore(tmp_path / "other storage, with the same generations"))
    theirs, own = lives(elsewhere, 2), lives(catalog, 2)
    others = files_of(*theirs) | files_of(own[0], pipeline="p-1") | {"w/p-1/file", "w/somebody's/file"}
    folder = MemoryFolder("w", others | files_of(own[0]))
    begin(folder, catalog, own[1])
    assert folder.files == others


def test_records_that_are_gone_or_damaged_are_passed_over(catalog: Catalog) -> None:
    claims = lives(catalog, 4)
    catalog.store.delete(generation_key(1))
    catalog.store.write(generation_key(2), b"{")
    folder = MemoryFolder("w", files_of(*claims))
    begin(folder, catalog, claims[3])
    assert folder.files == files_of(claims[0], claims[1], claims[3])


def test_a_store_that_is_away_holds_nobody_up(catalog: Catalog) -> None:
    first, second = lives(catalog, 2)
    folder = MemoryFolder("w", files_of(first), broken=True)
    made = begin(folder, catalog, second)
    made.remove(Path("work/1-q/checkpoint"))
    made.close()
    assert folder.files == files_of(first)


def test_the_end_of_a_run_and_of_a_life_delete_their_own(catalog: Catalog) -> None:
    (own,) = lives(catalog, 1)
    name = folder_name("p", own)
    folder = MemoryFolder("w", {f"w/{name}/1-q/checkpoint/a", f"w/{name}/2-q/checkpoint/b", "w/other/c"})
    made = begin(folder, catalog, own)
    directory = Path("/local/1-q/checkpoint")
    mirror: Any = made.mirror(directory)
    assert (mirror.location, mirror.local) == (f"w/{name}/1-q/checkpoint", directory)
    made.remove(directory)
    assert folder.files == {f"w/{name}/2-q/checkpoint/b", "w/other/c"}
    made.close()
    assert folder.files == {"w/other/c"}
