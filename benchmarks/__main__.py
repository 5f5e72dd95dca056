"""The benchmarks from the command line: ``python -m benchmarks NAME [--quick] [--json FILE] [--chart FILE]``."""

from __future__ import annotations

import importlib
from pathlib import Path

import click

from .report import RESULTS, Options, Report, console

BENCHMARKS = {
    "throughput": "rows a second of every interface, beside Spark's own",
    "aggregate": "where the time of running aggregates goes, beside Spark's own count",
    "operator": "one processor over real flights, with and without checkpoints, beside PySpark's own operator",
    "growth": "what a key costs as the state grows, and what that cost is made of",
    "store_requests": "requests and seconds of a checkpoint on a store that is 30 ms away",
}
"""By the name of its module, what a benchmark shows. A module has ``run(options)`` and ``draw(report, path)``."""


def measure(name: str, options: Options, json: Path | None, chart: Path | None) -> Report:
    """Run one benchmark, print it, and write its files."""
    module = importlib.import_module(f"{__package__}.{name}")
    report: Report = module.run(options)
    report.show(console())
    if json is not None:
        json.parent.mkdir(parents=True, exist_ok=True)
        json.write_text(report.as_json())
    if chart is not None:
        chart.parent.mkdir(parents=True, exist_ok=True)
        module.draw(report, chart)
    return report


_LIST = "\n".join(f"  {name}: {what}\n" for name, what in BENCHMARKS.items())


@click.command(epilog=f"\b\nBenchmarks:\n{_LIST}")
@click.argument("name", type=click.Choice([*BENCHMARKS, "all"]))
@click.option("--quick", is_flag=True, help="Small sizes, to see that it works.")
@click.option("--repetitions", type=click.IntRange(min=1), help="Turns of each contestant.")
@click.option("--json", type=click.Path(dir_okay=False, path_type=Path), help="Write the figures here.")
@click.option(
    "--chart", type=click.Path(dir_okay=False, path_type=Path), help="Draw them here: .png or .svg."
)
def main(name: str, quick: bool, repetitions: int | None, json: Path | None, chart: Path | None) -> None:
    """Measure Chandy beside what one would use instead, in one run.

    ``all`` runs every benchmark and writes JSON and charts (PNG and SVG) into ``benchmarks/results``.
    """
    options = Options(quick, repetitions)
    if name != "all":
        measure(name, options, json, chart)
        return
    for each in BENCHMARKS:
        report = measure(each, options, RESULTS / f"{each}.json", RESULTS / f"{each}.png")
        importlib.import_module(f"{__package__}.{each}").draw(report, RESULTS / f"{each}.svg")


if __name__ == "__main__":
    main()
