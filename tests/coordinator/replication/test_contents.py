"""A target has one form of a replica: no later life writes another one behind it."""

from __future__ import annotations

from pathlib import Path

import pytest

from chandy import ReplicaError
from chandy.coordinator.replication.contents import Contents, keep
from chandy.storage.backends.open import open_store
from chandy.storage.checkpoints.catalog import Catalog
from chandy.storage.checkpoints.layout import REPLICA
from chandy.storage.errors import DamagedError
from chandy.storage.store import Store

from ...builders import make_manifest


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return open_store(str(tmp_path / "p.replica.r"))


JSON = Contents("upsert", None)
AVRO = Contents("upsert", 7)
EXACT = Contents("upsert", None, 2)
OTHERS = [JSON, EXACT, AVRO, Contents("upsert", 8), Contents("debezium", None), Contents("debezium", 7)]


@pytest.mark.parametrize("other", OTHERS, ids=str)
def test_what_was_never_published_may_become_another_form(store: Store, other: Contents) -> None:
    keep(store, "r", AVRO)
    keep(store, "r", other)
    Catalog(store).commit(make_manifest(1))
    keep(store, "r", other)


@pytest.mark.parametrize("other", [one for one in OTHERS if one != AVRO], ids=str)
def test_what_was_published_stays_in_its_form(store: Store, other: Contents) -> None:
    keep(store, "r", AVRO)
    Catalog(store).commit(make_manifest(1))
    with pytest.raises(ReplicaError) as raised:
        keep(store, "r", other)
    assert f"format {AVRO}, which its target has" in str(raised.value)
    assert f"found format {other}" in str(raised.value)
    keep(store, "r", AVRO)


def test_a_replica_of_an_older_version_has_json_and_goes_on_with_it(store: Store) -> None:
    Catalog(store).commit(make_manifest(1))
    with pytest.raises(ReplicaError, match="with keys in Avro of schema 7"):
        keep(store, "r", AVRO)
    with pytest.raises(ReplicaError, match="exact texts"):
        keep(store, "r", EXACT)
    keep(store, "r", JSON)
    with pytest.raises(ReplicaError, match="'debezium'"):
        keep(store, "r", Contents("debezium", None))


@pytest.mark.parametrize("damaged", [b"{", b"{}", b'{"format": 7, "key_schema": null}', b"\xff"])
def test_a_damaged_record_is_named_and_not_taken_for_none(store: Store, damaged: bytes) -> None:
    store.write(REPLICA, damaged)
    with pytest.raises(DamagedError, match=r"'replica\.json' in .* is damaged"):
        keep(store, "r", AVRO)
    assert store.read(REPLICA) == damaged


def test_a_later_version_may_have_added_fields(store: Store) -> None:
    store.write(REPLICA, b'{"format": "upsert", "key_schema": 7, "value_schema": 8}')
    Catalog(store).commit(make_manifest(1))
    keep(store, "r", AVRO)
