"""A file system that is full soon, in memory."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import attrs
import pytest


@attrs.frozen
class SmallDisk:
    """A mounted file system."""

    path: Path

    def resize(self, size: str) -> None:
        """Give it another size, such as ``64m``. What is on it stays."""
        subprocess.run(["mount", "-o", f"remount,size={size}", self.path], check=True, capture_output=True)


@contextmanager
def small_disk(path: Path, size: str = "1m") -> Iterator[SmallDisk]:
    """Mount one for the length of the ``with``; skip the test where that is not permitted.

    Args:
        path: where, a folder that does not exist.
        size: how much it holds.
    """
    path.mkdir(parents=True)
    command = ["mount", "-t", "tmpfs", "-o", f"size={size},mode=1777", "chandy", str(path)]
    try:
        made = subprocess.run(command, capture_output=True, text=True)
        problem = made.stderr.strip() if made.returncode else ""
    except FileNotFoundError as error:
        problem = str(error)
    if problem:
        pytest.skip(f"no file system can be mounted here by user {os.geteuid()}: {problem}")
    try:
        yield SmallDisk(path)
    finally:
        # A process that is just ending may still use it.
        subprocess.run(["umount", "--lazy", path], check=True)
