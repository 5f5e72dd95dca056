"""A server as a process of its own."""

from __future__ import annotations

import ctypes
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Final

import attrs

_PAUSE: Final = 0.05
_DEADLINE: Final = 60.0


@attrs.define
class Server:
    """A process that serves one port of this machine; it can be killed and started again."""

    command: list[str]
    port: int
    directory: Path
    """Its working directory, which has its log, too."""
    is_ready: Callable[[Server], bool]
    """Whether it serves."""
    environment: Mapping[str, str] = attrs.field(factory=dict)
    process: subprocess.Popen[bytes] | None = None
    deadline: float = _DEADLINE
    """Seconds in which it starts."""

    @property
    def log(self) -> Path:
        """What it has printed."""
        return self.directory / "server.log"

    @property
    def pid(self) -> int:
        """The id of its process, which has been started."""
        assert self.process is not None
        return self.process.pid

    def start(self) -> None:
        """Start it, and wait until it serves.

        Raises:
            RuntimeError: it does not. The end of its log is in the message.
        """
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(
                self.command,
                cwd=self.directory,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                env=os.environ | dict(self.environment),
            )
        deadline = time.monotonic() + self.deadline
        while not self.is_ready(self):
            if self.process.poll() is not None or time.monotonic() > deadline:
                self.kill()
                raise RuntimeError(f"{self.command[0]} did not start:\n{self.log.read_text()[-3000:]}")
            time.sleep(_PAUSE)

    def kill(self) -> None:
        """Kill it with SIGKILL, and wait for its end."""
        if self.process is not None:
            self.process.kill()
            self.process.wait()


def listens(port: int) -> bool:
    """Return whether a process of this machine listens on a port."""
    with socket.socket() as probe:
        probe.settimeout(1)
        return probe.connect_ex(("127.0.0.1", port)) == 0


def end_with_parent() -> None:
    """Have the kernel end this process when the one that started it is gone; on Linux alone."""
    if sys.platform == "linux":
        pr_set_pdeathsig = 1
        ctypes.CDLL(None).prctl(pr_set_pdeathsig, signal.SIGQUIT)
