"""What the page of a pipeline says, as values: texts, times, and parts of drawings. No HTML, no clock.

A page has at most some hundred rows and cells, whatever the number of shards: it is sent again every few seconds.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from typing import Final

import attrs
from rich.filesize import decimal

from ....state.rpc.metrics import OperatorMetrics
from ....storage.checkpoints.journal import JournalEntry
from ...assigned_shard import AssignedShard
from ...durations import text
from ...protocol.statistics import Statistics
from ...recovery.metrics import RecoveryMetrics
from ..facts import Facts
from ..health import troubles
from ..state_sizes import OperatorSize
from ..trends import Trends
from .bars import Bar, bar, scale
from .charts import Charts, charts
from .checkpoints import CheckpointRow, FoldedRow, drawn_in, folded
from .graph import Lane, lanes
from .texts import ago, first_line, many, ordinal, seconds

CELLS: Final = 64
"""The most cells in which the shards of an operator are drawn."""
LARGEST: Final = 5
"""How many of an operator's shards are named: the largest."""
RECOVERIES: Final = 20
"""How many recoveries are shown: the latest."""
HISTORY: Final = 40
"""How many entries of the journal are shown: the latest."""
LEVELS: Final = 4
"""Shades of a cell, besides that of an empty shard."""


@attrs.frozen
class Told:
    """One fact of the page's head."""

    name: str
    value: str
    at: float | None = None
    """A time that stands before the value."""
    link: str = ""
    """Where the value leads; empty: nowhere."""


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
    skew: float
    """How much larger the largest shard is than the average; 0 if all are empty."""
    cells: tuple[Cell, ...]
    largest: tuple[str, ...]
    work: str
    """What it has done since the driver leads; empty if that is not known."""
    bar: Bar
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
class ShadowRow:
    """A shadow, and what it has found."""

    name: str
    state: str
    batches: str
    behind: str
    verdict: str
    example: str


@attrs.frozen
class RecoveryRow:
    """A start or restart."""

    begun: float
    kind: str
    cause: str
    checkpoint: str
    total: str
    bytes: str
    bar: Bar


@attrs.frozen
class HistoryRow:
    """Something that has failed or gone on, in this life of the driver or in an earlier one."""

    at: float
    generation: int
    what: str
    checkpoint: str
    says: str


@attrs.frozen
class Actions:
    """What can be ordered from the page by who has the token."""

    machines: tuple[str, ...]
    operators: tuple[str, ...]


@attrs.frozen(kw_only=True)
class OverviewPage:
    """All that is known of a pipeline at one moment."""

    pipeline: str
    is_well: bool | None
    """None if nobody knows, because no driver was asked."""
    headline: str
    troubles: tuple[str, ...]
    head: tuple[Told, ...] = ()
    """Where it lives."""
    now: float | None = None
    """None while nothing is known."""
    facts: tuple[Told, ...] = ()
    charts: Charts | None = None
    lanes: tuple[Lane, ...] = ()
    operators: tuple[OperatorRow, ...] = ()
    machines: tuple[MachineRow, ...] = ()
    replicas: tuple[ReplicaRow, ...] = ()
    shadows: tuple[ShadowRow, ...] = ()
    checkpoints: tuple[CheckpointRow | FoldedRow, ...] = ()
    phases: tuple[str, ...] = ()
    """What is drawn of them."""
    recoveries: tuple[RecoveryRow, ...] = ()
    history: tuple[HistoryRow, ...] = ()
    actions: Actions | None = None
    """None if nothing can be ordered."""


def stands_by(pipeline: str) -> OverviewPage:
    """Return what is to be said while the driver does not lead the pipeline."""
    found = tuple(troubles(None))
    return OverviewPage(pipeline=pipeline, is_well=False, headline=found[0], troubles=())


def overview(
    pipeline: str,
    facts: Facts,
    statistics: Statistics,
    assignment: Sequence[AssignedShard],
    recoveries: Sequence[RecoveryMetrics],
    history: Sequence[JournalEntry] = (),
    trends: Trends = Trends(),  # noqa: B008 - it is a value
    *,
    span: str = "hour",
    may_order: bool = False,
) -> OverviewPage:
    """Return what is to be said of a pipeline.

    Args:
        pipeline: its name.
        facts, statistics, assignment, recoveries, history, trends: what is known of it.
        span: what the charts show: the last ``hour`` or ``day``.
        may_order: whether who looks at it may order something.
    """
    found = tuple(troubles(facts))
    is_stored = facts.life is None and not facts.because
    operators, rows = tuple(_operators(facts, assignment)), folded(statistics.checkpoints)
    return OverviewPage(
        pipeline=pipeline,
        is_well=None if is_stored else not found,
        headline=found[0] if found else _all_is_well(facts),
        troubles=found[1:],
        now=facts.now,
        head=tuple(_head(facts)),
        facts=tuple(_facts(facts, statistics)),
        charts=charts(trends, span, facts.now, history, recoveries),
        lanes=lanes(facts, {one.uid: one.skew for one in operators}),
        operators=operators,
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
        shadows=tuple(_shadows(facts)),
        checkpoints=rows,
        phases=drawn_in(rows),
        recoveries=_recoveries(recoveries),
        history=tuple(map(_past, history[: -HISTORY - 1 : -1])),
        actions=Actions(tuple(sorted(facts.hosts)), tuple(one.uid for one in operators))
        if may_order
        else None,
    )


