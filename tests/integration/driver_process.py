"""A driver in a process of its own, which is killed with its JVM and its Python workers."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import attrs

from ..waiting import DEADLINE
from .drivers import EVENT


@attrs.define
class DriverProcess:
    """A driver's process, and the events that it has told so far."""

    process: subprocess.Popen[str]
    events: list[str] = attrs.field(factory=list)

    def listen(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            if line.startswith(EVENT):
                self.events.append(line[len(EVENT) :].strip())

    def told(self, event: str) -> bool:
        """Whether an event has come; fails if it cannot come any more."""
        found = any(one.startswith(event) for one in self.events)
        assert found or self.process.poll() is None, f"the driver has ended after {self.events[-5:]}"
        return found


@contextlib.contextmanager
def driver(module: str, folder: Path, runtime: Path, options: Mapping[str, Any]) -> Iterator[DriverProcess]:
    """Run a module of this package with options as JSON; its errors go to ``driver.log`` in the folder."""
    given = {name: str(value) if isinstance(value, Path) else value for name, value in options.items()}
    with (folder / "driver.log").open("a") as log:
        process = subprocess.Popen(
            [sys.executable, "-m", f"tests.integration.{module}", json.dumps(given)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=log,
            text=True,
            env={**os.environ, "CHANDY_RUNTIME_DIR": str(runtime)},
            process_group=0,
        )
    made = DriverProcess(process)
    listener = threading.Thread(target=made.listen)
    listener.start()
    try:
        yield made
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        listener.join(DEADLINE)
