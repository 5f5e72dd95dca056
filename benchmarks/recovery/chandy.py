"""Chandy as a contestant: its driver as a child process, its failures, and the parts of the way back."""

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

from ..lives import Event, Life, await_hosts, paths, runtime
from ..stores import StoreAt
from .chandy_driver import COMMIT_LOGS, Work
from .query import Feed, Place
from .scenario import Course, Failure, Recovered

LOCAL: Final = (Failure.EXCEPTION, Failure.HOST, Failure.DRIVER, Failure.DRIVER_COLD)
REMOTE: Final = (Failure.EXCEPTION, Failure.HOST, Failure.DRIVER, Failure.MACHINE)
_HOST_PID: Final = re.compile(r"\bserving\b.*\bpid=(\d+)")


class Chandy:
    """One pipeline with one running aggregate; its state goes into a store."""

    name = "Chandy"

    def __init__(self, course: Course, folder: Path, store: StoreAt) -> None:
        """Make the folder; nothing runs yet.

        Args:
            course: the stream.
            folder: a new one, for everything but the store.
            store: where checkpoints go.
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
        """Take every key once; the checkpoint after it has all of them."""
        self._life = self._start()
        last = self._feed.fill()
        self._feed.await_commit(last, self._life)
        self._checkpoint(self._life)

    def fail(self, failure: Failure) -> Recovered:
        """Fail and come back; where the driver dies, Chandy goes on in another process."""
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
        """See `Contestant`."""
        assert self._life is not None
        self._kill_all(self._life)

    def wake(self) -> None:
        """See `Contestant`."""
        life = self._life = self._start()
        self._feed.await_commit(self._feed.next(), life)
        # Else it would be taken for that of the failure to come.
        life.await_event("recovery")

    def close(self) -> None:
        """Stop everything and delete all its files."""
        if self._life is not None:
            self._life.__exit__()
        # A host that is still there would look for its driver for some seconds. That there is none is no failure, and
        # would hide the one for which all is closed.
        with contextlib.suppress(OSError):
            self._kill_host()
        await_hosts(self._folder)
        shutil.rmtree(self._folder, ignore_errors=True)

    def _start(self) -> Life:
        arguments = [str(self._folder), f"--storage={self._store.uri}"]
        if not self._store.fenced:
            arguments.append("--unfenced")
        return Life(
            arguments,
            module="benchmarks.recovery.chandy_driver",
            folder=self._folder,
            log=self._place.log,
            environment=self._store.environment,
        )

    def _checkpoint(self, life: Life) -> None:
        self._work.wish.touch()
        life.await_event("checkpoint")

    def _kill_host(self) -> None:
        os.kill(self._host(), signal.SIGKILL)

    def _kill_all(self, life: Life) -> float:
        """Kill driver, JVM and state host in one moment; return it."""
        host = self._host()
        killed_at = life.kill()
        os.kill(host, signal.SIGKILL)
        life.__exit__()
        return killed_at

    def _host(self) -> int:
        """The process of the state host that was started last.

        Raises:
            OSError: there is none that has said that it serves, or it is going.
        """
        logs = paths(runtime(self._folder) / "meet", "*/host.log")
        newest = max(logs, key=lambda path: path.stat().st_mtime, default=None)
        served = [] if newest is None else _HOST_PID.findall(newest.read_text(errors="replace"))
        if not served:
            raise ProcessLookupError(f"no state host has served in {self._folder}")
        return int(served[-1])

    def _lose(self, failure: Failure) -> None:
        """Delete what is gone with a failure; the input is somebody else's."""
        if failure is Failure.DRIVER:
            return
        shutil.rmtree(self._work.cache, ignore_errors=True)
        if failure is Failure.MACHINE:
            for path in (runtime(self._folder), self._work.directories, self._folder / "spark"):
                shutil.rmtree(path, ignore_errors=True)


def _marks(life: Life) -> Mapping[str, float]:
    """When a new driver had its session and its coordinator."""
    return {name: life.await_event(name)["at"] for name in ("session", "coordinator")}


def split(failed_at: float, back_at: float, marks: Mapping[str, float], recovery: Event) -> dict[str, float]:
    """Split the time of a recovery into parts that follow on each other; the last is what the others leave.

    Args:
        failed_at: when it failed, in seconds since 1970.
        back_at: when the first new batch had committed.
        marks: when a new driver had its ``session`` and its ``coordinator``; empty where the old one lives on.
        recovery: what the coordinator tells of it.
    """
    begun_at, files, opening = recovery["begun_at"], recovery["files"], recovery["opening"]
    if marks:
        parts = {
            "process": marks["session"] - failed_at,
            # Also the query is defined and checked then.
            "coordinator": begun_at - marks["session"],
        }
    else:
        parts = {"detect": begun_at - recovery["waiting"] - failed_at, "wait": recovery["waiting"]}
    parts |= {
        "stop": recovery["stopping"],
        "start query": recovery["starting"],
        # The query's progress before it starts, the state in its first batch.
        "restore": recovery["restoring"] + files,
        "open": opening,
    }
    if recovery["in_place"]:
        # The first batch is the new one.
        return parts | {"first batch": back_at - failed_at - sum(parts.values())}
    parts["first batch"] = recovery["first_batch"] - files - opening
    return parts | {"replay": back_at - failed_at - sum(parts.values())}
