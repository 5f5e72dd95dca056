"""Which completed checkpoints are kept, and what is deleted of the others."""

from __future__ import annotations

from chandy.coordinator.protocol.retained import RetainedCheckpoints
from chandy.storage.checkpoints.manifest import FileRef, Handle, Manifest

from ...builders import make_manifest


def checkpoint(id: int, *keys: str) -> Manifest:
    return make_manifest(id, shards=[Handle(tuple(FileRef(key, key, 3, "00") for key in keys))])


def test_what_only_dropped_checkpoints_have_is_deleted() -> None:
    retained = RetainedCheckpoints(limit=2)
    retained.add(checkpoint(1, "old", "shared"))
    retained.add(checkpoint(2, "shared"))
    assert retained.drop((), ()) is None
    retained.add(checkpoint(3, "new"))

    discard = retained.drop((), ())

    assert discard is not None
    assert [one.id for one in discard.dropped] == [1]
    assert [one.id for one in retained.manifests] == [2, 3]
    assert (retained.being_deleted(), retained.deletions) == ({"old"}, 1)
    assert retained.needs("shared")
    assert not retained.needs("old")
    retained.deleted((1,), ())
    assert (retained.being_deleted(), retained.deletions) == (frozenset(), 0)


def test_what_is_still_there_keeps_what_it_references_and_is_dropped_again() -> None:
    retained = RetainedCheckpoints(limit=1)
    retained.add(checkpoint(1, "old"))
    retained.add(checkpoint(2, "old", "new"))
    first = retained.drop((), ())
    assert first is not None
    retained.deleted((1,), first.dropped)
    assert retained.needs("old")
    retained.add(checkpoint(3, "new"))

    again = retained.drop((), ())

    assert again is not None
    assert [one.id for one in again.dropped] == [1, 2]


def test_what_a_pending_checkpoint_builds_on_stays() -> None:
    retained = RetainedCheckpoints(1, (checkpoint(1), checkpoint(2)), base=2)
    retained.add(checkpoint(3))

    discard = retained.drop([1], ())

    assert discard is not None
    assert [one.id for one in discard.dropped] == [2]
    assert [one.id for one in retained.manifests] == [1, 3]


def test_what_the_state_grew_from_stays_although_newer_ones_are_kept() -> None:
    retained = RetainedCheckpoints(1, (checkpoint(1), checkpoint(2)), base=1)

    assert retained.drop((), ()) is None
    assert retained.base_manifest is retained.find(1)
    assert retained.latest is retained.find(2)


def test_nothing_is_deleted_that_a_manifest_names_which_may_have_been_written() -> None:
    retained = RetainedCheckpoints(limit=1)
    retained.add(checkpoint(1, "shared", "old"))
    retained.leave_undecided(checkpoint(2, "shared"))
    retained.add(checkpoint(3, "new"))

    assert retained.drop((), ()) is not None
    assert retained.being_deleted() == {"old"}
    assert [retained.may_exist(id) for id in (1, 2, 3)] == [False, True, True]


def test_a_base_has_the_batches_of_its_cuts() -> None:
    retained = RetainedCheckpoints(limit=1)
    assert retained.base_has({"delays": -1}), "there is nothing to have"
    assert not retained.base_has({"delays": 0})
    retained.add(checkpoint(1))

    assert retained.base_has({"delays": 41})
    assert not retained.base_has({"delays": 42})
    assert retained.base_with({"delays": 41}) is retained.latest
    assert retained.base_with({"delays": 41, "other": 0}) is None
