"""Runs the suites that every change must pass, side by side, and prints what each took.

Suites of one lane run one after the other, and the lanes run at the same time: what computes beside what waits for
leases, time-outs and servers. Each line of output begins with the name of its suite. A suite that fails stops no other
one, and what failed is printed once more at the end, so that one run shows all failures and its last page names them.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import re
import shutil
import signal
import subprocess
import sys
import textwrap
import threading
import time
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field

ENVIRONMENT = ".venv/.installed"
LANES = (
    # What computes. What takes seconds comes first, because it says soonest that something is wrong.
    ("lint", "types", "site", "test"),
    # What waits. More lanes would end no sooner, because processors are the limit, and Spark gives a Python worker just
    # ten seconds to start. The other lane needs the archive of classes only when its first suites have ended.
    (".venv/classes.jsa", "test-cluster", "test-servers"),
)
"""Targets of the Makefile: what a person runs, too, each by its own ``make``."""
LAST = ("test-kills", "test-examples", "test-migration", "compat-4.1", "test-yarn")
"""What the lane takes that has come to its end first, one by one: the longest first, so that both end together."""
BROWSER = "test-browser"
"""What is taken last, where there is a Chromium."""
CHROMIUMS = ("chromium", "chromium-browser", "google-chrome")
SUMMARY = re.compile(r"\d+ (?:passed|failed|errors?|skipped)\b.* in [\d.]+s")
COUNT = re.compile(r"(\d+) (passed|failed|error|skipped)")
SECTION = re.compile(r"=+ (.*?) =+$")
"""A heading of pytest's output."""
SHOWN = 40
"""Lines of a failed suite that are printed once more."""
WIDEST = 180
"""Characters of a line that names a failed test below the table: who keeps the output may cut longer ones."""
PIECES = 8
"""Lines that such a test has at most, with what went wrong."""
LIMIT = float(os.environ.get("CHANDY_CI_LIMIT", "3600"))
"""Seconds until a run is ended that hangs, ahead of who runs it: it then fails with a table and with what hung."""
BEGUN = time.monotonic()
RUNNING: list[subprocess.Popen[str]] = []
"""The suites that have begun and not ended, each the leader of a group of processes."""


@dataclass
class Result:
    """What a suite came to."""

    name: str
    code: int = 0
    wall: float = 0.0
    cpu: float = 0.0
    """Seconds of processor time of all processes that the suite has waited for."""
    counts: dict[str, int] = field(default_factory=dict)
    section: str = ""
    """Heading of the part of pytest's output that is being read."""
    reported: deque[str] = field(default_factory=lambda: deque(maxlen=SHOWN))
    """End of what pytest reports of the tests that failed."""
    failed: list[str] = field(default_factory=list)
    """Lines of the summary that name a test that failed."""
    last: deque[str] = field(default_factory=lambda: deque(maxlen=SHOWN))

    def note(self, line: str) -> None:
        """Add a line of output: the counts of a summary of pytest, and what it says of failures."""
        self.last.append(line)
        if heading := SECTION.match(line):
            self.section = heading[1]
        if self.section in ("FAILURES", "ERRORS"):
            self.reported.append(line)
        # Log records begin with a level, too.
        if line.startswith(("FAILED tests/", "ERROR tests/")):
            self.failed.append(line)
        if SUMMARY.search(line):
            for number, outcome in COUNT.findall(line):
                self.counts[outcome] = self.counts.get(outcome, 0) + int(number)

    def failures(self) -> Iterator[str]:
        """Return what a failed suite reports of its failed tests, or, if it names none, the end of its output."""
        if self.code:
            for line in self.reported if self.failed else self.last:
                yield f"[{self.name}] {line.rstrip()}"


def end(process: subprocess.Popen[str]) -> None:
    """End a suite that has not come to its end in time. Python shows where its threads are (faulthandler)."""
    for number in (signal.SIGABRT, signal.SIGKILL):
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, number)
        time.sleep(10)


def run(target: str) -> Result:
    """Make a target, pass its output on, and return what came of it."""
    result = Result(target)
    begun = time.monotonic()
    process = subprocess.Popen(
        ["make", "--keep-going", target],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
        start_new_session=True,
    )
    limit = threading.Timer(max(0.0, BEGUN + LIMIT - begun), end, (process,))
    limit.daemon = True
    limit.start()
    RUNNING.append(process)

    def pass_on() -> None:
        assert process.stdout is not None
        for line in process.stdout:
            result.note(line)
            print(f"[{target}] {line}", end="", flush=True)

    reader = threading.Thread(target=pass_on, daemon=True)
    reader.start()
    _, status, usage = os.wait4(process.pid, 0)
    limit.cancel()
    RUNNING.remove(process)
    # A process that a failed test has left may keep the output open for ever.
    reader.join(10)
    result.code = os.waitstatus_to_exitcode(status)
    result.wall = time.monotonic() - begun
    result.cpu = usage.ru_utime + usage.ru_stime
    return result


def table(results: list[Result], wall: float) -> Iterator[str]:
    """Return the lines of a table: suite, tests, wall, CPU."""
    yield f"{'suite':<32}{'passed':>8}{'failed':>8}{'skipped':>9}{'wall':>9}{'CPU':>9}"
    for one in results:
        failed = one.counts.get("failed", 0) + one.counts.get("error", 0)
        numbers = one.counts.get("passed", 0), failed, one.counts.get("skipped", 0)
        shown = "".join(f"{number or '-':>{width}}" for number, width in zip(numbers, (8, 8, 9), strict=True))
        outcome = "" if one.code == 0 else f"  FAILED ({one.code})"
        yield f"{one.name:<32}{shown}{one.wall:>7.0f} s{one.cpu:>7.0f} s{outcome}"
    cpu = sum(one.cpu for one in results)
    yield f"{'all':<32}{'':>25}{wall:>7.0f} s{cpu:>7.0f} s"


def main() -> int:
    """Run all lanes; return 0 if every suite has passed."""
    # A run that is told to end ends its suites, too.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    # All suites need the environment: two of them must not make it at the same time.
    results = [run(ENVIRONMENT)]

    has_browser = any(map(shutil.which, CHROMIUMS))
    left = deque((*LAST, BROWSER) if has_browser else LAST)

    def taken() -> str | None:
        try:
            return left.popleft()
        except IndexError:
            return None

    def lane(suites: tuple[str, ...]) -> None:
        results.extend(map(run, itertools.chain(suites, iter(taken, None))))

    if results[0].code == 0:
        threads = [threading.Thread(target=lane, args=(suites,), daemon=True) for suites in LANES]
        try:
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
        except KeyboardInterrupt:
            for process in RUNNING:
                os.killpg(process.pid, signal.SIGTERM)
            raise
    for one in results:
        for line in one.failures():
            print(line, flush=True)
    print(*table(results, time.monotonic() - BEGUN), sep="\n", flush=True)
    if not has_browser:
        print(f"{BROWSER} did not run: there is no Chromium (apt-get install chromium)", flush=True)
    for one in results:
        # Where output is kept, it may be the last lines alone.
        for line in one.failed:
            print(*textwrap.wrap(line, WIDEST, max_lines=PIECES), sep="\n", flush=True)
    return 0 if all(one.code == 0 for one in results) else 1


if __name__ == "__main__":
    sys.exit(main())
