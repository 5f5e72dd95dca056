"""A driver of the demo without Spark, ``python -m tests.benchmarks.fake_driver``: it tells events, and goes wrong.

What it is to do is in the file ``script`` of its folder, a line for each life: names of events in their order,
``days=N`` for a batch that ends with so many days, and at the end what goes wrong, if anything.
"""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path

from benchmarks.lives import say

from ..waiting import DEADLINE

FACTS = {
    "coordinator": {"restored": None, "batch": None},
    "query": {"in_place": True},
}


def main(folder: Path) -> None:
    scripts = (folder / "script").read_text().splitlines()
    (folder / "script").write_text("\n".join(scripts[1:]))
    (folder / "pids").open("a").write(f"{os.getpid()}\n")
    for batch, word in enumerate(scripts[0].split()):
        name, _, number = word.partition("=")
        match name:
            case "days":
                say("batch", batch=batch, days=int(number))
            case "hang":
                _hang(folder)
            case "orphan":
                # It holds stdout, as a JVM does that outlives its driver.
                if os.fork() == 0:
                    _hang(folder)
            case "die":
                os.kill(os.getpid(), signal.SIGKILL)
            case "fail":
                say("failed", why="QueryEndedError: the query ended after 7 of 10 days: it was stopped")
                raise SystemExit(1)
            case "exit":
                raise SystemExit(int(number))
            case _:
                say(name, **FACTS.get(name, {}))


def _hang(folder: Path) -> None:
    """Wait to be killed; leave a mark at last if nobody does."""
    signal.sigtimedwait([], DEADLINE)
    (folder / "outlived").touch()
    os._exit(0)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
