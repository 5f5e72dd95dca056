"""The facts of a pipeline that tests of metrics and pages know."""

from __future__ import annotations

from chandy.coordinator.monitor.activity import QueryActivity
from chandy.coordinator.monitor.facts import Facts, QueryFacts, Unpublished
from chandy.coordinator.monitor.state_sizes import OperatorSize
from chandy.coordinator.protocol.life import LifePhase, QueryPhase
from chandy.coordinator.protocol.totals import PhaseSeconds, Totals
from chandy.coordinator.replica_status import ReplicaStatus
from chandy.coordinator.verdict import Finding, Kind, Phase, ShadowVerdict
from chandy.state.rpc.messages import DiskSpace
from chandy.state.rpc.metrics import OperatorMetrics
from chandy.storage.checkpoints.manifest import ChannelRecord, TopicPartition, UnreadFiles
from chandy.storage.ids import BatchId, CheckpointId
from chandy.storage.store import StoreRequests

ACTIVITY = QueryActivity(8, 1200, 4.5, 1234.5, 30.0, 900.0)
FACTS = Facts(
    generation=3,
    life=LifePhase.RUNNING,
    now=1000.0,
    began=100.0,
    interval=10.0,
    longest_interval=10.0,
    totals=Totals(phases=PhaseSeconds(1.0, 2.0, 0.5)),
    restored=1,
    last_completed_at=990.0,
    completed=41,
    size=5000,
    operators={"delays": OperatorSize("totals", 4000, 900, 70)},
    checkpoints_in_progress=1,
    checkpoints_queued=2,
    queries={
        "totals": QueryFacts(QueryPhase.RUNNING, 7, "exactly once", ("files",), ("totals",), (), ACTIVITY)
    },
    hosts={"near": 1, "far": 2},
    disks={"far": DiskSpace(5_000, 20_000)},
    shards={"near": 3, "far": 5},
    shards_unassigned=8,
    shards_moving=1,
    shards_with_standby=4,
    promoted=6,
    reopened=2,
    unpublished={"totals": Unpublished(2, 970.0)},
    recoveries={"start": 1, "in place": 2},
    recovery_seconds=1.5,
    work={
        "delays": OperatorMetrics(
            tasks=2,
            rows=1100,
            late_rows=3,
            keys=50,
            dead_letters=1,
            seconds=4.0,
            input_seconds=1.0,
            state_seconds=0.5,
            output_seconds=0.25,
        )
    },
    channels=(
        ChannelRecord("totals", "files", "alerts", "/out", 39, 5, UnreadFiles(2, 300, 12)),
        ChannelRecord(
            "totals", "kafka", "audit", "topic", 39, 0, None, (TopicPartition("topic", 0, 90, 70),)
        ),
    ),
    store=StoreRequests(90, 4, 1),
    replicas={
        "warehouse": ReplicaStatus(
            name="warehouse",
            operator="totals",
            state="total",
            format="table",
            targets=("postgres",),
            checkpoint=39,
            is_active=True,
            error=None,
        )
    },
    shadows={
        "next": ShadowVerdict(
            shadow="next",
            pipeline="p",
            phase=Phase.FOLLOWS,
            batches=1200,
            differing=1,
            findings=(
                Finding(
                    kind=Kind.STATE,
                    query="totals",
                    batch=BatchId(53),
                    checkpoint=CheckpointId(9),
                    what="state 'total' of operator 'totals'",
                    says="1 keys with other values",
                    example="carrier=<b>AA</b>: leader has total=5, shadow has total=6",
                ),
            ),
            behind=3,
        )
    },
)
