"""What the pages say, as values: texts, and parts of drawings in hundredths of their width. No HTML, no clock.

A page has at most some hundred rows and cells, whatever the number of shards: it is sent again every few seconds.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from typing import Final

import attrs
from rich.filesize import decimal

from ....state.rpc.metrics import OperatorMetrics
from ....storage.checkpoints.journal import JournalEntry
from ....storage.times import to_the_second
from ...assigned_shard import AssignedShard
from ...durations import text
from ...protocol.statistics import CheckpointStatistics, ShardStatistics, Statistics, Status
from ...recovery.metrics import RecoveryMetrics
from ..facts import DriverState, Facts
from ..health import troubles
from ..state_sizes import OperatorSize

CELLS: Final = 64
"""The most cells in which the shards of an operator are drawn."""
LARGEST: Final = 5
"""How many of an operator's shards are named: the largest."""
SLOWEST: Final = 20
"""How many shards of a checkpoint's operator are shown with their phases: the slowest."""
RECOVERIES: Final = 20
"""How many recoveries are shown: the latest."""
HISTORY: Final = 40
"""How many entries of the journal are shown: the latest."""
LEVELS: Final = 4
"""Shades of a cell, besides that of an empty shard."""
NARROWEST: Final = 0.4
"""The width of the shortest span on the time line, in hundredths of it."""
SIGNS: Final = {Status.COMPLETED: "✓", Status.FAILED: "✗", Status.IN_PROGRESS: "…"}
"""What tells the outcome of a checkpoint without colour."""


@attrs.frozen
class Part:
    """A part of a bar."""

    name: str
    """Of what it is, which chooses its pattern too."""
    start: float
    width: float
    says: str


@attrs.frozen
class CheckpointRow:
    """A checkpoint of the history."""

    id: int
    sign: str
    status: str
    kind: str
    triggered: str
    duration: str
    parts: tuple[Part, ...]
    """Its phases, in hundredths of the longest checkpoint; of one that has failed, all of it."""
    size: str
    new_bytes: str
    reason: str


@attrs.frozen
class QueryRow:
    """A query, with what its sinks have still to publish."""

    name: str
    state: str
    batch: str
    rate: str
    """Rows a second in the latest batch."""
    behind: str
    guarantee: str
    unpublished: str


@attrs.frozen
class Cell:
    """Some shards of an operator that follow each other, drawn as one cell."""

    level: int
    """How large the largest of them is: 0 to ``LEVELS``."""
    says: str


@attrs.frozen
class OperatorRow:
    """An operator, with its shards."""

    uid: str
    query: str
    size: str
    shards: int
    skew: str
    """How much larger the largest shard is than the average."""
    cells: tuple[Cell, ...]
    largest: tuple[str, ...]
    work: str
    """What it has done since the driver leads; empty if that is not known."""
    parts: tuple[Part, ...]
    """What its tasks spent their time on."""


@attrs.frozen
class MachineRow:
    """A machine, with the state hosts and the shards that it has."""

    name: str
    hosts: int
    shards: int
    disk: str
    """What is free on its disk; empty if that is not known."""


@attrs.frozen
class ReplicaRow:
    """A replica, and how far it has come."""

    name: str
    source: str
    """The operator, and the state of it."""
    targets: str
    form: str
    state: str
    checkpoint: str


@attrs.frozen
class RecoveryRow:
    """A start or restart."""

    begun: str
    kind: str
    cause: str
    checkpoint: str
    total: str
    bytes: str
    parts: tuple[Part, ...]


@attrs.frozen
class HistoryRow:
    """Something that has failed or gone on, in this life of the driver or in an earlier one."""

    at: str
    generation: int
    what: str
    checkpoint: str
    says: str


@attrs.frozen
class Lane:
    """What is drawn beside each other on the time line: things of one kind, each where it was."""

    name: str
    parts: tuple[Part, ...]


@attrs.frozen
class TimeLine:
    """The latest minutes or hours of a pipeline."""

    begins: str
    ends: str
    lanes: tuple[Lane, ...]


