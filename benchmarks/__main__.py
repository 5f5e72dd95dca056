"""The benchmarks from the command line: ``python -m benchmarks NAME [--quick] [--json FILE] [--chart FILE]``."""

from __future__ import annotations

import importlib
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import click

from .report import RESULTS, Options, Report, console

BENCHMARKS = {
    "recovery": "from a failure to the first new batch, and of what that time consists, beside Spark and Flink",
    "throughput": "rows a second of every interface, beside Spark's own",
    "checkpoint_cost": "what checkpoints take from a stream that runs, and what they write",
    "scale": "the coordinator's own time and memory with 10 to 10,000 shards",
    "latency": "the smallest batch, beside native queries with state and without",
    "aggregate": "where the time of running aggregates goes, beside Spark's own count",
    "operator": "one processor over real flights, with and without checkpoints, beside PySpark's own operator",
    "growth": "what a key costs as the state grows, and what that cost is made of",
    "store_requests": "requests and seconds of a checkpoint on a store that is 30 ms away",
}
"""By the name of its module, what a benchmark shows. A module has ``run(options)`` and ``draw(report, path)``."""


def measure(name: str, options: Options, json: Path | None, charts: Sequence[Path]) -> None:
    """Run one benchmark, print it, and write its files."""
    module = importlib.import_module(f"{__package__}.{name}")
    report: Report = module.run(options)
    report.show(console())
    if json is not None:
        json.parent.mkdir(parents=True, exist_ok=True)
        json.write_text(report.as_json())
    for chart in charts:
        chart.parent.mkdir(parents=True, exist_ok=True)
        module.draw(report, chart)


def measure_all(options: Options, folder: Path) -> list[str]:
    """Run every benchmark in a process of its own, for what a JVM has been through is in its pace; return who failed.

    Args:
        options: for each of them.
        folder: takes figures and charts.
    """
    failed = []
    for name in BENCHMARKS:
        command = [sys.executable, "-m", __package__, name, *options.arguments]
        command += ["--json", str(folder / f"{name}.json")]
        command += [f"--chart={folder / f'{name}{suffix}'}" for suffix in (".png", ".svg")]
        if subprocess.run(command, check=False).returncode:
            failed.append(name)
    return failed


_LIST = "\n".join(f"  {name}: {what}\n" for name, what in BENCHMARKS.items())


@click.command(epilog=f"\b\nBenchmarks:\n{_LIST}")
@click.argument("name", type=click.Choice([*BENCHMARKS, "all"]))
@click.option("--quick", is_flag=True, help="Small sizes, to see that it works.")
@click.option("--repetitions", type=click.IntRange(min=1), help="Turns of each contestant.")
@click.option("--json", type=click.Path(dir_okay=False, path_type=Path), help="Write the figures here.")
@click.option(
    "--chart",
    "charts",
    type=click.Path(dir_okay=False, path_type=Path),
    multiple=True,
    help="Draw them here: .png or .svg; may be given again.",
)
def main(
    name: str, quick: bool, repetitions: int | None, json: Path | None, charts: tuple[Path, ...]
) -> None:
    """Measure Chandy beside what one would use instead, in one run.

    ``all`` runs every benchmark and writes JSON and charts (PNG and SVG) into ``benchmarks/results``.
    """
    options = Options(quick, repetitions)
    if name != "all":
        measure(name, options, json, charts)
    elif failed := measure_all(options, RESULTS):
        raise SystemExit(f"failed: {', '.join(failed)}")


if __name__ == "__main__":
    main()
