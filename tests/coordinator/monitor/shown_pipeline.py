"""A pipeline in the situations whose pages are looked at, with figures like those of a real one."""

from __future__ import annotations

import math
import random
from collections.abc import Callable
from typing import Final

import attrs

from chandy.coordinator.assigned_shard import AssignedShard
from chandy.coordinator.monitor.activity import QueryActivity, SourceActivity
from chandy.coordinator.monitor.facts import Facts, Home, QueryFacts, Unpublished
from chandy.coordinator.monitor.state_sizes import OperatorSize
from chandy.coordinator.monitor.trends import Measured, Trends
from chandy.coordinator.protocol.life import LifePhase, QueryPhase
from chandy.coordinator.protocol.reasons import Reason
from chandy.coordinator.protocol.statistics import History, ShardStatistics, Statistics
from chandy.coordinator.protocol.totals import PhaseSeconds
from chandy.coordinator.recovery.metrics import RecoveryMetrics
from chandy.state.rpc.messages import DiskSpace
from chandy.state.rpc.metrics import OperatorMetrics
from chandy.storage.checkpoints.journal import JournalEntry
from chandy.storage.checkpoints.manifest import ChannelRecord, CheckpointKind, UnreadFiles

from .known_facts import FACTS
from .known_pipeline import KnownPipeline

NOW: Final = 1_795_780_000.0
EVIL: Final = "<script>alert(1)</script>" + "x" * 300
LOST: Final = "the pipeline's state hosts no longer have its state: state host fbc21b942f20 on node-2 is gone"
REFUSED: Final = "could not connect to server: Connection refused (postgres.example.com:5432)"

BUSY: Final = attrs.evolve(
    FACTS,
    generation=4,
    now=NOW,
    began=NOW - 86_500,
    last_completed_at=NOW - 4,
    size=482_000_000,
    restored=1,
    checkpoints_in_progress=0,
    checkpoints_queued=0,
    operators={
        "by-customer": OperatorSize("totals", 431_000_000, 31_000_000, 1_290_000),
        "sessions": OperatorSize("sessions", 51_000_000, 4_100_000),
    },
    queries={
        "totals": QueryFacts(
            QueryPhase.RUNNING,
            9_313,
            "exactly once: the transactional sink publishes with a checkpoint",
            operators=("by-customer",),
            activity=QueryActivity(
                9_300,
                20_000_000,
                8_000.0,
                24_513.0,
                1_830.0,
                NOW - 12,
                (
                    SourceActivity("KafkaV2[Subscribe[orders]]", 21_013.0, 1_830.0),
                    SourceActivity("FileStreamSource[hdfs://store/returns]", 3_500.0),
                ),
                "TransactionalSink[postgres]",
                0.83,
            ),
        ),
        "sessions": QueryFacts(
            QueryPhase.RUNNING,
            9_310,
            "at least once: the sink does not know which batches it has",
            operators=("sessions",),
            reads=("totals",),
            activity=QueryActivity(
                9_300,
                20_000_000,
                8_000.0,
                24_101.0,
                2_212.0,
                NOW - 12,
                (SourceActivity("KafkaV2[Subscribe[totals]]", 24_101.0, 2_212.0),),
                "KafkaTable[sessions]",
                0.79,
            ),
        ),
    },
    hosts={"node-1": 2, "node-2": 2, "node-3": 2},
    disks={"node-1": DiskSpace(81 << 30, 100 << 30), "node-2": DiskSpace(7 << 30, 100 << 30)},
    shards={"node-1": 11, "node-2": 11, "node-3": 10},
    shards_unassigned=0,
    shards_moving=0,
    shards_with_standby=32,
    unpublished={},
    home=Home(
        storage="s3://warehouse/chandy/orders",
        machine="node-1",
        pid=41_713,
        application="application_1795693500000_0042",
        spark_ui="http://node-1:4040",
    ),
    channels=(ChannelRecord("totals", "files", "sessions", "totals", 39, 120, UnreadFiles(2, 300, 12)),),
    work={
        "by-customer": OperatorMetrics(
            tasks=1,
            rows=20_113_000,
            seconds=900.0,
            input_seconds=210.0,
            state_seconds=240.0,
            output_seconds=40.0,
        ),
        "sessions": OperatorMetrics(
            tasks=1,
            rows=20_101_000,
            late_rows=113,
            seconds=700.0,
            input_seconds=250.0,
            state_seconds=150.0,
            output_seconds=80.0,
        ),
    },
)


