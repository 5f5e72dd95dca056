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
    parser.add_argument("--bug", help="put this bug into the product: the exit code is 0 if it is found")
    parser.add_argument(
        "--bugs", nargs="*", metavar="AREA", help="put in all bugs, and print what finds each"
    )
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
        return _finds(options.bug)
    if options.bugs is not None:
        return _finds_all(options.bugs)
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


def _finds(name: str) -> int:
    """Put a bug into the product; return 0 if it is found."""
    from .bugs import table

    how = table.found(table.named(name))
    print(how or "nothing")
    return 0 if how else 1


def _finds_all(areas: list[str]) -> int:
    """Put in the bugs of some areas, none: of all, and print a table; return 0 if each is found."""
    from .bugs import AREAS, table

    print(table.HEAD)
    are_found = []
    for row, is_found in table.rows(areas or [*AREAS]):
        print(row, flush=True)
        are_found.append(is_found)
    return 0 if all(are_found) else 1


if __name__ == "__main__":
    sys.exit(main())
