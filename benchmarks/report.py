"""What a benchmark gives: rows of figures, ratios, and what they were measured on; as JSON and as a table."""

from __future__ import annotations

import json
import os
import platform
from collections.abc import Callable, Sequence
from importlib import metadata
from pathlib import Path
from statistics import median
from typing import Any, TypeVar

import attrs
from rich.console import Console
from rich.table import Table

PLAIN_WIDTH = 140
"""Columns of a table where there is no terminal."""
RESULTS = Path(__file__).resolve().parent / "results"
_Turn = TypeVar("_Turn")


@attrs.frozen
class Options:
    """What the command line says to every benchmark."""

    quick: bool = False
    """Small sizes, to see that it works: the figures mean little."""
    repetitions: int | None = None
    """How often each contestant has its turn; None: as many as the benchmark thinks right."""

    @property
    def arguments(self) -> list[str]:
        """The same for the command line."""
        repetitions = [] if self.repetitions is None else [f"--repetitions={self.repetitions}"]
        return ["--quick"] * self.quick + repetitions


@attrs.frozen
class Report:
    """A benchmark's outcome. ``as_json`` is stable: tools may rely on it."""

    benchmark: str
    rows: list[dict[str, Any]]
    """One dict a line of the table, all with the same keys, plain values."""
    ratios: dict[str, float]
    """What the benchmark is about: by name, peers and Chandy in one run."""
    settings: dict[str, Any] = attrs.field(factory=dict)
    """Sizes and repetitions."""

    @property
    def environment(self) -> dict[str, Any]:
        """Where and how it was measured: machine, versions, sizes, repetitions."""
        return {**environment(), **self.settings}

    def as_json(self) -> str:
        """``{"benchmark", "environment", "rows", "ratios"}`` as JSON text."""
        document = {
            "benchmark": self.benchmark,
            "environment": self.environment,
            "rows": self.rows,
            "ratios": self.ratios,
        }
        return json.dumps(document, indent=2) + "\n"

    def show(self, console: Console) -> None:
        """Print the table, the ratios, and what they were measured on."""
        table = Table(title=self.benchmark, title_justify="left")
        for name in self.rows[0] if self.rows else ():
            table.add_column(
                name, justify="left" if isinstance(self.rows[0][name], str) else "right", no_wrap=True
            )
        for row in self.rows:
            table.add_row(*map(_text, row.values()))
        console.print(table)
        for name, ratio in self.ratios.items():
            console.print(f"{name}: {ratio:,.3g}")
        console.print("; ".join(f"{name} {value}" for name, value in self.environment.items()))


def environment() -> dict[str, Any]:
    """Return the machine and the versions that figures were measured with."""
    packages = ("chandy", "pyspark", "rocksdict", "pyarrow", "pandas", "numpy")
    return {
        "machine": f"{platform.system()} {platform.machine()}",
        "processor": _processor(),
        "cores": os.cpu_count(),
        "memory_gib": round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30, 1),
        "python": platform.python_version(),
        **{name: metadata.version(name) for name in packages},
    }


def spread(values: Sequence[float]) -> dict[str, float]:
    """Return the median of some figures with the least and the greatest of them."""
    return {"median": median(values), "least": min(values), "greatest": max(values)}


def paired_ratio(own: Sequence[_Turn], peers: Sequence[_Turn], figure: Callable[[_Turn], float]) -> float:
    """Return the median of the turns' own ratios: a machine's pace drifts, and both of a turn have the same.

    Args:
        own: one contestant's turns.
        peers: another one's in the same turns.
        figure: what is compared of them.

    Raises:
        ValueError: one has more turns than the other, or none has any.
    """
    return median(figure(one) / figure(peer) for one, peer in zip(own, peers, strict=True))


def console() -> Console:
    """Return where benchmarks print."""
    found = Console()
    return found if found.is_terminal else Console(width=PLAIN_WIDTH)


def _processor() -> str:
    """The processor's name; Python itself knows it on few systems."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor()
    names = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(names, platform.processor())


def _text(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:,.0f}" if abs(value) >= 100 else f"{value:,.3g}"
    return f"{value:,}" if isinstance(value, int) else str(value)
