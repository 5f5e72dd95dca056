"""One shard's snapshot, from the moment when its state is fixed until its files are there."""

from __future__ import annotations

import contextlib
import shutil
from collections.abc import Callable
from concurrent.futures import Future
from pathlib import Path

from rocksdict import Checkpoint, Rdict


def snapshot_files(directory: Path) -> dict[str, Path]:
    """Return what a snapshot has to keep of a RocksDB checkpoint, by name.

    RocksDB opens from these three kinds; options are given at opening, and there is no write-ahead log.
    """
    return {
        path.name: path
        for path in sorted(directory.iterdir())
        if path.name == "CURRENT" or path.name.startswith("MANIFEST-") or path.suffix == ".sst"
    }


class Snapshot:
    """A shard's state after a batch. What belongs to it is fixed; its files are still to be written."""

    def __init__(self, directory: Path, settle: Callable[[Snapshot], None]) -> None:
        self.directory = directory
        self.cancelled = False
        """Whether nobody needs it any more."""
        self._settle = settle
        self._linked: Future[dict[str, Path]] = Future()

    @property
    def done(self) -> bool:
        """Whether its files are there, or will never be."""
        return self._linked.done()

    def files(self) -> dict[str, Path]:
        """Write the files, unless somebody has, and return them by name. They cannot change any more.

        Raises:
            ShardBrokenError: RocksDB did not take the changes.
            ShardClosedError: the shard was closed before.
            concurrent.futures.CancelledError: it was cancelled.
        """
        self._settle(self)
        return self._linked.result(timeout=0)

    def cancel(self) -> None:
        """Give it up: its files are not written, or they are deleted as soon as they have been."""
        self.cancelled = True
        self._linked.cancel()

    def link(self, db: Rdict) -> None:
        """Make hard links to the files of a RocksDB that has just this state; a failure is in ``files``."""
        if not self._linked.set_running_or_notify_cancel():
            return
        try:
            self.directory.parent.mkdir(parents=True, exist_ok=True)
            # Flushing first, without the GIL, leaves little to create_checkpoint, which holds it.
            db.flush()
            # Held in no variable: RocksDB stays open while a Checkpoint lives.
            Checkpoint(db).create_checkpoint(str(self.directory))
            self._linked.set_result(snapshot_files(self.directory))
        except Exception as error:  # noqa: BLE001 - it is this snapshot's failure and not the shard's
            self._linked.set_exception(error)
        if self.cancelled:
            shutil.rmtree(self.directory, ignore_errors=True)
            # Whoever gave it up has perhaps deleted the parent before this made it anew.
            with contextlib.suppress(OSError):
                self.directory.parent.rmdir()
