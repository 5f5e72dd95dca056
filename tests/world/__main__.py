"""``python -m tests.world``: runs worlds until they have taken so many steps, or until one finds something."""

from __future__ import annotations

import itertools
import logging
import os
import sys
import time
from argparse import ArgumentParser

from .coverage import Coverage
from .runs import RunFailedError, find_in


def main() -> int:
    """Run as the command line says. The exit code is 1 if something was found."""
    parser = ArgumentParser(prog="python -m tests.world", description=__doc__)
    parser.add_argument(
        "--seed", type=int, default=0, help="of the first run; the next ones follow (default: 0)"
    )
    parser.add_argument("--steps", type=int, default=1_000_000, help="to take at least (default: 1000000)")
    options = parser.parse_args()
    if os.environ.get("PYTHONHASHSEED") != "0":
        # The order of sets is part of what a seed decides.
        os.execve(
            sys.executable,
            [sys.executable, "-m", "tests.world", *sys.argv[1:]],
            os.environ | {"PYTHONHASHSEED": "0"},
        )
    logging.disable(logging.CRITICAL)
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


if __name__ == "__main__":
    sys.exit(main())
