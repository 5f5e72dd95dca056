"""File locks that the kernel releases when their holder dies."""

from __future__ import annotations

import contextlib
import fcntl
import os
from collections.abc import Generator
from pathlib import Path


class FileLock:
    """A lock on a file or directory. The kernel releases it when the process ends, however it ends."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor

    def release(self) -> None:
        """Release the lock."""
        os.close(self._descriptor)


def acquire(path: Path) -> FileLock:
    """Wait for the lock on a file. The file is created if it is missing."""
    while True:
        lock = _try(path, fcntl.LOCK_EX)
        if lock is not None:
            return lock


def try_acquire(path: Path) -> FileLock | None:
    """Return the lock on a file, or None if another process holds it."""
    return _try(path, fcntl.LOCK_EX | fcntl.LOCK_NB)


@contextlib.contextmanager
def locked(path: Path) -> Generator[None]:
    """Hold the lock on a file inside the ``with``."""
    lock = acquire(path)
    try:
        yield
    finally:
        lock.release()


def hold_directory(path: Path) -> FileLock | None:
    """Keep cleaners of temporary directories away from a directory and all that is in it; None if that is not possible.

    systemd-tmpfiles leaves alone what somebody has locked by flock(2), see tmpfiles.d(5). The lock is a shared one, and
    nobody else waits for it.
    """
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except OSError:
        # A cleaner is just looking, or the file system has no locks.
        os.close(descriptor)
        return None
    return FileLock(descriptor)


def _try(path: Path, operation: int) -> FileLock | None:
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(descriptor, operation)
        # The process that held the lock may have removed the directory: the locked file must still be the one there.
        if os.fstat(descriptor).st_ino == os.stat(path).st_ino:  # noqa: PTH116
            return FileLock(descriptor)
    except (BlockingIOError, FileNotFoundError):
        pass
    except BaseException:
        os.close(descriptor)
        raise
    os.close(descriptor)
    return None
