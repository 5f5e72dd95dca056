"""What a shadow reads of its leader."""

from __future__ import annotations

import pytest

from chandy.coordinator.upgrade.leader import FollowedPipeline
from chandy.storage.checkpoints.catalog import Catalog
from chandy.storage.errors import ObjectMissingError
from chandy.storage.ids import CheckpointId

from ...builders import MemoryStore


def test_a_checkpoint_that_retention_has_dropped_since_is_missing_like_any_object() -> None:
    followed = FollowedPipeline(Catalog(MemoryStore()))
    assert followed.stages() == []
    with pytest.raises(ObjectMissingError, match=r"checkpoints/7/manifest\.json"):
        followed.located(CheckpointId(7))
