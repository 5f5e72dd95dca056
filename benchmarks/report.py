"""The result of a benchmark as JSON and as a table: figures, ratios, and the environment of the measurement."""

from __future__ import annotations

import json
import os
import platform
from collections.abc import Callable, Mapping, Sequence
from importlib import metadata
from pathlib import Path
from statistics import median
from typing import Any, TypeVar

import attrs
from rich.console import Console
from rich.table import Table

PLAIN_WIDTH = 140
"""The width of tables if the output is not a terminal."""
RESULTS = Path(__file__).resolve().parent / "results"
_Turn = TypeVar("_Turn")


@attrs.frozen
class Options:
    """The command-line options of all benchmarks."""

    quick: bool = False
    """Use small sizes, to see that the benchmark works. The figures mean little."""
    repetitions: int | None = None
    """The number of turns of each contestant. None: the benchmark's default."""
    only: str | None = None
    """What the name of a contestant has in it, in any case. None: all take part."""

    def takes(self, contestant: str) -> bool:
        """Return whether a contestant takes part, by its name."""
        return self.only is None or self.only.lower() in contestant.lower()

    @property
    def arguments(self) -> list[str]:
        """These options as command-line arguments."""
        repetitions = [] if self.repetitions is None else [f"--repetitions={self.repetitions}"]
        return ["--quick"] * self.quick + repetitions


@attrs.frozen
class Report:
    """The result of a benchmark. The format of ``as_json`` is stable: tools may rely on it."""

    benchmark: str
    rows: list[dict[str, Any]]
    """One dict of plain values for each row of the table, all with the same keys."""
    ratios: dict[str, float]
    """Ratios between Chandy and its peers in one run, by name."""
    settings: dict[str, Any] = attrs.field(factory=dict)
    """Sizes and repetitions."""

    @property
    def environment(self) -> dict[str, Any]:
        """How the figures were measured: machine, versions, sizes, repetitions."""
        return {**environment(), **self.settings}

    def beside(self, earlier: Mapping[str, Any]) -> Report:
        """Return a report with the figures of an earlier one, too, of what was not measured this time.

        Of a part that was, all ratios are this run's: figures of two runs are not divided.

        Args:
            earlier: as ``as_json`` has written it. Its rows have a part and a contestant, or are all replaced.
        """
        measured = {(row["part"], row["contestant"]) for row in self.rows if "part" in row}
        old = [row for row in earlier["rows"] if "part" in row]
        kept = [row for row in old if (row["part"], row["contestant"]) not in measured]
        others = {row["part"] for row in old} - {part for part, _ in measured}
        prefixes = tuple(f"{part}:" for part in others)
        ratios = {name: ratio for name, ratio in earlier["ratios"].items() if name.startswith(prefixes)}
        return attrs.evolve(self, rows=[*kept, *self.rows], ratios=ratios | self.ratios)

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
        """Print the table, the ratios and the environment."""
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


def read(file: Path) -> dict[str, Any]:
    """Return the report in a file, as ``Report.as_json`` has written it."""
    found: dict[str, Any] = json.loads(file.read_text())
    return found


def environment() -> dict[str, Any]:
    """Return the machine and the versions of the measurement."""
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
    """Return the median, the least and the greatest of some figures."""
    return {"median": median(values), "least": min(values), "greatest": max(values)}


def paired_ratio(own: Sequence[_Turn], peers: Sequence[_Turn], figure: Callable[[_Turn], float]) -> float:
    """Return the median of the ratios of paired turns. Pairs cancel the drift of the machine's speed.

    Args:
        own: the turns of one contestant.
        peers: the same turns of another contestant.
        figure: returns the figure of a turn that is compared.

    Raises:
        ValueError: the numbers of turns differ, or there are none.
    """
    return median(figure(one) / figure(peer) for one, peer in zip(own, peers, strict=True))


def console() -> Console:
    """Return the console of the benchmarks."""
    found = Console()
    return found if found.is_terminal else Console(width=PLAIN_WIDTH)


def _processor() -> str:
    """Return the name of the processor. Python's own ``platform`` knows it on few systems only."""
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
