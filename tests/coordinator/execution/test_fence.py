"""A driver that may have a successor begins no batch."""

from __future__ import annotations

import pytest

from chandy.state.rpc.messages import (
    AskBatch,
    BatchTimes,
)
from chandy.storage.checkpoints.catalog import Catalog
from chandy.storage.errors import (
    FencedError,
    StoreFailedError,
)

from ...waiting import eventually
from .one_life import Setup


@pytest.mark.parametrize("later", [1.0, 60.0])
def test_a_driver_that_has_slept_begins_no_batch_under_a_successor(setup: Setup, later: float) -> None:
    """Frozen, or cut off from its store: meanwhile it may have been taken for dead."""
    setup.catalog.take_over("another driver", 2000.0)
    setup.now += later
    if later > setup.executor.fence.trusts_look:
        with pytest.raises(FencedError):
            setup.executor.hosts.ask(AskBatch("host", "id", 5))
        eventually(lambda: [type(one) for one in setup.failures] == [FencedError])
    else:
        # A read for each batch would cost every batch, and tell of a successor hardly sooner.
        assert setup.executor.hosts.ask(AskBatch("host", "id", 5)).times == BatchTimes(5000, 50, 40)


def test_a_driver_that_cannot_look_for_a_successor_begins_no_batch(
    setup: Setup, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(self: Catalog, generation: int) -> None:
        raise StoreFailedError(self.store.uri, "generations/2.json", "read", "away", transient=True)

    with monkeypatch.context() as cut_off:
        cut_off.setattr(Catalog, "check_not_fenced", fails)
        setup.now += 60.0
        with pytest.raises(StoreFailedError):
            setup.executor.hosts.ask(AskBatch("host", "id", 5))
    assert setup.executor.hosts.ask(AskBatch("host", "id", 5)).times == BatchTimes(5000, 50, 40)
    assert not setup.failures
