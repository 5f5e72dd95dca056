"""`chandy demo`: a small pipeline whose driver is killed, and whose totals are right afterwards."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import click

from .demo_driver import NUMBERS, run, totals_of
from .group import check_java, main
from .printing import failure, say

_BEFORE: Final = 10
"""The first driver is killed after at least so many batches, and a checkpoint."""
_AFTER: Final = 15
"""How many batches the second driver adds at least."""
_SECONDS: Final = 300.0
"""How long a driver may take."""


@main.command()
@click.option("--keep", is_flag=True, help="Keep the checkpoints, to look at them with the other commands.")
def demo(keep: bool) -> None:
    """Kill the driver of a small pipeline, start it again, and check its totals. It takes half a minute.

    It needs Java 17 or newer, as Spark does, and writes below the directory for temporary files alone.
    """
    check_java()
    # A short name: the paths of sockets are limited.
    folder = Path(tempfile.mkdtemp(prefix="chandy-"))
    try:
        _run(folder)
    finally:
        if keep:
            say(f"The checkpoints are kept: chandy list {folder / 'checkpoints'}")
        else:
            shutil.rmtree(folder, ignore_errors=True)


def _run(folder: Path) -> None:
    say(f"A pipeline adds up numbers by their last digit: {NUMBERS:,} a batch, a checkpoint each second.")
    batches, checkpoint = 0, None
    with _driver(folder, sys.maxsize) as events:
        for event in events:
            if event["event"] == "checkpoint":
                checkpoint = event["id"]
                say(f"  checkpoint {checkpoint} completed in {event['seconds'] * 1000:.0f} ms")
            batches = event.get("batches", batches)
            if batches >= _BEFORE and checkpoint is not None:
                break
    say(f"  after {batches} batches, its driver and its JVM are killed (SIGKILL)")
    say("The same program is started again.")
    restored: int | None = None
    said: list[dict[str, Any]] = []
    with _driver(folder, batches + _AFTER) as events:
        for event in events:
            restored = event.get("restored", restored)
            if event["event"] == "batch":
                if not said:
                    say(f"  it restored checkpoint {restored}, and went on with batch {event['batches']}")
                said.append(event)
    batches = said[-1]["batches"]
    found = {int(digit): tuple(both) for digit, both in said[-1]["totals"].items()}
    if found != (expected := totals_of(batches)):
        raise failure(f"the totals are wrong: expected {expected}, found {found}")
    each = batches * NUMBERS // 10
    say(
        f"After {batches} batches, each digit has {each:,} numbers and the right sum: nothing was lost or doubled."
    )


@contextlib.contextmanager
def _driver(folder: Path, batches: int) -> Iterator[Iterator[dict[str, Any]]]:
    """Start a driver, give what it says, and kill it with all that it has started, if it has not ended."""
    temporary, log = folder / "tmp", folder / "driver.log"
    temporary.mkdir(exist_ok=True)
    call = f"run({str(folder / 'checkpoints')!r}, {batches})"
    with log.open("a") as output:
        process = subprocess.Popen(
            [sys.executable, "-c", f"from {run.__module__} import run; {call}"],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=output,
            text=True,
            errors="replace",
            cwd=folder,
            env={**os.environ, "TMPDIR": str(temporary), "CHANDY_RUNTIME_DIR": str(folder / "r")},
            start_new_session=True,
        )
    limit = threading.Timer(_SECONDS, _kill, (process,))
    limit.daemon = True
    limit.start()
    try:
        yield _said(process, log)
    finally:
        limit.cancel()
        _kill(process)
        process.communicate()


def _said(process: subprocess.Popen[str], log: Path) -> Iterator[dict[str, Any]]:
    """Yield what a driver says, until it has ended.

    Raises:
        ClickException: it has failed, or was killed because it took too long.
    """
    assert process.stdout is not None
    for line in process.stdout:
        if line.startswith('{"event": '):
            yield json.loads(line)
    if code := process.wait():
        lines = log.read_text(errors="replace").splitlines()
        why = f"a driver did not end within {_SECONDS:g} s" if code < 0 else "a driver has failed"
        raise failure("\n".join([f"{why}; the end of its log:", *lines[-20:]]))


def _kill(process: subprocess.Popen[str]) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
