"""One shard's snapshot, from the moment when its state is fixed until its files exist."""

from __future__ import annotations

import contextlib
import shutil
from collections.abc import Callable
from concurrent.futures import Future
from pathlib import Path

from ...storage import runtime
from .database import ShardDatabase


def snapshot_files(directory: Path) -> dict[str, Path]:
    """Return the files of a RocksDB checkpoint that a snapshot has to keep, by name.

    RocksDB can be opened from these three kinds: options are given at opening, and there is no write-ahead log.
    """
    return {
        path.name: path
        for path in sorted(directory.iterdir())
        if path.name == "CURRENT" or path.name.startswith("MANIFEST-") or path.suffix == ".sst"
    }


class Snapshot:
    """A shard's state after a batch. Its contents are fixed; its files may still have to be written."""

    def __init__(self, directory: Path, flush: Callable[[Snapshot], None]) -> None:
        self.directory = directory
        self.cancelled = False
        """Whether the snapshot is not needed any more."""
        self._flush = flush
        self._linked: Future[dict[str, Path]] = runtime.future()
        self.entries = 0
        """About how many entries it has, once its files exist."""

    @property
    def done(self) -> bool:
        """Whether its files exist or never will."""
        return self._linked.done()

    def files(self) -> dict[str, Path]:
        """Write the files unless they are written already, and return them by name. They never change.

        Raises:
            ShardBrokenError: RocksDB did not take the changes.
            ShardClosedError: the shard was closed before.
            concurrent.futures.CancelledError: the snapshot was cancelled.
        """
        self._flush(self)
        return self._linked.result(timeout=0)

    def cancel(self) -> None:
        """Cancel the snapshot: its files are not written, or are deleted as soon as they are."""
        self.cancelled = True
        self._linked.cancel()

    def link(self, database: ShardDatabase) -> None:
        """Link the files of a database that has exactly this state. ``files`` raises what fails."""
        if not self._linked.set_running_or_notify_cancel():
            return
        try:
            self.directory.parent.mkdir(parents=True, exist_ok=True)
            self.entries = database.checkpoint(self.directory)
            self._linked.set_result(snapshot_files(self.directory))
        except Exception as error:  # noqa: BLE001 - the snapshot fails, not the shard
            self._linked.set_exception(error)
        if self.cancelled:
            shutil.rmtree(self.directory, ignore_errors=True)
            # The canceller may have deleted the parent before it was created here again.
            with contextlib.suppress(OSError):
                self.directory.parent.rmdir()
