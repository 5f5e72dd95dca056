"""A checkpoint is found by where it is, whatever of the three places the URI names."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from chandy.storage import DamagedError, NothingHereError
from chandy.storage.backends.local import LocalStore
from chandy.storage.checkpoints.catalog import Catalog
from chandy.storage.checkpoints.layout import (
    replica_pipeline,
    replicated_by,
    savepoint_key,
    validate_pipeline,
)
from chandy.storage.checkpoints.locate import find, locate, pipeline, pipelines, savepoint, savepoints
from chandy.storage.checkpoints.manifest import CheckpointKind
from chandy.storage.checkpoints.savepoint import claim_savepoint, commit_savepoint
from chandy.storage.errors import InvalidNameError

from ...builders import make_manifest
from ...effort import examples


@pytest.fixture
def storage(tmp_path: Path) -> Path:
    """A storage with the pipeline ``p``, its checkpoints 1 and 2, and its savepoint 3 beside it."""
    catalog = Catalog(LocalStore(tmp_path / "store" / "p"))
    catalog.take_over("driver", 1.0)
    for id in (1, 2):
        catalog.commit(make_manifest(id))
    place = LocalStore(tmp_path / "save")
    claim_savepoint(place, "driver")
    commit_savepoint(place, make_manifest(3, kind=CheckpointKind.SAVEPOINT))
    catalog.store.write(savepoint_key(3), place.uri.encode())
    return tmp_path / "store"


def test_a_pipeline_is_found_in_its_folder_and_in_a_storage_that_has_only_it(storage: Path) -> None:
    for uri in (storage, storage / "p", (storage / "p").as_uri()):
        found = locate(str(uri))
        assert (found.manifest.id, found.store.uri) == (2, (storage / "p").as_uri())
        assert locate(str(uri), 1).manifest.id == locate(str(uri), "1").manifest.id == 1
        assert list(pipelines(str(uri))) == ["p"]


def test_a_savepoint_is_found_by_its_place_and_by_its_id_in_the_pipeline(storage: Path) -> None:
    place = storage.parent / "save"
    for uri, checkpoint in (
        (place, "latest"),
        (storage, 3),
        (storage / "p", str(place)),
        (place, place.as_uri()),
    ):
        found = locate(str(uri), checkpoint)
        assert (found.manifest.id, found.store.uri) == (3, place.as_uri())
    assert savepoint(str(storage / "p")) is None


def test_of_several_pipelines_one_has_to_be_named(storage: Path) -> None:
    Catalog(LocalStore(storage / "other")).take_over("driver", 1.0)
    with pytest.raises(NothingHereError, match="other, p"):
        locate(str(storage))
    assert locate(str(storage / "p")).manifest.id == 2
    assert list(pipelines(str(storage), "p")) == ["p"]
    with pytest.raises(NothingHereError, match=r"'q'.*other, p"):
        pipelines(str(storage), "q")


def test_a_pipeline_is_the_only_one_although_its_state_is_replicated(storage: Path) -> None:
    Catalog(LocalStore(storage / replica_pipeline("p", "letters"))).take_over("driver", 1.0)
    assert locate(str(storage)).store.uri == (storage / "p").as_uri()
    assert pipeline(str(storage), "p.replica.letters").uri == (storage / "p.replica.letters").as_uri()
    # That of another one is a pipeline like any.
    Catalog(LocalStore(storage / replica_pipeline("gone", "totals"))).take_over("driver", 1.0)
    with pytest.raises(NothingHereError, match=r"found gone\.replica\.totals, p\b"):
        locate(str(storage))


@settings(max_examples=examples(80))
@given(
    st.tuples(*[st.lists(st.sampled_from(["a", "replica", ""]), min_size=1, max_size=4).map(".".join)] * 4)
)
def test_no_two_pipelines_and_replicas_share_a_name(names: tuple[str, str, str, str]) -> None:
    pipelines_ = [name for name in names[:2] if is_usable(name)]
    replicas = [(one, name) for one in pipelines_ for name in names[2:]]
    taken = [*pipelines_, *(replica_pipeline(*one) for one in replicas)]
    assert len(set(taken)) == len({*pipelines_, *replicas})
    assert [replicated_by(name) for name in taken] == [None] * len(pipelines_) + [one for one, _ in replicas]


def is_usable(name: str) -> bool:
    try:
        return validate_pipeline(name) == name
    except InvalidNameError:
        return False


def test_a_pipeline_is_not_called_as_a_replica_and_a_replica_may_be() -> None:
    with pytest.raises(InvalidNameError, match=r"a name without '\.replica\.'"):
        validate_pipeline("a.replica.b")
    name = replica_pipeline("a", "b")
    assert validate_pipeline(name) == "a.replica.b"
    # PySpark 4.1 takes no subclass of a text.
    assert type(validate_pipeline(name)) is str


def test_what_is_not_there_is_named(storage: Path) -> None:
    with pytest.raises(NothingHereError, match=r"no checkpoint 7 .*found 1, 2"):
        locate(str(storage), 7)
    with pytest.raises(NothingHereError, match="no savepoint"):
        locate(str(storage), str(storage))
    with pytest.raises(NothingHereError, match=r"no checkpoints in .*found no pipeline"):
        locate(str(storage.parent / "nowhere"))
    Catalog(LocalStore(storage.parent / "empty")).take_over("driver", 1.0)
    with pytest.raises(NothingHereError, match="has no checkpoint"):
        locate(str(storage.parent / "empty"))


def test_a_checkpoint_of_a_coordinator_that_was_replaced_is_not_there(storage: Path) -> None:
    catalog = Catalog(LocalStore(storage / "p"))
    catalog.take_over("second", 2.0)
    catalog.commit(make_manifest(9, generation=1))
    assert locate(str(storage)).manifest.id == 2
    with pytest.raises(NothingHereError, match=r"checkpoint 9 .*generation 1, which generation 2 \(second\)"):
        locate(str(storage), 9)


def test_a_savepoint_that_was_replaced_at_its_place_is_not_taken_for_the_old_one(storage: Path) -> None:
    LocalStore(storage / "p").write(savepoint_key(4), (storage.parent / "save").as_uri().encode())
    with pytest.raises(NothingHereError, match="checkpoint 4"):
        locate(str(storage), 4)


def test_a_damaged_manifest_is_named_and_hides_no_other_checkpoint(storage: Path) -> None:
    catalog = Catalog(LocalStore(storage / "p"))
    catalog.store.write("checkpoints/2/manifest.json", b"{}")
    assert find(catalog, 1).manifest.id == 1
    assert find(catalog, 3).manifest.id == 3
    for checkpoint in (2, "latest"):
        with pytest.raises(DamagedError, match="checkpoints/2/manifest"):
            find(catalog, checkpoint)


def test_what_is_neither_latest_nor_an_id_nor_a_uri_is_refused_with_what_may_be_said(storage: Path) -> None:
    with pytest.raises(NothingHereError, match=r"'lates' .*\"latest\", the id of a checkpoint or the URI"):
        find(Catalog(LocalStore(storage / "p")), "lates")


def test_the_pipeline_may_be_named(storage: Path) -> None:
    Catalog(LocalStore(storage / "other")).take_over("driver", 1.0)
    assert locate(str(storage), name="p").manifest.id == 2
    assert locate(str(storage), 1, "p").manifest.id == 1


def test_a_savepoint_that_expires_while_one_looks_is_left_out(
    storage: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = LocalStore(storage / "p")
    store.write(savepoint_key(4), b"file:///elsewhere")
    listed = LocalStore.list

    def list_and_expire(given: LocalStore, prefix: str = "") -> list[str]:
        found = listed(given, prefix)
        given.delete(savepoint_key(4))
        return found

    monkeypatch.setattr(LocalStore, "list", list_and_expire)
    assert savepoints(store) == {3: (storage.parent / "save").as_uri()}
