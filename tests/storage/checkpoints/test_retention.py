"""What retention drops."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from chandy.storage.checkpoints.manifest import FileRef, Handle, Manifest
from chandy.storage.checkpoints.retention import deletable, dropped

from ...builders import make_manifest

MakeManifest = Callable[..., Manifest]

ids = st.sets(st.integers(1, 40))


@given(completed=ids, retained=st.integers(1, 10))
def test_exactly_the_newest_remain_and_exactly_the_others_are_dropped(
    completed: set[int], retained: int
) -> None:
    gone = set(dropped(completed, retained))
    kept = completed - gone
    assert len(kept) == min(retained, len(completed))
    assert all(old < new for old in gone for new in kept)


@given(completed=ids, retained=st.integers(1, 10), bases=ids)
def test_what_a_pending_checkpoint_builds_on_remains(
    completed: set[int], retained: int, bases: set[int]
) -> None:
    assert set(dropped(completed, retained, bases)) == set(dropped(completed, retained)) - bases


@given(verified=ids, unverified=ids, retained=st.integers(1, 5))
def test_an_unverified_checkpoint_takes_no_verified_ones_place(
    verified: set[int], unverified: set[int], retained: int
) -> None:
    unverified -= verified
    gone = set(dropped(verified, retained, (), unverified))
    kept = (verified | unverified) - gone
    assert kept & verified == verified - set(dropped(verified, retained))
    assert len(kept) <= 2 * retained
    assert max(kept, default=0) == max(verified | unverified, default=0), "the latest is the latest"
    # In no case fewer than if all were alike.
    assert not gone - set(dropped(verified | unverified, retained))


@pytest.mark.parametrize(
    ("verified", "unverified", "gone"),
    [
        # A crash loop: the bound.
        ([1, 2, 3], [4, 5, 6, 7], (4,)),
        # The verified go on after it.
        ([1, 2, 3, 8], [5, 6, 7], (1,)),
        ([3, 8, 9, 10], [5, 6, 7], (3, 5, 6, 7)),
        # Not one is known to be whole.
        ([], [1, 2, 3, 4], (1,)),
        ([3], [1, 2], ()),
    ],
)
def test_unverified_checkpoints_are_kept_besides_while_they_are_newer(
    verified: list[int], unverified: list[int], gone: tuple[int, ...]
) -> None:
    assert dropped(verified, 3, (), unverified) == gone


def test_the_newest_is_kept_however_little_is_retained() -> None:
    # Savepoints are not in the list, so they neither push the newest out nor are they dropped.
    assert dropped([1, 3], 1) == (1,)
    with pytest.raises(ValueError, match="at least 1"):
        dropped([1, 3], 0)


def files(*keys: str) -> Handle:
    return Handle(tuple(FileRef(key, key, 1, "ab") for key in keys))


def test_only_objects_that_no_kept_checkpoint_needs_are_deletable() -> None:
    one = make_manifest(1, shards=[files("shared/a", "shared/b", "checkpoints/1/h.pack"), None])
    two = make_manifest(2, shards=[files("shared/b", "shared/c"), files("checkpoints/1/h.pack")])
    three = make_manifest(3, shards=[files("shared/c", "shared/d")], files=files("checkpoints/3/q.pack"))
    assert deletable([one], [two, three]) == {"shared/a"}
    assert deletable([one, two], [three]) == {"shared/a", "shared/b", "checkpoints/1/h.pack"}
    assert deletable([two], [one, three]) == frozenset()
    assert deletable([], [three]) == frozenset()


@given(st.lists(st.sets(st.sampled_from("abcdef")), max_size=6), st.integers(1, 4))
def test_nothing_that_a_kept_checkpoint_references_is_ever_deletable(
    contents: list[set[str]], retained: int
) -> None:
    manifests = {id: make_manifest(id, shards=[files(*keys)]) for id, keys in enumerate(contents, 1)}
    gone = dropped(manifests, retained)
    kept = [manifest for id, manifest in manifests.items() if id not in gone]
    deleted = deletable([manifests[id] for id in gone], kept)
    assert not any(deleted & manifest.keys() for manifest in kept)
    everything = frozenset[str]().union(*(manifest.keys() for manifest in manifests.values()))
    needed = frozenset[str]().union(*(manifest.keys() for manifest in kept))
    assert everything - deleted == needed
