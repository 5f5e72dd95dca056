"""What one that runs batches again keeps, and that its end is not hindered by a store."""

from __future__ import annotations

import pytest
from typing_extensions import override

from chandy.coordinator.upgrade.own_pins import OwnPins
from chandy.storage.checkpoints.catalog import Catalog
from chandy.storage.checkpoints.layout import PINS
from chandy.storage.checkpoints.pins import pins
from chandy.storage.errors import ObjectMissingError, StoreFailedError
from chandy.storage.ids import CheckpointId

from ...builders import MemoryStore, make_manifest


class Stuck(MemoryStore):
    """A store that deletes no pin."""

    @override
    def delete(self, key: str) -> None:
        if key.startswith(PINS):
            raise StoreFailedError(self.uri, key, "delete", "access denied")
        super().delete(key)


def held(store: MemoryStore) -> OwnPins:
    found = OwnPins(store, "shadow-next")
    for id in (1, 2, 3):
        Catalog(store).commit(make_manifest(id))
        assert found.hold(CheckpointId(id)).id == id
    OwnPins(store, "another").hold(CheckpointId(1))
    return found


def test_what_is_held_is_kept_until_it_is_released_and_that_of_others_stays() -> None:
    found = held(store := MemoryStore())
    found.release_before(CheckpointId(3), but=CheckpointId(1))
    assert pins(store) == {"shadow-next": (1, 3), "another": (1,)}
    found.release_before(CheckpointId(3))
    assert pins(store)["shadow-next"] == (3,)
    found.release()
    found.release()
    assert pins(store) == {"another": (1,)}


def test_what_is_gone_is_not_held() -> None:
    store = MemoryStore()
    with pytest.raises(ObjectMissingError):
        OwnPins(store, "shadow-next").hold(CheckpointId(7))
    assert not pins(store)


def test_a_pin_that_cannot_be_released_is_left_and_said(caplog: pytest.LogCaptureFixture) -> None:
    found = held(store := Stuck())
    found.release()
    assert pins(store)["shadow-next"] == (1, 2, 3)
    assert "`chandy readers` can release it" in caplog.text