def trends(*, behind: float = 2_000.0, grows: float = 0.0, rows_until: float = NOW) -> Trends:
    """A day of batches and checkpoints, the first of which took long.

    Args:
        behind: by how many offsets the pipeline was behind an hour ago.
        grows: by how many more offsets it is each minute since.
        rows_until: when the last batch was.
    """
    drawn, found = random.Random(3), Trends()
    for minute in range(24 * 60, 1, -1):
        at = NOW - 60 * minute + 30
        batches = Measured(
            batches=60,
            rows_in=round(24_500 * 60 * (1 + 0.2 * math.sin(minute / 90)) * drawn.uniform(0.95, 1.05)),
            rows_out=round(9_500 * 60 * drawn.uniform(0.95, 1.05)),
            batch_seconds=60 * drawn.uniform(0.7, 0.95),
            behind=behind * drawn.uniform(0.7, 1.3) + grows * max(0, 60 - minute),
        )
        parts = PhaseSeconds(0.06, 3 * drawn.uniform(0.8, 1.4), 0.2)
        if minute == 55:
            parts = PhaseSeconds(0.1, 90.0, 0.5)
        taken = Measured(
            checkpoints=6,
            checkpoint_seconds=sum(attrs.astuple(parts)),
            phases=parts,
            size=482_000_000 - 90_000 * minute,
            new_bytes=round(54_000_000 * drawn.uniform(0.8, 1.2)),
        )
        if at <= rows_until:
            found = found.plus(at, batches + taken)
    return found


def shards(count: int) -> tuple[AssignedShard, ...]:
    """Shards of two operators, a few of them much larger than the others."""
    drawn = random.Random(1)
    return tuple(
        AssignedShard(
            query,
            uid,
            shard,
            f"node-{shard % 3 + 1}",
            "1",
            1,
            round(27_000_000 * drawn.uniform(0.6, 1.1) * (2.2 if drawn.random() < 0.05 else 1)),
        )
        for query, uid in (("totals", "by-customer"), ("sessions", "sessions"))
        for shard in range(count)
    )


def checkpoints(failed: int = 0) -> Statistics:
    """Twenty checkpoints, of which the last but some have failed."""
    drawn, history = random.Random(2), History()
    for number in range(8_620, 8_640):
        begun = NOW - 10 * (8_640 - number) + 4
        history.started(number, CheckpointKind.PERIODIC, begun)
        parts = PhaseSeconds(0.01, drawn.uniform(0.2, 0.9), drawn.uniform(0.02, 0.05))
        if 8_639 - failed < number:
            history.failed(number, begun + 1.2, Reason.JOB_FAILOVER, phases=PhaseSeconds(0.1, 1.1))
            continue
        took = [
            (drawn.uniform(0.0, 0.1), drawn.uniform(0.01, 0.06), drawn.uniform(0.05, 0.5)) for _ in range(32)
        ]
        history.completed(
            number,
            begun + sum(attrs.astuple(parts)),
            size=482_000_000,
            new_bytes=round(9_000_000 * drawn.uniform(0.7, 1.3)),
            phases=parts,
            shards=[
                ShardStatistics(
                    "by-customer", shard, begun, *one, begun + sum(one), 13_000_000, 280_000, 40_000
                )
                for shard, one in enumerate(took)
            ],
        )
    return history.snapshot()


STARTED: Final = RecoveryMetrics(
    "start", 8_500, False, NOW - 86_500, 0, 0, 1.2, 3.4, 4.1, 0, 0, 0, 0, 470_000_000
)
IN_PLACE: Final = RecoveryMetrics(
    LOST,
    None,
    True,
    NOW - 1_500,
    0.4,
    0.2,
    0.1,
    0.3,
    0.9,
    found_bytes=210_000_000,
    downloaded_bytes=2_100_000,
)


