"""Spark's own streams as contestants: without state, and with Spark's RocksDB state store.

``SELECT k, max(v) GROUP BY k`` in update mode, two shuffle partitions; source, sink, session and file manager are
those of Chandy's driver (``query.py``). *Without state* the rows only go through a shuffle. That is the cost of
restarting a bare query.

Settings of the state store: RocksDB with and without changelog checkpointing, with Spark's defaults except for the
interval of its maintenance, which is 5 s instead of 60 s. With changelogs the maintenance uploads snapshots, at most
every tenth batch (``minDeltasForSnapshot``); a restart loads the newest one and replays the changelogs since. Any
stream that is some minutes old has a snapshot with nearly all of its state. So the filling continues with small batches
until there is a snapshot of all keys. Otherwise a restart would replay changelogs of all keys, and Spark would look
worse.

Failures: after an ``EXCEPTION`` the driver starts the query again, at once, in the same session. ``DRIVER``: the
driver's and the JVM's processes get SIGKILL, a new driver is started in the same moment. Spark does not read
local files of earlier processes, so ``DRIVER_COLD``, without them, is the same for Spark.
Each batch of Spark commits its state, so nothing is replayed: the first batch after the failure is the new one.

Parts: ``detect`` until the driver's program has the exception, or ``process`` until the new one has a session; ``start
query`` until the first batch begins; ``first batch`` until that has committed. The last part includes loading the
state. Spark's metric for that (``rocksdbLoadLatencyMs``) is not used: it describes the last load of a store in a task,
and this operator's task opens its store twice, the second time with the state already loaded. The contestant without
state shows how long a first batch takes otherwise.
"""

from __future__ import annotations

import datetime
import re
import shutil
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Final

from ..lives import Life
from .query import Feed, Place
from .scenario import Course, Failure, Recovered
from .spark_driver import CHECKPOINT, Kind

STATELESS_FAILURES: Final = (Failure.EXCEPTION, Failure.DRIVER)
STATEFUL_FAILURES: Final = (Failure.EXCEPTION, Failure.DRIVER, Failure.DRIVER_COLD)
_PARTITIONS: Final = 2
_SNAPSHOT: Final = re.compile(r"(\d+)(?:_[^.]*)?\.zip")
_POLL_SECONDS: Final = 0.1
_DEADLINE_SECONDS: Final = 300.0
_DELTAS: Final = 10
"""Batches from one snapshot to the next, the default of ``minDeltasForSnapshot``."""


class Spark:
    """One query on its checkpoint directory."""

    def __init__(self, course: Course, folder: Path, kind: Kind) -> None:
        """Create the folder. Nothing is started.

        Args:
            course: the stream.
            folder: a new folder for all files.
            kind: the kind of the query.
        """
        self.name = str(kind)
        self.failures = STATELESS_FAILURES if kind is Kind.STATELESS else STATEFUL_FAILURES
        self._kind = kind
        folder.mkdir(parents=True)
        self._folder = folder
        self._place = Place(folder, f"{CHECKPOINT}/commits")
        self._feed = Feed(course, self._place)
        self._life: Life | None = None

    def fill(self) -> None:
        """Take every key once; see the module for the end of the filling."""
        life = self._life = self._start()
        last = self._feed.fill()
        self._feed.await_commit(last, life)
        life.await_event("first batch")
        if self._kind is Kind.CHANGELOG:
            for _ in range(_DELTAS):
                self._feed.await_commit(self._feed.next(), life)
            self._await_snapshots(last + 1)

    def fail(self, failure: Failure) -> Recovered:
        """Fail and recover on the same checkpoint directory."""
        assert self._life is not None
        life = self._life
        self._feed.replayed(life)
        old_files = list(self._local.iterdir())
        if failure is Failure.EXCEPTION:
            self._place.ask_to_raise()
            new = self._feed.next()
            failed_at = life.await_event("raised")["at"]
        else:
            failed_at = life.kill()
            life.__exit__()
            if failure is Failure.DRIVER_COLD:
                _delete(old_files)
            new = self._feed.next()
            life = self._life = self._start()
        back_at = self._feed.await_commit(new, life)
        noticed = "failed" if failure is Failure.EXCEPTION else "session"
        noticed_at = life.await_event(noticed)["at"]
        parts = split(failed_at, back_at, noticed, noticed_at, life.await_event("first batch")["timestamp"])
        if failure is Failure.DRIVER:
            # The old files are useless now, and as large as the state.
            _delete(old_files)
        return Recovered(failure, back_at - failed_at, parts)

    def rest(self) -> None:
        """See ``Contestant``."""
        assert self._life is not None
        self._life.__exit__()
        # These files are useless now, and as large as the state.
        _delete(self._local.iterdir())

    def wake(self) -> None:
        """See ``Contestant``."""
        life = self._life = self._start()
        self._feed.await_commit(self._feed.next(), life)
        life.await_event("first batch")

    def close(self) -> None:
        """Stop everything and delete all its files."""
        if self._life is not None:
            self._life.__exit__()
        shutil.rmtree(self._folder, ignore_errors=True)

    @property
    def _local(self) -> Path:
        """Spark's ``spark.local.dir``, which has its RocksDB."""
        return self._folder / "spark"

    def _start(self) -> Life:
        return Life(
            [str(self._folder), f"--kind={self._kind}"],
            module="benchmarks.recovery.spark_driver",
            folder=self._folder,
            log=self._place.log,
        )

    def _await_snapshots(self, version: int) -> None:
        """Wait until each partition has a snapshot with this version of the state or a later one."""
        states = [self._folder / CHECKPOINT / "state" / "0" / str(number) for number in range(_PARTITIONS)]
        deadline = time.monotonic() + _DEADLINE_SECONDS
        while any(newest_snapshot(path.name for path in state.iterdir()) < version for state in states):
            if time.monotonic() > deadline:
                raise TimeoutError(f"Spark has not made a snapshot of its state in {_DEADLINE_SECONDS:g} s")
            time.sleep(_POLL_SECONDS)


def newest_snapshot(names: Iterable[str]) -> int:
    """Return the highest version of the state that has a snapshot among these files; 0 if there is none."""
    found = (_SNAPSHOT.fullmatch(name) for name in names)
    return max((int(match[1]) for match in found if match), default=0)


def split(
    failed_at: float, back_at: float, noticed: str, noticed_at: float, timestamp: str
) -> dict[str, float]:
    """Split the time of a recovery into consecutive parts.

    Args:
        failed_at: the time of the failure, in seconds since 1970.
        back_at: the time when the new batch had committed.
        noticed: ``failed`` if the driver's program got the exception, ``session`` if a new driver had a session.
        noticed_at: the time of that event.
        timestamp: the start of the first batch after that, from Spark's report.
    """
    begun_at = datetime.datetime.fromisoformat(timestamp).timestamp()
    parts = {"detect" if noticed == "failed" else "process": noticed_at - failed_at}
    parts["start query"] = begun_at - noticed_at
    parts["first batch"] = back_at - failed_at - sum(parts.values())
    return parts


def _delete(paths: Iterable[Path]) -> None:
    for path in paths:
        shutil.rmtree(path, ignore_errors=True)
