"""Chandy as a contestant: its driver as a child process, its failures, and the parts of its recoveries."""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import signal
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from chandy.state.host.host_config import DISCOVERY_FOLDER

from ..lives import Event, Life, await_hosts, paths, runtime
from ..stores import StoreAt
from .chandy_driver import COMMIT_LOGS, Work
from .query import Feed, Place
from .scenario import Course, Failure, Recovered

LOCAL: Final = (Failure.EXCEPTION, Failure.HOST, Failure.DRIVER, Failure.DRIVER_COLD)
REMOTE: Final = (Failure.EXCEPTION, Failure.HOST, Failure.DRIVER, Failure.MACHINE)
_HOST_PID: Final = re.compile(r"\bserving\b.*\bpid=(\d+)")


class Chandy:
    """One pipeline with one running aggregate."""

    name = "Chandy"

    def __init__(self, course: Course, folder: Path, store: StoreAt) -> None:
        """Create the folder. Nothing is started.

        Args:
            course: the stream.
            folder: a new folder for all files except the store.
            store: takes the checkpoints.
        """
        self.failures: tuple[Failure, ...] = REMOTE if store.remote else LOCAL
        folder.mkdir(parents=True)
        self._folder = folder
        self._store = store
        self._place = Place(folder, COMMIT_LOGS)
        self._work = Work(folder)
        self._feed = Feed(course, self._place)
        self._life: Life | None = None

    def fill(self) -> None:
        """Take every key once, and then a checkpoint."""
        self._life = self._start()
        last = self._feed.fill()
        self._feed.await_commit(last, self._life)
        self._checkpoint(self._life)

    def fail(self, failure: Failure) -> Recovered:
        """Fail and recover. If the driver is killed, Chandy continues in a new process."""
        assert self._life is not None
        life = self._life
        self._checkpoint(life)
        self._feed.replayed(life)
        match failure:
            case Failure.EXCEPTION:
                self._place.ask_to_raise()
                newest = self._feed.next()
                failed_at = life.await_event("raised")["at"]
            case Failure.HOST:
                failed_at = time.time()
                self._kill_host()
                newest = self._feed.next()
            case _:
                failed_at = self._kill_all(life)
                self._lose(failure)
                newest = self._feed.next()
                life = self._life = self._start()
        back_at = self._feed.await_commit(newest, life)
        marks = _marks(life) if failure.kills_driver else {}
        parts = split(failed_at, back_at, marks, life.await_event("recovery"))
        return Recovered(failure, back_at - failed_at, parts)

    def rest(self) -> None:
        """See ``Contestant``."""
        assert self._life is not None
        self._kill_all(self._life)

    def wake(self) -> None:
        """See ``Contestant``."""
        life = self._life = self._start()
        self._feed.await_commit(self._feed.next(), life)
        # Otherwise this event would be taken for that of the next failure.
        life.await_event("recovery")

    def close(self) -> None:
        """Stop everything and delete all its files."""
        if self._life is not None:
            self._life.__exit__()
        # A remaining host would wait some seconds for its driver. If there is none, that must not hide another error.
        with contextlib.suppress(OSError):
            self._kill_host()
        await_hosts(self._folder)
        shutil.rmtree(self._folder, ignore_errors=True)

    def _arguments(self) -> list[str]:
        """Return the arguments of its drivers."""
        arguments = [str(self._folder), f"--storage={self._store.uri}"]
        if not self._store.fenced:
            arguments.append("--unfenced")
        return arguments

    def _start(self) -> Life:
        return Life(
            self._arguments(),
            module="benchmarks.recovery.chandy_driver",
            folder=self._folder,
            log=self._place.log,
            environment=self._store.environment,
        )

    def _checkpoint(self, life: Life) -> None:
        self._work.request.touch()
        life.await_event("checkpoint")

    def _kill_host(self) -> None:
        os.kill(self._host(), signal.SIGKILL)

    def _kill_all(self, life: Life) -> float:
        """Kill driver, JVM and state host at the same time, and return the time."""
        host = self._host()
        killed_at = life.kill()
        os.kill(host, signal.SIGKILL)
        life.__exit__()
        return killed_at

    def _host(self) -> int:
        """Return the process id of the newest state host.

        Raises:
            OSError: no host has started to serve, or its directory is being deleted.
        """
        logs = paths(runtime(self._folder) / DISCOVERY_FOLDER, "*/host.log")
        newest = max(logs, key=lambda path: path.stat().st_mtime, default=None)
        served = [] if newest is None else _HOST_PID.findall(newest.read_text(errors="replace"))
        if not served:
            raise ProcessLookupError(f"no state host has served in {self._folder}")
        return int(served[-1])

    def _lose(self, failure: Failure) -> None:
        """Delete what the failure destroys. The input is not affected."""
        if failure is Failure.DRIVER:
            return
        shutil.rmtree(self._work.cache, ignore_errors=True)
        if failure is Failure.MACHINE:
            for path in (runtime(self._folder), self._work.directories, self._folder / "spark"):
                shutil.rmtree(path, ignore_errors=True)


def _marks(life: Life) -> Mapping[str, float]:
    """Return when a new driver had its session and its coordinator."""
    return {name: life.await_event(name)["at"] for name in ("session", "coordinator")}


def split(failed_at: float, back_at: float, marks: Mapping[str, float], recovery: Event) -> dict[str, float]:
    """Split the time of a recovery into consecutive parts. The last part is the remainder.

    Args:
        failed_at: the time of the failure, in seconds since 1970.
        back_at: the time when the first new batch had committed.
        marks: the times of a new driver's ``session`` and ``coordinator``. Empty if the old driver lives on.
        recovery: the coordinator's metrics of the recovery.
    """
    begun_at, files, opening = recovery["begun_at"], recovery["files"], recovery["opening"]
    if marks:
        parts = {
            "process": marks["session"] - failed_at,
            # The query is defined and checked in this part, too.
            "coordinator": begun_at - marks["session"],
        }
    else:
        parts = {"detect": begun_at - recovery["waiting"] - failed_at, "wait": recovery["waiting"]}
    parts |= {
        "stop": recovery["stopping"],
        "start query": recovery["starting"],
        # The query's progress is restored before it starts, the state in its first batch.
        "restore": recovery["restoring"] + files,
        "open": opening,
    }
    if recovery["in_place"]:
        # The first batch is the new one.
        return parts | {"first batch": back_at - failed_at - sum(parts.values())}
    parts["first batch"] = recovery["first_batch"] - files - opening
    return parts | {"replay": back_at - failed_at - sum(parts.values())}