def _all_is_well(facts: Facts) -> str:
    queries = f"{len(facts.queries)} queries run" if len(facts.queries) > 1 else "the query runs"
    if facts.last_completed_at is None:
        return f"{queries}; no checkpoint has completed yet"
    return f"{queries}; the latest checkpoint completed {ago(facts.now, facts.last_completed_at)}"


def _head(facts: Facts) -> Iterator[Told]:
    home = facts.home
    if facts.generation:
        yield Told("generation", f"{ordinal(facts.generation)} driver of this pipeline")
    if home.machine:
        yield Told("on", f"{home.machine}, pid {home.pid}")
    if home.application:
        is_link = home.spark_ui.startswith(("http://", "https://"))
        yield Told("Spark application", home.application, link=home.spark_ui if is_link else "")
    if home.storage:
        yield Told("storage", home.storage)


def _facts(facts: Facts, statistics: Statistics) -> Iterator[Told]:
    is_stored = facts.life is None
    if facts.life is None:
        yield Told("driver", "is not asked")
    else:
        led = text(max(0, round(facts.now - facts.began)))
        yield Told("driver", f"{facts.life.value}; leads for {led}, since", facts.began)
    if not is_stored:
        yield Told(
            "periodic checkpoints", "none" if facts.interval is None else f"every {text(facts.interval)}"
        )
    if facts.last_completed_at is not None:
        size = "" if facts.size is None else f"; {decimal(facts.size)}"
        yield Told("latest checkpoint", f"{facts.completed}, {ago(facts.now, facts.last_completed_at)}{size}")
    counts = statistics.counts
    rare = [
        ("failed", counts.failed),
        ("in progress", counts.in_progress),
        ("queued", facts.checkpoints_queued),
    ]
    more = "".join(f", {count} {what}" for what, count in rare if count)
    yield Told("checkpoints", f"{counts.completed} completed{more}")
    if (took := statistics.duration) is not None:
        yield Told("duration", f"median {seconds(took.p50)}, p99 {seconds(took.p99)}")
    if not is_stored:
        yield Told("restores", str(facts.restored))
    moved = [
        ("needed by no task yet", facts.shards_unassigned),
        ("moving", facts.shards_moving),
        ("with a standby", facts.shards_with_standby),
    ]
    said = "".join(f", {count} {what}" for what, count in moved if count)
    yield Told("shards", f"{sum(facts.shards.values()) + facts.shards_unassigned}{said}")


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
            skew=max(sizes) / average if average else 0.0,
            cells=tuple(_cells(shards, max(sizes))),
            largest=tuple(map(_named, largest)) if average else (),
            work=_work(work) if work.tasks else "",
            bar=bar(work.parts.items(), work.seconds),
        )


def _size(known: OperatorSize | None) -> str:
    if known is None:
        return "in no checkpoint yet"
    entries = "" if known.entries is None else f" of about {many(known.entries, 'entry', 'entries')}"
    return f"{decimal(known.bytes)}{entries}"


def _work(work: OperatorMetrics) -> str:
    rare = [("late", work.late_rows), ("into dead letters", work.dead_letters)]
    said = "".join(f", {count:,} {what}" for what, count in rare if count)
    return f"{many(work.rows, 'row')}{said}, in {seconds(work.seconds)} of all its tasks"


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
        why = first_line(one.error or "")
        ended = f"has ended: {why}" if why else "has ended"
        yield ReplicaRow(
            name,
            f"{one.operator}, {one.state}",
            ", ".join(one.targets),
            one.format,
            "runs" if one.is_active else ended,
            "none yet" if one.checkpoint is None else str(one.checkpoint),
        )


def _shadows(facts: Facts) -> Iterator[ShadowRow]:
    for name, one in sorted(facts.shadows.items()):
        why = first_line(one.because)
        yield ShadowRow(
            name,
            f"{one.phase.value}: {why}" if why else one.phase.value,
            f"{one.batches:,}",
            f"{one.behind:,}",
            one.says,
            one.first.example if one.first else "",
        )


def _named(shard: AssignedShard) -> str:
    where = f" on {shard.machine}" if shard.machine else ""
    moves = f", moves to {shard.moves_to}" if shard.moves_to else ""
    standby = f", standby on {shard.standby}" if shard.standby else ""
    return f"shard {shard.shard}: {decimal(shard.size or 0)}{where}{moves}{standby}"


def _past(entry: JournalEntry) -> HistoryRow:
    return HistoryRow(
        at=entry.at,
        generation=entry.generation,
        what=entry.how_often,
        checkpoint="" if entry.checkpoint is None else str(entry.checkpoint),
        says=first_line(entry.says),
    )


def _recoveries(recoveries: Sequence[RecoveryMetrics]) -> tuple[RecoveryRow, ...]:
    latest = recoveries[: -RECOVERIES - 1 : -1]
    top = scale(_known(one) for one in latest)
    return tuple(
        RecoveryRow(
            begun=one.begun_at,
            kind=one.kind,
            cause=first_line(one.cause),
            checkpoint="none" if one.checkpoint is None else str(one.checkpoint),
            total="not yet" if one.total is None else seconds(one.total),
            bytes=f"{decimal(one.downloaded_bytes)} downloaded, {decimal(one.found_bytes)} found",
            bar=bar(_phases_of(one).items(), top),
        )
        for one in latest
    )


def _phases_of(one: RecoveryMetrics) -> Mapping[str, float]:
    return {
        "waiting": one.waiting,
        "stopping": one.stopping,
        "restoring": one.restoring,
        "starting": one.starting,
        "first batch": one.first_batch or 0.0,
    }


def _known(one: RecoveryMetrics) -> float:
    """Return what a recovery has taken as far as that is known."""
    return sum(_phases_of(one).values())
