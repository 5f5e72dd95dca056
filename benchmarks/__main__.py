"""The benchmarks from the command line: ``python -m benchmarks NAME [--quick] [--json FILE] [--chart FILE]``."""

from __future__ import annotations

import importlib
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import click

from .report import RESULTS, Options, Report, console, read

BENCHMARKS = {
    "recovery": "the time from a failure to the first new batch, and its parts, beside Spark and Flink",
    "throughput": "rows a second of every interface, of keys that repeat and of windows, beside Spark's own",
    "checkpoint_cost": "what checkpoints cost a running stream, and what they write",
    "scale": "the coordinator's own time and memory with 10 to 10,000 shards",
    "cluster": "three machines: rows a second, losses, a machine that joins, and what standbys and mTLS cost",
    "latency": "the smallest batch, beside native queries with state and without",
    "sinks": "rows a second and seconds to a reader of every sink, beside Spark's own",
    "upgrade": "what digests, a shadow and a switch cost, beside a stop and a start",
}
"""What each benchmark shows, by the name of its module. A module has ``run(options)`` and ``draw(report, path)``."""
SELECTIVE = frozenset({"cluster", "recovery", "sinks", "throughput", "upgrade"})
"""The benchmarks of which a few contestants can be measured alone."""


def measure(name: str, options: Options, json: Path | None, charts: Sequence[Path]) -> None:
    """Run one benchmark, print it, and write its files."""
    module = importlib.import_module(f"{__package__}.{name}")
    report: Report = module.run(options)
    report.show(console())
    if json is not None and options.only is not None and json.exists():
        report = report.beside(read(json))
    if json is not None:
        json.parent.mkdir(parents=True, exist_ok=True)
        json.write_text(report.as_json())
    for chart in charts:
        chart.parent.mkdir(parents=True, exist_ok=True)
        module.draw(report, chart)


def measure_all(options: Options, folder: Path) -> list[str]:
    """Run all benchmarks, and return the names of those that failed.

    Each one has a process of its own, because the history of a JVM changes its speed.

    Args:
        options: the options of each benchmark.
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
@click.option("--quick", is_flag=True, help="Use small sizes, to see that it works.")
@click.option("--repetitions", type=click.IntRange(min=1), help="Number of turns of each contestant.")
@click.option(
    "--only",
    metavar="TEXT",
    help=f"Only contestants with this text in their names, such as Kafka ({', '.join(sorted(SELECTIVE))}).",
)
@click.option(
    "--json",
    type=click.Path(dir_okay=False, path_type=Path),
    help="Write the figures to this file. With --only, its figures of other parts stay.",
)
@click.option(
    "--chart",
    "charts",
    type=click.Path(dir_okay=False, path_type=Path),
    multiple=True,
    help="Draw them in this file: .png or .svg. May be repeated.",
)
def main(
    name: str,
    quick: bool,
    repetitions: int | None,
    only: str | None,
    json: Path | None,
    charts: tuple[Path, ...],
) -> None:
    """Measure Chandy beside its alternatives in one run.

    ``all`` runs every benchmark and writes JSON and charts (PNG and SVG) into ``benchmarks/results``.
    """
    if only is not None and name not in SELECTIVE:
        raise click.UsageError(f"--only is for {', '.join(sorted(SELECTIVE))}, not for {name}")
    options = Options(quick, repetitions, only)
    if name != "all":
        measure(name, options, json, charts)
    elif failed := measure_all(options, RESULTS):
        raise SystemExit(f"failed: {', '.join(failed)}")


if __name__ == "__main__":
    main()
