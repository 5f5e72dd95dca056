"""Where state hosts keep the changelogs of their shards, and where they find those that others have left."""

from __future__ import annotations

import contextlib
import hashlib
import shutil
from pathlib import Path
from typing import Final, Self

import attrs

from ...storage import runtime
from ...storage.disk.directories import HOST_CHANGELOGS, size_and_age
from ...storage.disk.locks import try_acquire
from ...storage.disk.owners import OwnerRecord
from ...storage.disk.workspace import ALIVE, Workspace, workspaces
from ...storage.ids import BatchId
from ..errors import ChangelogBrokenError
from ..local.changelog import Changelog, shard_folder
from .shard_key import ShardKey

_END_SECONDS: Final = 5.0
"""How long a host that was told to end may take for it."""
_LOOK_SECONDS: Final = 0.1
_KEPT_SECONDS: Final = 3600.0
"""How long the changelogs of another driver's hosts are kept after their last batch. Their driver needs them within
seconds of a loss, or not at all."""


@attrs.frozen
class RunChangelogs:
    """Changelogs in folders of runs, which the driver makes and deletes: it is on the same machine."""

    root: Path

    def begin_shard(self, key: ShardKey) -> Changelog | None:
        """Begin the changelog of a shard; None if the driver has not admitted the run, as that of a shadow does not."""
        folder = self.of_run(key.query_id, key)
        return Changelog(folder) if folder.parent.is_dir() else None

    def of_run(self, query_id: str, key: ShardKey) -> Path:
        """Return the folder of a shard's changelog in an earlier run of its query."""
        return shard_folder(self.root, query_id, key.uid, key.shard)

    def release(self, query_id: str) -> None:
        """Leave the changelogs of a run that is over to its driver."""


@attrs.frozen(eq=False)
class HostChangelogs:
    """Changelogs in a folder of the host's own, which other hosts of the machine read once the host is lost.

    The host holds the folder's lock until its process has ended. A reader that has the lock finds every change that the
    host has told a task is staged, however the process ended.
    """

    workspace: Workspace
    _driver: str

    @classmethod
    def begin(cls, root: Path, token: str, host: str) -> Self:
        """Make the folder of a host, and delete what hosts of other drivers have left long ago.

        Args:
            root: the folder of all changelogs of hosts on this machine.
            token: the secret of the host's driver, which tells its hosts from those of others.
            host: id of the host.

        Raises:
            OSError, UnsafeDirectoryError: the folder cannot be used.
        """
        driver = hashlib.sha256(token.encode()).hexdigest()[:16]

        def is_kept(folder: Path) -> bool:
            if folder.name.startswith(driver):
                return True
            try:
                _, written_at = size_and_age(folder)
            except OSError:
                # Somebody else deletes it.
                return True
            return runtime.time() - written_at < _KEPT_SECONDS

        return cls(
            Workspace.create(root, f"{driver}-{host}", OwnerRecord(HOST_CHANGELOGS, host), is_kept), driver
        )

    @property
    def root(self) -> Path:
        """The folder of all changelogs of hosts on this machine."""
        return self.workspace.path.parent

    def begin_shard(self, key: ShardKey) -> Changelog:
        """Begin the changelog of a shard."""
        folder = shard_folder(self.workspace.path, key.query_id, key.uid, key.shard)
        with contextlib.suppress(OSError):
            # A changelog that cannot be written says so.
            folder.parent.mkdir(exist_ok=True)
        return Changelog(folder)

    def of_lost(self, host: str, key: ShardKey, batch: BatchId) -> Path:
        """Return the folder of the changelog that a lost host has left of a shard, once its process has ended.

        Args:
            host: id of the lost host, which had the same driver.
            key: the shard.
            batch: the batch that is needed, for the error.

        Raises:
            ChangelogBrokenError: the process goes on, or has deleted its changelogs.
        """
        folder = self.root / f"{self._driver}-{host}"
        until = runtime.monotonic() + _END_SECONDS
        try:
            while (lock := try_acquire(folder / ALIVE)) is None:
                if runtime.monotonic() >= until:
                    raise ChangelogBrokenError(str(folder), batch, "a state host that still writes it")
                runtime.sleep(_LOOK_SECONDS)
        except OSError as error:
            raise ChangelogBrokenError(str(folder), batch, str(error)) from error
        # The process has ended, and no other one gets its id.
        lock.release()
        return shard_folder(folder, key.query_id, key.uid, key.shard)

    def release(self, query_id: str) -> None:
        """Delete the changelogs of a run that is over in the background, also those that lost hosts have left."""
        runtime.thread(target=self._release, args=(query_id,), name="chandy-changelogs").start()

    def _release(self, query_id: str) -> None:
        shutil.rmtree(self.workspace.path / query_id, ignore_errors=True)
        for folder in workspaces(self.root, HOST_CHANGELOGS):
            if not folder.name.startswith(self._driver) or folder == self.workspace.path:
                continue
            with contextlib.suppress(OSError):
                if (lock := try_acquire(folder / ALIVE)) is not None:
                    shutil.rmtree(folder / query_id, ignore_errors=True)
                    lock.release()

    def delete(self) -> None:
        """Delete the host's own changelogs. Nobody needs them: its driver stops, or has done without it for long."""
        shutil.rmtree(self.workspace.path, ignore_errors=True)
