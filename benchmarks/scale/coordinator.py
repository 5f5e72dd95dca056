"""Runs one coordinator at one size, in a process of its own, and measures the costs of its checkpoints."""

from __future__ import annotations

import gc
import json
import math
import resource
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Self

import attrs

from chandy.coordinator.execution.executor import CheckpointExecutor
from chandy.coordinator.execution.job_steps import JobSteps
from chandy.coordinator.execution.locked_protocol import LockedProtocol
from chandy.coordinator.execution.recording import Recording
from chandy.coordinator.execution.service import listen
from chandy.coordinator.execution.successor_watch import SuccessorWatch
from chandy.coordinator.protocol.decisions import Decision, FailForGood, WaitToRestart
from chandy.coordinator.protocol.instructions import Discard
from chandy.coordinator.recovery.announcements import Announcements, tell_nobody
from chandy.state.rpc.messages import Ack, BatchTimes, Endpoint
from chandy.storage.backends.local import LocalStore
from chandy.storage.backends.open import open_store
from chandy.storage.checkpoints.catalog import Catalog
from chandy.storage.checkpoints.layout import manifest_key
from chandy.storage.checkpoints.manifest import ChannelRecord, CheckpointKind, Manifest, OutputRecord
from chandy.storage.checkpoints.manifest_json import decode_manifest, encode_manifest
from chandy.storage.codec import from_json, to_json
from chandy.storage.ids import BatchId, CheckpointId

from ..lives import say
from .alone import new_machine
from .figures import Costs
from .made import Fleet
from .plans import Assignment, Plan

_DEADLINE_SECONDS = 120.0
_TOKEN = "scale"
_STATISTICS_CALLS = 20


class CommittingQuery:
    """The progress of one query that commits a batch before each checkpoint. It records when it is asked."""

    def __init__(self, folder: Path) -> None:
        self.newest = BatchId(0)
        self.planned_at = 0.0
        self._offsets = folder / "offsets"
        self._offsets.write_text("v1\n{}\n0")

    def begun(self, query: str) -> BatchId:
        """Return the newest batch."""
        self.planned_at = time.monotonic()
        return self.newest

    def current_batch(self, query: str) -> BatchId | None:
        """Return None: the query is running."""
        return None

    def is_committed(self, query: str, batch: BatchId) -> bool:
        """Return whether the batch is planned. A planned batch commits at once."""
        return batch <= self.newest

    def times(self, query_id: str, batch: BatchId) -> BatchTimes:
        """Return empty times. No task asks for them."""
        return BatchTimes()

    def close_epoch(self, query: str, checkpoint: CheckpointId, cut: BatchId) -> None:
        pass

    def pre_commit(self, query: str, checkpoint: CheckpointId) -> tuple[OutputRecord, ...]:
        return ()

    def channels(self, manifest: Manifest) -> tuple[ChannelRecord, ...]:
        return ()

    def commit(self, query: str, checkpoint: CheckpointId) -> None:
        pass

    @contextmanager
    def hold(self, query: str, batch: BatchId) -> Iterator[Mapping[str, Path]]:
        """Provide one small file."""
        yield {f"working/offsets/{batch}": self._offsets}


class _Reports:
    """``Reports`` that keeps failures; nothing else happens."""

    def __init__(self) -> None:
        self.failures: list[Exception] = []
        self.news = Announcements(tell_nobody, time.time)

    def decided(self, decision: Decision) -> None:
        """Keep the failure that was decided about."""
        if isinstance(decision, WaitToRestart | FailForGood):
            self.failures.append(decision.cause if isinstance(decision, WaitToRestart) else decision.error)

    def __getattr__(self, name: str) -> Callable[..., None]:
        return lambda *told: None


class Observed(CheckpointExecutor):
    """The real executor. It also records when it has handled the last ACK and how long a deletion takes."""

    def observe(self) -> None:
        """Begin to record, before any host calls."""
        self.hosts.handlers[Ack] = self._observed_ack
        self._discard = self.jobs.discard
        self.jobs.discard = self._observed_discard  # type: ignore[method-assign]

    def expect(self, acks: int) -> None:
        """Begin a checkpoint with so many ACKs."""
        self._missing = acks
        self.acknowledged, self.discarded = threading.Event(), threading.Event()
        self._counting = threading.Lock()

    def _observed_ack(self, ack: Ack) -> None:
        self.hosts.ack(ack)
        with self._counting:
            self._missing -= len(ack.snapshots)
            if self._missing == 0:
                self.acknowledged_at, self.acknowledged_cpu = time.monotonic(), time.process_time()
                self.acknowledged.set()

    def _observed_discard(self, order: Discard) -> JobSteps:
        begun = time.monotonic()
        yield from self._discard(order)
        self.discard_seconds = time.monotonic() - begun
        self.discarded.set()


