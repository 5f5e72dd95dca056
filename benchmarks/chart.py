"""Draws the chart of a benchmark: one bar a contestant, one dot a round."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import median


def bars(path: Path, *, title: str, axis: str, rounds: Mapping[str, Sequence[float]]) -> None:
    """Write a PNG with a bar as long as the median of each contestant's rounds."""
    # Not at the top: it takes a second, and only this needs it.
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    names = list(rounds)[::-1]
    medians = [median(rounds[name]) for name in names]
    figure, axes = pyplot.subplots(figsize=(9, 1.2 + 0.7 * len(names)), layout="constrained")
    axes.barh(names, medians, color="#4c78a8", height=0.6)
    for place, name in enumerate(names):
        axes.plot(rounds[name], [place] * len(rounds[name]), "o", color="#222222", markersize=4, alpha=0.7)
        text = f"  {medians[place]:,.0f}"
        axes.text(max(rounds[name]), place, text, va="center", fontweight="bold")
    axes.set_xlim(0, max(map(max, rounds.values())) * 1.15)
    axes.xaxis.set_major_formatter(lambda value, _: f"{value:,.0f}")
    axes.set_xlabel(axis)
    axes.set_title(title, loc="left")
    axes.spines[["top", "right"]].set_visible(False)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=150)
    pyplot.close(figure)
