"""File locks that die with their holder."""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
from collections.abc import Generator
from pathlib import Path


class FileLock:
    """An exclusive lock on a file; the kernel drops it when the process dies, however it dies."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor

    def release(self) -> None:
        """Drop the lock."""
        os.close(self._descriptor)


def acquire(path: Path) -> FileLock:
    """Wait for the lock on a file, which is made if it is missing."""
    while True:
        lock = _try(path, fcntl.LOCK_EX)
        if lock is not None:
            return lock


def try_acquire(path: Path) -> FileLock | None:
    """Take the lock on a file if nobody holds it."""
    return _try(path, fcntl.LOCK_EX | fcntl.LOCK_NB)


@contextlib.contextmanager
def locked(path: Path) -> Generator[None]:
    """Hold the lock on a file for the length of the ``with``."""
    lock = acquire(path)
    try:
        yield
    finally:
        lock.release()


def remove_unless_held(directory: Path, *locks: str) -> bool:
    """Delete a directory if nobody holds any of the lock files in it; return whether it was deleted."""
    held: list[FileLock] = []
    try:
        for name in locks:
            lock = try_acquire(directory / name)
            if lock is None:
                return False
            held.append(lock)
        shutil.rmtree(directory, ignore_errors=True)
        return True
    except (FileNotFoundError, NotADirectoryError):
        return False
    finally:
        for lock in held:
            lock.release()


def _try(path: Path, operation: int) -> FileLock | None:
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(descriptor, operation)
        # Whoever removed the directory meanwhile held this lock: the file that is locked must be the one
        # there.
        if os.fstat(descriptor).st_ino == os.stat(path).st_ino:  # noqa: PTH116
            return FileLock(descriptor)
    except (BlockingIOError, FileNotFoundError):
        pass
    except BaseException:
        os.close(descriptor)
        raise
    os.close(descriptor)
    return None
