"""``python -m tests.world``: runs worlds until they have taken so many steps, or until one finds something."""

from __future__ import annotations

import itertools
import logging
import os
import sys
import time
from argparse import ArgumentParser

import pytest

from .coverage import Coverage
from .events import events_of
from .runs import EVENTS, RATE, RunFailedError, find_in, run


def main() -> int:
    """Run as the command line says. The exit code is 1 if something was found."""
    parser = ArgumentParser(prog="python -m tests.world", description=__doc__)
    parser.add_argument(
        "--seed", type=int, default=0, help="of the first run; the next ones follow (default: 0)"
    )
    parser.add_argument("--steps", type=int, default=1_000_000, help="to take at least (default: 1000000)")
    parser.add_argument("--bug", help="put this bug into the product: the exit code is 0 if it is found")
    parser.add_argument("--runs", type=int, default=40, help="in which a bug must be found (default: 40)")
    options = parser.parse_args()
    if os.environ.get("PYTHONHASHSEED") != "0":
        # The order of sets is part of what a seed decides.
        os.execve(
            sys.executable,
            [sys.executable, "-m", "tests.world", *sys.argv[1:]],
            os.environ | {"PYTHONHASHSEED": "0"},
        )
    logging.disable(logging.CRITICAL)
    if options.bug is not None:
        return _finds(options.bug, range(options.seed, options.seed + options.runs))
    coverage, began = Coverage(), time.monotonic()
    try:
        find_in(itertools.count(options.seed), options.steps, coverage, lambda line: print(line, flush=True))
    except RunFailedError as error:
        print(error)
        return 1
    finally:
        print(coverage)
        print(f"{coverage.steps / (time.monotonic() - began):,.0f} steps a second")
    return 0


def _finds(bug: str, seeds: range) -> int:
    """Put a bug into the product; return 0 if one of the seeds finds it."""
    from .bugs import put_in

    with pytest.MonkeyPatch.context() as patch:
        put_in(bug, patch)
        for seed in seeds:
            try:
                run(seed, events_of(seed, EVENTS, RATE))
            except Exception as error:  # noqa: BLE001 (whatever it is, it is found)
                print(f"{bug}: found by seed {seed}, {type(error).__name__}: {error}")
                return 0
    print(f"{bug}: not found in {len(seeds)} runs")
    return 1


if __name__ == "__main__":
    sys.exit(main())
