"""Which small files stay in the packs of earlier checkpoints."""

from __future__ import annotations

from chandy.storage.checkpoints.manifest import FileRef
from chandy.storage.checkpoints.packs import packs_to_keep


def file(pack: str, size: int, offset: int = 0) -> FileRef:
    return FileRef("1.sst", pack, size, "0" * 64, offset)


def test_a_few_packs_are_kept() -> None:
    assert packs_to_keep([]) == frozenset()
    assert packs_to_keep([file("a", 1), file("b", 5), file("c", 1)], most=4) == {"a", "b", "c"}


def test_of_many_packs_those_with_the_most_bytes_are_kept() -> None:
    files = [file("a", 3), file("b", 2), file("b", 2, offset=2), file("c", 1), file("d", 9)]
    assert packs_to_keep(files, most=3) == {"b", "d"}


def test_bytes_that_several_files_share_count_once() -> None:
    assert packs_to_keep([file("a", 3), file("a", 3), file("a", 3), file("b", 4)], most=2) == {"b"}