@attrs.frozen(kw_only=True)
class OverviewPage:
    """All that is known of a pipeline at one moment."""

    pipeline: str
    is_well: bool | None
    """None if nobody knows, because no driver was asked."""
    headline: str
    troubles: tuple[str, ...]
    now: str
    facts: tuple[tuple[str, str], ...] = ()
    """Names and values."""
    queries: tuple[QueryRow, ...] = ()
    operators: tuple[OperatorRow, ...] = ()
    machines: tuple[MachineRow, ...] = ()
    replicas: tuple[ReplicaRow, ...] = ()
    timeline: TimeLine | None = None
    """None if nothing has happened yet."""
    checkpoints: tuple[CheckpointRow, ...] = ()
    recoveries: tuple[RecoveryRow, ...] = ()
    history: tuple[HistoryRow, ...] = ()


@attrs.frozen
class ShardRow:
    """A shard's part in a checkpoint."""

    shard: int
    total: str
    parts: tuple[Part, ...]
    size: str
    new_bytes: str


@attrs.frozen
class OperatorPhases:
    """An operator's part in a checkpoint."""

    uid: str
    shards: int
    size: str
    new_bytes: str
    slowest: tuple[ShardRow, ...]


@attrs.frozen(kw_only=True)
class CheckpointPage:
    """One checkpoint, down to its slowest shards."""

    pipeline: str
    row: CheckpointRow
    phases: tuple[Part, ...]
    operators: tuple[OperatorPhases, ...]


# --- one pipeline -------------------------------------------------------------------------------------------


def stands_by(pipeline: str) -> OverviewPage:
    """Return what is to be said while the driver does not lead the pipeline."""
    found = tuple(troubles(None))
    return OverviewPage(pipeline=pipeline, is_well=False, headline=found[0], troubles=(), now="")


def overview(
    pipeline: str,
    facts: Facts,
    statistics: Statistics,
    assignment: Sequence[AssignedShard],
    recoveries: Sequence[RecoveryMetrics],
    history: Sequence[JournalEntry] = (),
) -> OverviewPage:
    """Return what is to be said of a pipeline."""
    found = tuple(troubles(facts))
    is_stored = facts.life is DriverState.STORED and not facts.trouble
    return OverviewPage(
        pipeline=pipeline,
        is_well=None if is_stored else not found,
        headline=found[0] if found else _all_is_well(facts),
        troubles=found[1:],
        now=to_the_second(facts.now),
        facts=tuple(_facts(facts, statistics)),
        queries=tuple(_queries(facts)),
        operators=tuple(_operators(facts, assignment)),
        machines=tuple(
            MachineRow(
                name,
                facts.hosts.get(name, 0),
                facts.shards.get(name, 0),
                f"{decimal(disk.free)} of {decimal(disk.size)}" if (disk := facts.disks.get(name)) else "",
            )
            for name in sorted({*facts.hosts, *facts.shards})
        ),
        replicas=tuple(_replicas(facts)),
        timeline=_timeline(facts.now, statistics.checkpoints, recoveries, history),
        checkpoints=_rows(statistics.checkpoints),
        recoveries=_recoveries(recoveries),
        history=tuple(map(_past, history[: -HISTORY - 1 : -1])),
    )


def _all_is_well(facts: Facts) -> str:
    queries = f"{len(facts.queries)} queries run" if len(facts.queries) > 1 else "the query runs"
    if facts.completed_at is None:
        return f"{queries}; no checkpoint has completed yet"
    return f"{queries}; the latest checkpoint completed {_ago(facts.now, facts.completed_at)}"