@attrs.define
class ShownPipeline(KnownPipeline):
    """A pipeline in one of its situations."""

    read: Callable[[], Facts] = lambda: BUSY
    taken: Statistics = attrs.field(factory=checkpoints)
    owned: tuple[AssignedShard, ...] = shards(16)
    begun: tuple[RecoveryMetrics, ...] = (STARTED, IN_PLACE)
    measured: Trends = attrs.field(factory=trends)
    past: tuple[JournalEntry, ...] = (
        JournalEntry(at=NOW - 1_501, what="restarts in place", says=LOST, generation=4),
        JournalEntry(at=NOW - 1_498, what="has recovered", says="query totals, in 1.9 s", generation=4),
    )

    def assignment(self) -> tuple[AssignedShard, ...]:
        return self.owned

    def statistics(self) -> Statistics:
        return self.taken

    def trends(self) -> Trends:
        return self.measured

    def recoveries(self) -> tuple[RecoveryMetrics, ...]:
        return self.begun

    def history(self) -> tuple[JournalEntry, ...]:
        return self.past


def _failed() -> ShownPipeline:
    trouble = f"query totals has failed 10 times in a row: {REFUSED}"
    queries = {
        name: attrs.evolve(query, life=QueryPhase.ENDED, because=REFUSED)
        for name, query in BUSY.queries.items()
    }
    facts = attrs.evolve(
        BUSY, life=LifePhase.FAILED, because=trouble, queries=queries, last_completed_at=NOW - 310
    )
    goes_back = [
        RecoveryMetrics(f"query totals: {REFUSED}", 8_609, False, NOW - 30 * at, 8.0, 0.5, 0.3, 0.4, None)
        for at in (3, 2, 1)
    ]
    past = (
        JournalEntry(
            at=NOW - 300,
            what="goes back",
            says=REFUSED,
            checkpoint=8_609,
            generation=4,
            times=9,
            until=NOW - 30,
        ),
        JournalEntry(at=NOW - 2, what="failed for good", says=trouble, generation=4),
    )
    return ShownPipeline(
        read=lambda: facts,
        taken=checkpoints(failed=3),
        begun=(STARTED, *goes_back),
        past=past,
        measured=trends(rows_until=NOW - 300),
    )


def _target_away() -> ShownPipeline:
    facts = attrs.evolve(BUSY, unpublished={"totals": Unpublished(73, NOW - 734)})
    return ShownPipeline(read=lambda: facts)


def _restarting() -> ShownPipeline:
    waiting = attrs.evolve(
        BUSY.queries["totals"],
        life=QueryPhase.WAITING,
        because=REFUSED,
        attempts=3,
        next_attempt_at=NOW + 8,
    )
    facts = attrs.evolve(BUSY, queries={**BUSY.queries, "totals": waiting})
    past = (
        JournalEntry(
            at=NOW - 95, what="restarts in place", says=REFUSED, generation=4, times=3, until=NOW - 9
        ),
    )
    return ShownPipeline(read=lambda: facts, past=past, measured=trends(rows_until=NOW - 90))


def _behind() -> ShownPipeline:
    queries = {
        name: attrs.evolve(
            query,
            activity=attrs.evolve(
                query.activity, behind=4_812_000.0, rows_per_second=9_100.0, last_seconds=38.0
            ),
        )
        for name, query in BUSY.queries.items()
    }
    facts = attrs.evolve(BUSY, queries=queries)
    return ShownPipeline(read=lambda: facts, measured=trends(grows=80_000.0))


def _large() -> ShownPipeline:
    names = [f"node-{at}" for at in range(1, 21)]
    facts = attrs.evolve(
        BUSY, shards=dict.fromkeys(names, 1000), hosts=dict.fromkeys(names, 4), shards_with_standby=20_000
    )
    return ShownPipeline(read=lambda: facts, owned=shards(10_000))


def _hostile() -> ShownPipeline:
    facts = attrs.evolve(
        BUSY, queries={EVIL: QueryFacts(QueryPhase.RUNNING, 3, EVIL)}, hosts={EVIL: 1}, shards={EVIL: 1}
    )
    cause = RecoveryMetrics(EVIL, 1, True, NOW)
    return ShownPipeline(
        read=lambda: facts,
        owned=(AssignedShard(EVIL, EVIL, 0, EVIL, "1", 1, 100),),
        begun=(cause,),
        past=(JournalEntry(at=NOW, what="goes back", says=EVIL),),
    )


SITUATIONS: Final[dict[str, Callable[[], ShownPipeline | None]]] = {
    "well": ShownPipeline,
    "restarting": _restarting,
    "behind": _behind,
    "large": _large,
    "target-away": _target_away,
    "failed": _failed,
    "hostile-names": _hostile,
    "stands-by": lambda: None,
}
"""By name. None: the driver does not lead the pipeline yet."""
