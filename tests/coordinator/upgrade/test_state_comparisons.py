"""When a shadow compares state: also if its leader is faster, and not while the leader waits for nothing else."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import attrs
import pytest

from chandy.coordinator.upgrade import follower
from chandy.coordinator.upgrade.follower import Follower
from chandy.coordinator.upgrade.following import Stage
from chandy.coordinator.upgrade.leader import FollowedPipeline
from chandy.coordinator.upgrade.rerun import BatchOutcome
from chandy.coordinator.upgrade.shadow import Shadow
from chandy.storage.checkpoints.batch_record import NOTHING, BatchRecord, BatchRecords
from chandy.storage.checkpoints.catalog import Catalog
from chandy.storage.checkpoints.locate import Located
from chandy.storage.checkpoints.manifest import QueryRecord
from chandy.storage.checkpoints.pins import pinned
from chandy.storage.ids import BatchId, CheckpointId

from ...builders import NO_FILES, MemoryStore, make_manifest

QUERY = "delays"


class Leader(FollowedPipeline):
    """Completes a checkpoint behind each batch, and keeps the newest two beside those that are pinned."""

    def __init__(self, outputs: bool = True) -> None:
        super().__init__(Catalog(MemoryStore()))
        self.outputs = {"sink": NOTHING} if outputs else {}
        self.there: dict[int, Stage] = {}
        self.batches: list[BatchRecord] = []
        self.run()

    def run(self) -> None:
        batch = BatchId(len(self.batches))
        self.batches.append(BatchRecord(batch, f"planned as batch {batch}", outputs=self.outputs))
        records = BatchRecords(BatchId(max(-1, batch - 2)), tuple(self.batches[-2:]))
        store = self.catalog.store
        self.catalog.commit(make_manifest(batch, queries=(QueryRecord(QUERY, batch, NO_FILES),)))
        self.there[batch] = Stage(CheckpointId(batch), {QUERY: batch}, {QUERY: records})
        kept = {batch, batch - 1, *pinned(store)}
        for id in [id for id in self.there if id not in kept]:
            del self.there[id]
            store.delete_all(store.list(f"checkpoints/{id}/"))

    def stages(self) -> list[Stage]:
        return list(self.there.values())

    def located(self, checkpoint: CheckpointId) -> Located:
        return Located(self.catalog.read(checkpoint), self.catalog.store)


@attrs.define
class Engine:
    """Runs each batch while the leader runs others, and what has become of them is seen."""

    leader: Leader
    meanwhile: int
    until: int
    """Ends behind this batch."""
    look: Callable[[], object] = lambda: None
    ran: list[int] = attrs.field(factory=list)
    cuts: list[int] = attrs.field(factory=list)

    @property
    def start(self) -> Located:
        return self.leader.located(CheckpointId(0))

    def await_queries(self, names: Sequence[str]) -> None:
        pass

    def restore(self, located: Located) -> None:
        pass

    def run(self, query: str, record: BatchRecord) -> BatchOutcome:
        self.ran.append(record.batch)
        for _ in range(self.meanwhile):
            self.leader.run()
        self.look()
        return BatchOutcome(record.outputs)

    def checkpoint(self) -> Located:
        self.cuts.append(self.ran[-1])
        return Located(make_manifest(self.ran[-1] + 1000), self.leader.catalog.store)

    def rest(self, seconds: float) -> bool:
        return bool(self.ran) and self.ran[-1] >= self.until


@pytest.fixture
def compared(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The checkpoints at which state was compared."""
    found: list[int] = []

    def compare(theirs: Located, own: Located, **_: object) -> Iterator[object]:
        found.append(theirs.manifest.id)
        yield from ()

    monkeypatch.setattr(follower, "compare", compare)
    return found


def follow(engine: Engine, *, hurried_after: int = 1000) -> Follower:
    made = Follower.of(Shadow(), "flights", engine.leader, lambda _: iter(()), "life")
    engine.look = made.look
    made.is_hurried = lambda: len(engine.ran) > hurried_after
    made.conduct(engine)
    return made


def test_a_shadow_that_is_slower_than_its_leader_compares_state_all_the_same(compared: list[int]) -> None:
    leader = Leader()
    leader.run()
    engine = Engine(leader, meanwhile=3, until=100)
    found = follow(engine)
    assert engine.ran == list(range(1, 101)), "each batch"
    assert len(compared) >= 3, "it keeps a checkpoint that it has still to come to"
    assert found.verdict.states == len(compared) == len(set(compared))


@pytest.mark.parametrize("outputs", [True, False])
def test_a_leader_that_waits_does_not_wait_for_a_comparison_of_state_if_all_output_was_compared(
    compared: list[int], outputs: bool
) -> None:
    leader = Leader(outputs)
    leader.run()
    engine = Engine(leader, meanwhile=1, until=9)
    follow(engine, hurried_after=4)
    assert engine.cuts[:8] == list(range(1, 9)), "it needs a checkpoint of its own at each cut"
    assert compared == engine.cuts[: 4 if outputs else None]
