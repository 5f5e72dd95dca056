"""Draws the charts of benchmarks, for light and for dark pages."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any, Literal

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_INK = "#7d8590"
"""Readable on white and on black."""
_OWN, _PEER = "#2f81f7", "#9e9e9e"


def bars(path: Path, *, title: str, axis: str, rounds: Mapping[str, Sequence[float]]) -> None:
    """Draw a bar for the median of each contestant's rounds. Chandy's bars have another colour.

    Args:
        path: the file. Its suffix is the format, ``.png`` or ``.svg``.
        title: the title of the chart.
        axis: the label of the axis.
        rounds: the figures of each contestant.
    """
    names = list(rounds)[::-1]
    medians = [median(rounds[name]) for name in names]
    figure, axes = _axes(height=1.2 + 0.55 * len(names))
    colors = [_OWN if name.startswith("Chandy") else _PEER for name in names]
    axes.barh(names, medians, color=colors, height=0.6)
    for place, name in enumerate(names):
        axes.plot([min(rounds[name]), max(rounds[name])], [place, place], color=_INK, linewidth=1.5)
        text = f"  {medians[place]:,.{0 if medians[place] >= 100 else 1}f}"
        axes.text(max(rounds[name]), place, text, va="center", fontweight="bold", color=_INK)
    axes.set_xlim(0, max(map(max, rounds.values())) * 1.15)
    axes.xaxis.set_major_formatter(lambda value, _: f"{value:,.10g}")
    axes.set_xlabel(axis, color=_INK)
    _save(path, figure, axes, title)


def lines(
    path: Path,
    *,
    title: str,
    x: str,
    y: str,
    series: Mapping[str, Sequence[tuple[float, float]]],
    y_scale: Literal["linear", "log"] = "linear",
) -> None:
    """Draw a line for each series of points over a logarithmic x axis. A linear y axis begins at 0."""
    figure, axes = _axes(height=4.5)
    for name, points in series.items():
        axes.plot(*zip(*points, strict=True), marker="o", label=name)
    axes.set_xscale("log")
    axes.set_yscale(y_scale)
    if y_scale == "linear":
        axes.set_ylim(bottom=0)
    axes.set_xlabel(x, color=_INK)
    axes.set_ylabel(y, color=_INK)
    axes.legend(frameon=False, labelcolor=_INK)
    _save(path, figure, axes, title)


def stacked(path: Path, *, title: str, axis: str, parts: Mapping[str, Mapping[str, float]]) -> None:
    """Draw a stacked bar of its parts for each contestant.

    Args:
        path: the file. Its suffix is the format.
        title: the title of the chart.
        axis: the label of the axis.
        parts: the figures of each contestant by part. A part has the same colour in all bars.
    """
    names = list(parts)[::-1]
    figure, axes = _axes(height=1.8 + 0.45 * len(names))
    ends = dict.fromkeys(names, 0.0)
    kinds = list(dict.fromkeys(part for own in parts.values() for part in own))
    for part, color in zip(kinds, _many_colors(len(kinds)), strict=True):
        lengths = [parts[name].get(part, 0.0) for name in names]
        axes.barh(names, lengths, left=list(ends.values()), height=0.6, label=part, color=color)
        ends = {name: ends[name] + length for name, length in zip(names, lengths, strict=True)}
    for place, name in enumerate(names):
        axes.text(ends[name], place, f"  {ends[name]:,.3g}", va="center", fontweight="bold", color=_INK)
    axes.set_xlim(0, max(ends.values()) * 1.12)
    axes.set_xlabel(axis, color=_INK)
    figure.legend(frameon=False, labelcolor=_INK, ncols=6, loc="outside lower center")
    _save(path, figure, axes, title)


def _many_colors(count: int) -> list[Any]:
    from matplotlib import colormaps

    # The ten strong colours come first, then their pale variants.
    paired = colormaps["tab20"]
    return [paired(number) for number in (*range(0, 20, 2), *range(1, 20, 2))][:count]


def _axes(height: float) -> tuple[Any, Axes]:
    # Imported here: the import takes a second, and only charts need it.
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(figsize=(9, height), layout="constrained")
    return figure, axes


def _save(path: Path, figure: Any, axes: Axes, title: str) -> None:
    from matplotlib import pyplot

    axes.set_title(title, loc="left", color=_INK)
    axes.tick_params(colors=_INK)
    axes.spines[["top", "right"]].set_visible(False)
    axes.spines[["left", "bottom"]].set_color(_INK)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=150, transparent=True)
    pyplot.close(figure)
