"""When a driver looks for a successor."""

from __future__ import annotations

import pytest

from chandy.coordinator.execution.fence import Fence
from chandy.storage.checkpoints.catalog import Catalog
from chandy.storage.errors import FencedError

from ...builders import MemoryStore


@pytest.mark.parametrize("takeover_timeout", [0.0, 1.0, 2.0, 30.0])
def test_a_batch_begins_by_no_look_that_is_older_than_half_of_what_a_successor_waits(
    takeover_timeout: float,
) -> None:
    now = [100.0]
    catalog = Catalog(MemoryStore())
    fence = Fence(
        catalog,
        catalog.take_over("one", 0.0).generation,
        clock=lambda: now[0],
        trusts_look=takeover_timeout / 2,
        hold_lease=lambda: 0.0,
        on_fenced=lambda error: None,
    )
    fence.check()
    assert fence.next_look_in <= max(takeover_timeout / 4, 0.05)
    Catalog(catalog.store).take_over("another", 0.0)
    now[0] += takeover_timeout / 2 + 0.01
    with pytest.raises(FencedError):
        fence.check_for_batch()
