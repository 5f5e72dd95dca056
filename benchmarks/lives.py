"""Runs a driver as a child process: reads its events, kills it, and waits for the end of all that it started."""

from __future__ import annotations

import contextlib
import glob
import json
import logging
import os
import queue
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, Self

Event = dict[str, Any]

REPOSITORY = Path(__file__).resolve().parent.parent
_EVENT = '{"event": '
_DEADLINE_SECONDS = 300.0
_HOSTS_DEADLINE_SECONDS = 30.0
_POLL_SECONDS = 0.1


class Life:
    """One run of a driver, in a process group with the JVM that it starts. The parent talks to it through files."""

    def __init__(
        self,
        arguments: list[str],
        *,
        module: str = "benchmarks.driver",
        folder: Path,
        log: Path,
        environment: Mapping[str, str] | None = None,
    ) -> None:
        """Start the process.

        Args:
            arguments: the arguments of the driver.
            module: the module of the driver. It sends its events by ``say``.
            folder: takes all files of the driver and its child processes.
            log: takes their output.
            environment: variables in addition to those of this process.
        """
        self.started_at = time.time()
        self._events: queue.SimpleQueue[Event | None] = queue.SimpleQueue()
        # Files that a killed Spark leaves behind are then in this folder and are deleted with it.
        temporary = folder / "tmp"
        temporary.mkdir(exist_ok=True)
        given = os.environ | dict(environment or {})
        variables = {
            **given,
            "CHANDY_RUNTIME_DIR": str(runtime(folder)),
            "PYTHONPATH": os.pathsep.join([str(REPOSITORY), *filter(None, [given.get("PYTHONPATH")])]),
            "TMPDIR": str(temporary),
        }
        # The peers' packages are installed with bytecode. Without it, every process would compile this checkout again.
        variables.pop("PYTHONDONTWRITEBYTECODE", None)
        self._log = log.open("a")
        self._process = subprocess.Popen(
            [sys.executable, "-m", module, *arguments],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=self._log,
            text=True,
            errors="replace",
            cwd=folder,
            env=variables,
            # Driver and JVM share a process group, so that one signal kills both.
            start_new_session=True,
        )
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    @property
    def pid(self) -> int:
        """The process id of the driver."""
        return self._process.pid

    @property
    def is_alive(self) -> bool:
        """Whether the driver is running."""
        return self._process.poll() is None

    def events(self) -> Iterator[Event]:
        """Yield the events of the driver until it has ended.

        Raises:
            TimeoutError: no event came for too long.
        """
        while (event := self.next_event(_DEADLINE_SECONDS)) is not None:
            yield event

    def next_event(self, timeout: float) -> Event | None:
        """Return the next event, or None if the driver and its JVM have ended.

        Raises:
            TimeoutError: no event came within ``timeout`` seconds.
        """
        try:
            return self._events.get(timeout=timeout)
        except queue.Empty:
            raise TimeoutError(f"The driver sent no event for {timeout:g} s") from None

    def await_event(self, name: str) -> Event:
        """Return the next event of this name, and skip the events before it.

        Raises:
            RuntimeError: the driver has ended.
            TimeoutError: no event came for too long.
        """
        for event in self.events():
            if event["event"] == name:
                return event
        raise RuntimeError(f"The driver ended before it sent {name!r}. Its log: {self._log.name}")

    def kill(self) -> float:
        """Kill driver and JVM with SIGKILL, and return the time in seconds since 1970."""
        # The driver may have ended by itself.
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.pid, signal.SIGKILL)
        killed_at = time.time()
        self._process.wait()
        return killed_at

    def ask_to_end(self) -> None:
        """Send SIGTERM to the driver, which may stop as it likes."""
        os.kill(self.pid, signal.SIGTERM)

    def wait(self) -> int:
        """Wait until the driver and its JVM have ended, and return the driver's exit code."""
        # Driver and JVM both hold the pipe, so it ends with the last of them.
        self._reader.join()
        return self._process.wait()

    def exit_code(self) -> int:
        """Wait until the driver has ended; its JVM may live on. Return the exit code, negative for a signal."""
        return self._process.wait()

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            if line.startswith(_EVENT):
                self._events.put(json.loads(line))
            else:
                self._log.write(line)
        self._events.put(None)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        # The pipe is open as long as any process of the group lives.
        if self._reader.is_alive():
            self.kill()
        self.wait()
        assert self._process.stdout is not None
        self._process.stdout.close()
        self._log.close()


def say(event: str, **facts: Any) -> None:
    """Send an event to the parent, from the child. The parent recognizes events on stdout by their first bytes."""
    line = json.dumps({"event": event, "at": time.time(), **facts}) + "\n"
    os.write(sys.stdout.fileno(), line.encode())


@contextlib.contextmanager
def batches_told(
    query: Any, facts: Callable[[Mapping[str, Any]], Mapping[str, Any] | None]
) -> Iterator[None]:
    """Send the event ``batch`` for each batch with rows that a query commits inside of the ``with``, from the child.

    Args:
        query: has the reports of its progress.
        facts: what the event says besides the batch's number, given the report; None: it is not sent.
    """
    over = threading.Event()

    def tell() -> None:
        newest = -1
        while not over.wait(_POLL_SECONDS):
            for report in query.recentProgress:
                if (
                    report["batchId"] > newest
                    and report["numInputRows"]
                    and (told := facts(report)) is not None
                ):
                    newest = report["batchId"]
                    say("batch", batch=newest, **told)

    telling = threading.Thread(target=tell, daemon=True)
    telling.start()
    try:
        yield
    finally:
        over.set()
        telling.join()


class _Warm(logging.Handler):
    def emit(self, record: logging.LogRecord) -> None:
        if record.levelno == logging.INFO:
            say("warm")


def tell_when_warm() -> None:
    """Have the child send the event ``warm`` once it stands by and is warm, which its log tells."""
    logging.getLogger("chandy.coordinator.wiring.warm_up").addHandler(_Warm())


def runtime(folder: Path) -> Path:
    """Return the runtime directory of the state hosts of all lives. Its name is short: socket paths are limited."""
    return folder / "r"


def await_hosts(folder: Path) -> bool:
    """Wait until no state host runs any more. Return False if one still runs after the deadline.

    A host that ends deletes its discovery directory. A host that is killed leaves a socket on which nobody listens.
    """
    # Imported here, because children do not need it and must start fast.
    from chandy.state.host.discovery import is_listening
    from chandy.state.host.host_config import DISCOVERY_FOLDER

    deadline = time.monotonic() + _HOSTS_DEADLINE_SECONDS
    while any(map(is_listening, paths(runtime(folder) / DISCOVERY_FOLDER, "*/*.sock"))):
        if time.monotonic() > deadline:
            return False
        time.sleep(0.05)
    return True


def paths(folder: Path, pattern: str) -> Iterator[Path]:
    """Yield the paths below a folder that match a pattern. Paths that are deleted meanwhile are left out."""
    # Before Python 3.13, Path.glob raises if a folder is deleted before it is listed.
    return (folder / path for path in glob.iglob(pattern, root_dir=folder))  # noqa: PTH207