def _facts(facts: Facts, statistics: Statistics) -> Iterator[tuple[str, str]]:
    is_stored = facts.life is DriverState.STORED
    since = f"; leads since {to_the_second(facts.began)} ({text(round(facts.now - facts.began))})"
    yield "driver", f"{facts.life.value}{'' if is_stored else since}"
    yield "generation", str(facts.generation)
    if not is_stored:
        yield "periodic checkpoints", "none" if facts.interval is None else f"every {text(facts.interval)}"
    if facts.completed_at is not None:
        yield "latest checkpoint", f"{facts.completed}, {_ago(facts.now, facts.completed_at)}"
    counts = statistics.counts
    yield (
        "checkpoints",
        f"{counts.completed} completed, {counts.failed} failed, {counts.in_progress} in progress, "
        f"{facts.queued} queued",
    )
    if (seconds := statistics.duration) is not None:
        yield "duration", f"median {_seconds(seconds.p50)}, p99 {_seconds(seconds.p99)}"
    if facts.size is not None:
        yield "size of the latest", decimal(facts.size)
    yield "restores", str(facts.restored)
    moved = [
        ("needed by no task yet", facts.unassigned),
        ("moving", facts.moving),
        ("with a standby", facts.standbys),
    ]
    said = "".join(f", {count} {what}" for what, count in moved if count)
    yield "shards", f"{sum(facts.shards.values()) + facts.unassigned}{said}"


def _queries(facts: Facts) -> Iterator[QueryRow]:
    is_stored = facts.life is DriverState.STORED
    for name, query in sorted(facts.queries.items()):
        left = facts.unpublished.get(name)
        # A checkpoint has what was still to be published at its cut, and not what has been since.
        otherwise = "not known" if is_stored else "nothing"
        yield QueryRow(
            name,
            "runs" if query.is_active else "stored" if is_stored else "has ended",
            "none yet" if query.committed < 0 else str(query.committed),
            _rounded(query.activity.rows_per_second),
            _rounded(query.activity.behind),
            query.guarantee,
            f"{_many(left.checkpoints, 'checkpoint')}, the oldest {_ago(facts.now, left.oldest)}"
            if left
            else otherwise,
        )


def _operators(facts: Facts, assignment: Sequence[AssignedShard]) -> Iterator[OperatorRow]:
    by_uid = defaultdict[str, list[AssignedShard]](list)
    for shard in assignment:
        by_uid[shard.operator].append(shard)
    for uid, shards in sorted(by_uid.items()):
        shards.sort(key=lambda one: one.shard)
        known, work = facts.operators.get(uid), facts.work.get(uid, OperatorMetrics())
        sizes = [one.size or 0 for one in shards]
        average = sum(sizes) / len(sizes)
        largest = sorted(shards, key=lambda one: (-(one.size or 0), one.shard))[:LARGEST]
        yield OperatorRow(
            uid=uid,
            query=shards[0].query,
            size=_size(known),
            shards=len(shards),
            skew=f"{max(sizes) / average:.1f} times the average" if average else "",
            cells=tuple(_cells(shards, max(sizes))),
            largest=tuple(map(_named, largest)) if average else (),
            work=_work(work) if work.tasks else "",
            parts=_parts(work.parts.items(), work.seconds),
        )


def _size(known: OperatorSize | None) -> str:
    if known is None:
        return "in no checkpoint yet"
    entries = "" if known.entries is None else f" of about {_many(known.entries, 'entry', 'entries')}"
    return f"{decimal(known.bytes)}{entries}"


def _work(work: OperatorMetrics) -> str:
    rare = [("late", work.late_rows), ("into dead letters", work.dead_letters)]
    said = "".join(f", {count:,} {what}" for what, count in rare if count)
    return f"{_many(work.rows, 'row')}{said}, in {_seconds(work.seconds)} of all its tasks"


