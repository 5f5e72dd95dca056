"""The row of charts, as values: how the pipeline did in the last hour or day, over one axis of time."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Final

import attrs
from rich.filesize import decimal

from ....storage.checkpoints.journal import JournalEntry
from ...recovery.metrics import START, RecoveryMetrics
from ..trends import Measured, Series, Trends
from .bars import scale
from .texts import first_line, many, rounded, seconds
from .words import look

HEIGHT: Final = 32
"""Of a chart, whose width is 100."""
MARKS: Final = 40
"""How many failures and recoveries are marked: the latest."""
SPANS: Final = ("hour", "day")

Value = float | None


@attrs.frozen
class Area:
    """A curve, filled down to what it stands on."""

    look: str
    path: str
    """Its outline, as SVG has it."""


@attrs.frozen
class Reading:
    """What a chart says of one span of time."""

    x: float
    width: float
    at: float
    says: str


@attrs.frozen
class Moment:
    """A failure or a recovery."""

    x: float
    name: str
    at: float
    says: str

    @property
    def look(self) -> str:
        """The classes by which it is drawn."""
        return look(self.name)


@attrs.frozen
class Chart:
    """One measure over time."""

    name: str
    latest: str
    top: str
    """What the upper end of its scale stands for; empty if nothing is drawn."""
    areas: tuple[Area, ...]
    readings: tuple[Reading, ...]


@attrs.frozen
class Charts:
    """Charts over the same time."""

    span: str
    begins: float
    ends: float
    charts: tuple[Chart, ...]
    marks: tuple[Moment, ...]


@attrs.frozen
class _Measure:
    """How one measure is drawn."""

    name: str
    curves: tuple[tuple[str, Callable[[Measured], Value]], ...]
    """What stands on top of each other, by name."""
    shown: Callable[[float], str]
    says: Callable[[Measured], str]
    is_cut: bool = False
    """Whether a single long one is cut off."""
    lines: tuple[tuple[str, Callable[[Measured], Value]], ...] = ()
    """What is drawn as a line alone."""


def charts(
    trends: Trends,
    span: str,
    now: float,
    history: Sequence[JournalEntry],
    recoveries: Sequence[RecoveryMetrics],
) -> Charts:
    """Return the charts of the last hour or day."""
    series = trends.day if span == "day" else trends.hour
    begins = series.begins(now)
    ends = begins + series.count * series.seconds
    return Charts(
        span="day" if series is trends.day else "hour",
        begins=begins,
        ends=ends,
        charts=tuple(_chart(one, series, now) for one in _measures(series, now)),
        marks=tuple(_marks(history, recoveries, begins, ends)),
    )


# --- what is measured ---------------------------------------------------------------------------------------


def _measures(series: Series, now: float) -> Iterator[_Measure]:
    newest = series.spans.get(int(now // series.seconds))
    # What has only begun says nothing yet about the whole of its time.
    elapsed = now % series.seconds

    def a_second(rows: Callable[[Measured], int | None]) -> Callable[[Measured], Value]:
        def rate(one: Measured) -> Value:
            count, length = rows(one), series.seconds
            if count is None or not one.batches:
                return None
            if one is newest:
                if elapsed < length / 4:
                    return None
                return count / elapsed
            return count / length

        return rate

    rows_in, rows_out = a_second(lambda one: one.rows_in), a_second(lambda one: one.rows_out)

    def both(one: Measured) -> str:
        out = rows_out(one)
        return f"{rounded(rows_in(one))} in" + ("" if out is None else f", {rounded(out)} out")

    yield _Measure("rows a second", (("rows", rows_in),), rounded, both, lines=(("", rows_out),))
    yield _Measure(
        "behind the sources",
        (("waiting", lambda one: one.behind),),
        rounded,
        lambda one: f"{rounded(one.behind)} offsets",
    )
    yield _Measure(
        "batch",
        (("batches", _each(lambda one: one.batch_seconds, lambda one: one.batches)),),
        seconds,
        lambda one: f"{seconds(one.batch_seconds / one.batches)}, {many(one.batches, 'batch', 'batches')}",
        is_cut=True,
    )
    phases = ("planning", "collecting", "finalizing")
    yield _Measure(
        "checkpoint",
        (
            *((name, _phase(name)) for name in phases),
            ("all phases", _each(_without_phases, lambda one: one.checkpoints)),
        ),
        seconds,
        _of_checkpoints,
        is_cut=True,
    )
    yield _Measure(
        "size",
        (("sizes", lambda one: one.size),),
        lambda size: decimal(round(size)),
        lambda one: decimal(one.size or 0),
    )
    yield _Measure(
        "new bytes",
        (("sizes", _each(lambda one: one.new_bytes, lambda one: one.checkpoints)),),
        lambda size: decimal(round(size)),
        lambda one: f"{decimal(one.new_bytes // one.checkpoints)}, {many(one.checkpoints, 'checkpoint')}",
        is_cut=True,
    )


def _each(
    all_of: Callable[[Measured], float], count: Callable[[Measured], int]
) -> Callable[[Measured], Value]:
    return lambda one: all_of(one) / count(one) if count(one) else None


def _phase(name: str) -> Callable[[Measured], Value]:
    return _each(lambda one: float(getattr(one.phases, name)), lambda one: one.checkpoints)


def _without_phases(one: Measured) -> float:
    """Return what checkpoints took whose phases are not known: a manifest does not have them."""
    known = sum(attrs.astuple(one.phases))
    return 0.0 if known else one.checkpoint_seconds


def _of_checkpoints(one: Measured) -> str:
    took = seconds(one.checkpoint_seconds / one.checkpoints)
    phases = [(name, part / one.checkpoints) for name, part in attrs.asdict(one.phases).items() if part]
    said = ", ".join(f"{name} {seconds(part)}" for name, part in phases)
    return f"{took}{f': {said}' if said else ''}; {many(one.checkpoints, 'checkpoint')}"


# --- how it is drawn ----------------------------------------------------------------------------------------


def _chart(measure: _Measure, series: Series, now: float) -> Chart:
    spans = series.until(now)
    stacked: list[list[Value]] = []
    below: list[Value] = [0.0] * len(spans)
    for _, of in measure.curves:
        values = [None if one is None else of(one) for one in spans]
        below = [
            None if value is None else value + (base or 0.0)
            for value, base in zip(values, below, strict=True)
        ]
        stacked.append(below)
    lines = [(name, [None if one is None else of(one) for one in spans]) for name, of in measure.lines]
    drawn = [value for values in (stacked[-1], *(values for _, values in lines)) for value in values if value]
    top = scale(drawn) if measure.is_cut else max(drawn, default=0.0)
    areas = []
    floor: list[Value] = [0.0] * len(spans)
    for (name, _), values in zip(measure.curves, stacked, strict=True):
        if any(value != base for value, base in zip(values, floor, strict=True) if value is not None):
            areas.append(Area(look(name), _outline(values, floor, top)))
        floor = values
    areas += [Area("line", path) for _, values in lines if (path := _outline(values, None, top))]
    width, step = 100 / len(spans), series.seconds
    begins = series.begins(now)
    readings = tuple(
        Reading(round(at * width, 2), round(width, 2), begins + at * step, measure.says(one))
        for at, (one, value) in enumerate(zip(spans, stacked[-1], strict=True))
        if one is not None and value is not None
    )
    latest = next((one for one in reversed(stacked[-1]) if one is not None), None)
    return Chart(
        name=measure.name,
        latest="not known" if latest is None else measure.shown(latest),
        top=measure.shown(top) if top else "",
        areas=tuple(areas),
        readings=readings,
    )


def _outline(values: Sequence[Value], floor: Sequence[Value] | None, top: float) -> str:
    """Return the outline of what is between two curves of steps, or, if there is no floor, the upper one alone."""
    width = 100 / len(values)
    paths = []
    for begin, end in _runs(values):
        upper = [(at * width, _y(values[at], top)) for at in range(begin, end)]
        points = [(x + more, y) for x, y in upper for more in (0.0, width)]
        if floor is not None:
            lower = [(at * width, _y(floor[at], top)) for at in reversed(range(begin, end))]
            points += [(x + more, y) for x, y in lower for more in (width, 0.0)]
        paths.append(
            "M" + " ".join(f"{x:.4g},{y:.4g}" for x, y in points) + ("Z" if floor is not None else "")
        )
    return "".join(paths)


def _runs(values: Sequence[Value]) -> Iterator[tuple[int, int]]:
    """Yield where values are known, one after the other: the first, and the one behind the last."""
    begin = None
    for at, value in enumerate((*values, None)):
        if value is not None and begin is None:
            begin = at
        elif value is None and begin is not None:
            yield begin, at
            begin = None


def _y(value: Value, top: float) -> float:
    return HEIGHT - HEIGHT * min(value or 0.0, top) / top if top > 0 else float(HEIGHT)


def _marks(
    history: Sequence[JournalEntry], recoveries: Sequence[RecoveryMetrics], begins: float, ends: float
) -> Iterator[Moment]:
    told = [
        (entry.until or entry.at, _kind(entry), f"{entry.how_often}: {first_line(entry.says)}")
        for entry in history
    ]
    told += [(one.begun_at, "recovery", "the driver started") for one in recoveries if one.kind == START]
    shown = sorted(one for one in told if begins <= one[0] <= ends)
    for at, name, says in shown[-MARKS:]:
        yield Moment(round(100 * (at - begins) / (ends - begins), 2), name, at, says)


def _kind(entry: JournalEntry) -> str:
    return "recovery" if entry.what == "has recovered" else "failure"
