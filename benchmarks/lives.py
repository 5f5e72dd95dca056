"""A driver as a child process: its events as it tells them, its death, and the end of all that it started."""

from __future__ import annotations

import contextlib
import glob
import json
import os
import queue
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Self

Event = dict[str, Any]

REPOSITORY = Path(__file__).resolve().parent.parent
_EVENT = '{"event": '
_DEADLINE_SECONDS = 300.0
_HOSTS_DEADLINE_SECONDS = 30.0


class Life:
    """One run of a driver, in a process group with the JVM that it starts. It is told things by files."""

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
            arguments: of the driver.
            module: the driver's; it tells its events by ``say``.
            folder: where it and all below it keep their files.
            log: takes what they print.
            environment: variables beside those that this process has.
        """
        self.started_at = time.time()
        self._events: queue.SimpleQueue[Event | None] = queue.SimpleQueue()
        # What Spark leaves behind when it is killed is then in that folder and goes with it.
        temporary = folder / "tmp"
        temporary.mkdir(exist_ok=True)
        given = os.environ | dict(environment or {})
        variables = {
            **given,
            "CHANDY_RUNTIME_DIR": str(runtime(folder)),
            "PYTHONPATH": os.pathsep.join([str(REPOSITORY), *filter(None, [given.get("PYTHONPATH")])]),
            "TMPDIR": str(temporary),
        }
        # Peers come with their bytecode, from their packages: a checkout that may not keep its own would be compiled
        # in every process anew.
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
            # A group of its own, so that the JVM dies in the same moment.
            start_new_session=True,
        )
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    @property
    def pid(self) -> int:
        """The driver's process."""
        return self._process.pid

    @property
    def is_alive(self) -> bool:
        """Whether the driver has not ended."""
        return self._process.poll() is None

    def events(self) -> Iterator[Event]:
        """Yield what the driver tells, until it has ended.

        Raises:
            TimeoutError: it was silent for too long.
        """
        while (event := self.next_event(_DEADLINE_SECONDS)) is not None:
            yield event

    def next_event(self, timeout: float) -> Event | None:
        """Return the next event; None if the driver and its JVM have ended.

        Raises:
            TimeoutError: there is none in so many seconds.
        """
        try:
            return self._events.get(timeout=timeout)
        except queue.Empty:
            raise TimeoutError(f"The driver said nothing for {timeout:g} s") from None

    def await_event(self, name: str) -> Event:
        """Return the next event of this name; those before it are passed over.

        Raises:
            RuntimeError: the driver has ended.
            TimeoutError: it was silent for too long.
        """
        for event in self.events():
            if event["event"] == name:
                return event
        raise RuntimeError(f"The driver has ended before it told of {name!r}: {self._log.name}")

    def kill(self) -> float:
        """Kill driver and JVM with SIGKILL; return when that was, in seconds since 1970."""
        # It may have ended by itself.
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.pid, signal.SIGKILL)
        killed_at = time.time()
        self._process.wait()
        return killed_at

    def wait(self) -> int:
        """Wait until the driver and its JVM have ended; return the driver's exit code."""
        # Both hold the pipe: it ends with the last of them.
        self._reader.join()
        return self._process.wait()

    def exit_code(self) -> int:
        """Wait until the driver has ended, though its JVM may live; return the exit code, minus a signal's number."""
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
        # The pipe is open as long as one process of the group lives.
        if self._reader.is_alive():
            self.kill()
        self.wait()
        assert self._process.stdout is not None
        self._process.stdout.close()
        self._log.close()


def say(event: str, **facts: Any) -> None:
    """Tell the parent, from within the child; whoever reads its stdout knows an event by its first bytes."""
    line = json.dumps({"event": event, "at": time.time(), **facts}) + "\n"
    os.write(sys.stdout.fileno(), line.encode())


def runtime(folder: Path) -> Path:
    """Where the state hosts of all lives meet their tasks; a short name, for socket paths must be short."""
    return folder / "r"


def await_hosts(folder: Path) -> bool:
    """Wait until no state host lives any more; return whether that is so.

    One that ends takes its meeting place with it, one that is killed leaves a socket that nobody listens on.
    """
    # Of no concern to a child, which must not be slower for it.
    from chandy.state.host.discovery import is_listening

    deadline = time.monotonic() + _HOSTS_DEADLINE_SECONDS
    while any(map(is_listening, paths(runtime(folder) / "meet", "*/*.sock"))):
        if time.monotonic() > deadline:
            return False
        time.sleep(0.05)
    return True


def paths(folder: Path, pattern: str) -> Iterator[Path]:
    """Yield what matches a pattern below a folder; what goes while it is looked for is not there."""
    # Before Python 3.13, Path.glob raises for a folder that goes before it has looked into it.
    return (folder / path for path in glob.iglob(pattern, root_dir=folder))  # noqa: PTH207