class Hosts:
    """The process of the simulated hosts."""

    def __init__(self, assignment: Assignment) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "benchmarks.scale.fleet", to_json(assignment).decode()],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def hear(self, event: str) -> dict[str, Any]:
        """Wait for the next event, which must have this name."""
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        said: dict[str, Any] = json.loads(line) if line else {"event": "the end"}
        if said["event"] != event:
            raise RuntimeError(f"expected {event!r} from the simulated hosts, found {said['event']!r}")
        return said

    def go(self) -> None:
        """Tell all hosts to send their ACKs."""
        assert self._process.stdin is not None
        self._process.stdin.write("go\n")
        self._process.stdin.flush()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.close()
        self._process.wait(_DEADLINE_SECONDS)
        self._process.stdout.close()


def live(plan: Plan) -> Iterator[Costs]:
    """Run a coordinator and its hosts, and yield the costs of each measured checkpoint."""
    folder = Path(plan.folder)
    store = LocalStore(folder / "store")
    catalog = Catalog(store)
    query = CommittingQuery(folder)
    generation = catalog.take_over("scale", time.time())
    reports = _Reports()
    executor = Observed(
        LockedProtocol(new_machine(plan.fleet, generation.generation, store.uri), time.time),
        catalog=catalog,
        store=store,
        open_store=open_store,
        watch=SuccessorWatch(
            catalog, generation.generation, trusts_look=math.inf, hold_lease=lambda: 0.0, within=None
        ),
        progress=query,
        clock=time.time,
        # Its hosts are stand-ins, which say nothing of themselves.
        host_timeout=math.inf,
        reports=reports,
        recording=Recording(),
    )
    service = listen("127.0.0.1", _TOKEN, "scale")
    executor.observe()
    service.answer(executor.hosts)
    endpoint = Endpoint(service.address, _TOKEN, "scale", 0, str(folder / "cache"), str(folder))
    try:
        with Hosts(Assignment(endpoint, plan.fleet, str(store.root))) as hosts:
            hosts.hear("joined")
            for number in range(plan.warm_up + plan.checkpoints):
                query.newest = BatchId(query.newest + 1)
                costs = _checkpoint(plan.fleet, executor, query, hosts, store)
                if reports.failures:
                    raise reports.failures[0]
                if number >= plan.warm_up:
                    yield costs
    finally:
        executor.close()
        service.shutdown()


def _checkpoint(
    fleet: Fleet, executor: Observed, query: CommittingQuery, hosts: Hosts, store: LocalStore
) -> Costs:
    executor.expect(fleet.shards)
    drops = executor.protocol.read(lambda p: len(p.checkpoints.retained.manifests) >= p.limits.retained)
    before = time.monotonic(), time.process_time()
    future = executor.request(CheckpointKind.MANUAL)
    last_order = hosts.hear("ordered")["at"]
    # The hosts and the coordinator are done with the orders. Only ACKs follow.
    gone = time.monotonic(), time.process_time()
    hosts.go()
    completed = future.result(_DEADLINE_SECONDS)
    ended = time.monotonic()
    _await(executor.acknowledged)
    if drops:
        _await(executor.discarded)
    key = manifest_key(CheckpointId(completed.id))
    manifest, data, read_seconds, decode_seconds = _read(store, key)
    encode_seconds = _timed(lambda: encode_manifest(manifest))
    write_seconds = _timed(lambda: store.create(f"scratch/{completed.id}", data))
    store.delete(f"scratch/{completed.id}")
    statistics = executor.statistics()
    latest = statistics.latest_completed
    return Costs(
        checkpoint=completed.id,
        messages=fleet.messages,
        acks=len(latest.shards) if latest is not None and latest.id == completed.id else 0,
        cut=query.planned_at - before[0],
        orders=last_order - query.planned_at,
        acks_handled=executor.acknowledged_at - gone[0],
        acks_cpu=executor.acknowledged_cpu - gone[1],
        trigger_cpu=gone[1] - before[1],
        completing=ended - executor.acknowledged_at,
        manifest_bytes=len(data),
        manifest_shards=sum(shard is not None for one in manifest.operators for shard in one.shards),
        encode=encode_seconds,
        write=write_seconds,
        read=read_seconds,
        decode=decode_seconds,
        discard=executor.discard_seconds if drops else None,
        statistics=_timed(executor.statistics, _STATISTICS_CALLS),
        resident_mb=_resident_mb(),
    )


def _await(event: threading.Event) -> None:
    if not event.wait(_DEADLINE_SECONDS):
        raise TimeoutError(f"The coordinator made no progress for {_DEADLINE_SECONDS:g} s")


def _read(store: LocalStore, key: str) -> tuple[Any, bytes, float, float]:
    begun = time.perf_counter()
    data = store.read(key)
    read = time.perf_counter()
    manifest = decode_manifest(data, store.uri, key)
    return manifest, data, read - begun, time.perf_counter() - read


def _timed(call: Any, times: int = 1) -> float:
    begun = time.perf_counter()
    for _ in range(times):
        call()
    return (time.perf_counter() - begun) / times


def _resident_mb() -> float:
    gc.collect()
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def main() -> None:
    """Print the costs of each checkpoint as an event, see ``benchmarks.lives``."""
    for costs in live(from_json(Plan, sys.argv[1].encode())):
        say("checkpoint", costs=attrs.asdict(costs))


if __name__ == "__main__":
    main()