def _cells(shards: Sequence[AssignedShard], largest: int) -> Iterator[Cell]:
    count = min(CELLS, len(shards))
    for at in range(count):
        some = shards[at * len(shards) // count : (at + 1) * len(shards) // count]
        size = max(one.size or 0 for one in some)
        # An empty shard is told from a small one.
        level = -(-size * LEVELS // largest) if largest else 0
        numbers = (
            f"shard {some[0].shard}" if len(some) == 1 else f"shards {some[0].shard} to {some[-1].shard}"
        )
        where = some[0].machine or "no machine yet" if len(some) == 1 else "the largest"
        yield Cell(level, f"{numbers}: {decimal(size)}, {where}")


def _replicas(facts: Facts) -> Iterator[ReplicaRow]:
    for name, one in sorted(facts.replicas.items()):
        why = (one.error or "").partition("\n")[0]
        ended = f"has ended: {why}" if why else "has ended"
        yield ReplicaRow(
            name,
            f"{one.operator}, {one.state}",
            ", ".join(one.targets),
            one.format,
            "runs" if one.is_active else ended,
            "none yet" if one.checkpoint is None else str(one.checkpoint),
        )


def _named(shard: AssignedShard) -> str:
    where = f" on {shard.machine}" if shard.machine else ""
    moves = f", moves to {shard.moves_to}" if shard.moves_to else ""
    standby = f", standby on {shard.standby}" if shard.standby else ""
    return f"shard {shard.shard}: {decimal(shard.size or 0)}{where}{moves}{standby}"


def _past(entry: JournalEntry) -> HistoryRow:
    return HistoryRow(
        at=to_the_second(entry.at),
        generation=entry.generation,
        what=entry.how_often,
        checkpoint="" if entry.checkpoint is None else str(entry.checkpoint),
        says=entry.says.partition("\n")[0],
    )


def _recoveries(recoveries: Sequence[RecoveryMetrics]) -> tuple[RecoveryRow, ...]:
    latest = recoveries[: -RECOVERIES - 1 : -1]
    longest = max((one.total or 0.0 for one in latest), default=0.0)
    return tuple(
        RecoveryRow(
            begun=to_the_second(one.begun_at),
            kind=one.kind,
            cause=one.cause.partition("\n")[0],
            checkpoint="none" if one.checkpoint is None else str(one.checkpoint),
            total="not yet" if one.total is None else _seconds(one.total),
            bytes=f"{decimal(one.downloaded_bytes)} downloaded, {decimal(one.found_bytes)} found",
            parts=_parts(
                [
                    ("waiting", one.waiting),
                    ("stopping", one.stopping),
                    ("restoring", one.restoring),
                    ("starting", one.starting),
                    ("first batch", one.first_batch or 0.0),
                ],
                longest,
            ),
        )
        for one in latest
    )


# --- the time line --------------------------------------------------------------------------------------------


def _timeline(
    now: float,
    checkpoints: Sequence[CheckpointStatistics],
    recoveries: Sequence[RecoveryMetrics],
    history: Sequence[JournalEntry],
) -> TimeLine | None:
    """Draw what has happened since the oldest checkpoint that the page lists; since the start if it lists none."""
    times = [one.triggered_at for one in checkpoints] or [one.begun_at for one in recoveries]
    if not times or min(times) >= now:
        return None
    begins = min(times)
    spans = {
        "checkpoints": [
            (_of(one), one.triggered_at, one.duration or now - one.triggered_at, f"checkpoint {one.id}")
            for one in reversed(checkpoints)
        ],
        "recoveries": [
            ("recovery", one.begun_at - one.waiting, one.total or now - one.begun_at, one.kind)
            for one in recoveries
        ],
        "history": [("event", one.until or one.at, 0.0, one.what) for one in history],
    }
    lanes = (
        Lane(name, tuple(_marks([one for one in some if begins <= one[1] <= now], begins, now - begins)))
        for name, some in spans.items()
    )
    return TimeLine(to_the_second(begins), to_the_second(now), tuple(lane for lane in lanes if lane.parts))


def _of(known: CheckpointStatistics) -> str:
    return "checkpoint" if known.status is Status.COMPLETED else known.status.value


def _marks(spans: Iterable[tuple[str, float, float, str]], begins: float, length: float) -> Iterator[Part]:
    for name, at, seconds, what in spans:
        start = _share(at - begins, length)
        # What is short is still to be seen, and nothing ends later than now.
        width = min(max(_share(seconds, length), NARROWEST), 100.0)
        took = f", {_seconds(seconds)}" if seconds else ""
        yield Part(name, round(min(start, 100.0 - width), 2), width, f"{to_the_second(at)}: {what}{took}")


# --- one checkpoint -----------------------------------------------------------------------------------------


def checkpoint(pipeline: str, known: CheckpointStatistics) -> CheckpointPage:
    """Return what is to be said of a checkpoint."""
    (row,) = _rows([known])
    return CheckpointPage(
        pipeline=pipeline,
        row=row,
        phases=_parts(attrs.asdict(known.phases).items(), known.duration or 0.0),
        operators=tuple(_phases(uid, shards) for uid, shards in known.by_operator.items()),
    )


def _phases(uid: str, shards: list[ShardStatistics]) -> OperatorPhases:
    slowest = sorted(shards, key=lambda one: (-_taken(one), one.shard))[:SLOWEST]
    longest = _taken(slowest[0])
    return OperatorPhases(
        uid=uid,
        shards=len(shards),
        size=decimal(sum(one.bytes for one in shards)),
        new_bytes=decimal(sum(one.new_bytes for one in shards)),
        slowest=tuple(
            ShardRow(
                shard=one.shard,
                total=_seconds(_taken(one)),
                parts=_parts(
                    [("start delay", one.start_delay), ("sync", one.sync), ("async", one.async_)], longest
                ),
                size=decimal(one.bytes),
                new_bytes=decimal(one.new_bytes),
            )
            for one in slowest
        ),
    )


def _taken(shard: ShardStatistics) -> float:
    return shard.start_delay + shard.sync + shard.async_


def _rows(known: Sequence[CheckpointStatistics]) -> tuple[CheckpointRow, ...]:
    longest = max((one.duration or 0.0 for one in known), default=0.0)
    return tuple(
        CheckpointRow(
            id=one.id,
            sign=SIGNS[one.status],
            status=one.status.value,
            kind=one.kind.value,
            triggered=to_the_second(one.triggered_at),
            duration="" if one.duration is None else _seconds(one.duration),
            parts=_parts(_drawn(one), longest),
            size=decimal(one.size) if one.status is Status.COMPLETED else "",
            new_bytes=decimal(one.new_bytes) if one.status is Status.COMPLETED else "",
            reason=one.reason.value if one.reason else "",
        )
        for one in known
    )


def _drawn(known: CheckpointStatistics) -> Iterable[tuple[str, float]]:
    phases = attrs.asdict(known.phases)
    # A manifest does not know the phases of its checkpoint.
    if known.status is Status.COMPLETED and any(phases.values()):
        return phases.items()
    return [(_of(known), known.duration or 0.0)]


# --- texts and widths ---------------------------------------------------------------------------------------


def _parts(phases: Iterable[tuple[str, float]], longest: float) -> tuple[Part, ...]:
    """Return a bar of phases that follow each other, in hundredths of the longest bar."""
    parts, start = [], 0.0
    for name, seconds in phases:
        width = _share(seconds, longest)
        if width > 0:
            parts.append(Part(name, round(start, 2), width, f"{name}: {_seconds(seconds)}"))
        start += width
    return tuple(parts)


def _share(value: float, of: float) -> float:
    return round(100 * max(value, 0.0) / of, 2) if of > 0 else 0.0


def _seconds(seconds: float) -> str:
    return (
        f"{seconds * 1000:.0f} ms"
        if seconds < 1
        else f"{seconds:.1f} s"
        if seconds < 100
        else text(round(seconds))
    )


def _rounded(number: float | None) -> str:
    return "" if number is None else f"{number:,.0f}"


def _many(count: int, what: str, plural: str | None = None) -> str:
    return f"{count} {what}" if count == 1 else f"{count:,} {plural or what + 's'}"


def _ago(now: float, then: float) -> str:
    return f"{text(max(0, round(now - then)))} ago"
