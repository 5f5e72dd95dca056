"""In place of machines in namespaces, where these are not permitted: addresses 127.0.0.2 and on, and folders.

Such machines share network, files and process ids, so they cannot be cut off from each other.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import IO, Final, Self

from chandy.state.local.machine import NAME_VARIABLE

_MARK: Final = "CHY_MACHINE"
"""Environment variable by which a machine's processes are known: a state host leaves its starter's session."""


class LoopbackMachine:
    """One machine. Made by ``Loopback``."""

    def __init__(self, name: str, address: str, home: Path) -> None:
        self.name, self.address = name, address
        self._env = {
            _MARK: str(home),
            # They share a host name as well.
            NAME_VARIABLE: name,
            "TMPDIR": str(home),
            "SPARK_LOCAL_DIRS": str(home),
            "SPARK_LOCAL_IP": address,
        }
        self._started: list[subprocess.Popen[bytes]] = []
        home.mkdir()

    def start(
        self, command: Sequence[str], env: Mapping[str, str], output: IO[bytes]
    ) -> subprocess.Popen[bytes]:
        """Start a process there. ``env`` adds to this process's environment; both streams go to ``output``."""
        process = subprocess.Popen(
            command,
            env={**os.environ, **env, **self._env},
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
        )
        self._started.append(process)
        return process

    def run(self, *command: str) -> str:
        """Run a command there and return what it prints."""
        env = {**os.environ, **self._env}
        return subprocess.run(command, check=True, capture_output=True, text=True, env=env).stdout

    def kill(self) -> None:
        """Kill every process that descends from one started here; peers are told, for sockets are closed."""
        self._signal(signal.SIGKILL)
        for process in self._started:
            process.wait()

    def freeze(self) -> None:
        """Stop every process there; ``thaw`` lets them go on."""
        self._signal(signal.SIGSTOP)

    def thaw(self) -> None:
        """End ``freeze``."""
        self._signal(signal.SIGCONT)

    def _signal(self, number: signal.Signals) -> None:
        # Again until there is no new one, for a process may have just forked.
        told: set[int] = set()
        while (
            found := {int(path.name) for path in Path("/proc").glob("[0-9]*") if self.owns(int(path.name))}
            - told
        ):
            for pid in found:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, number)
            told |= found

    def owns(self, pid: int) -> bool:
        """Return whether a process descends from one that was started here."""
        try:
            environ = Path(f"/proc/{pid}/environ").read_bytes()
            return f"{_MARK}={self._env[_MARK]}".encode() in environ.split(b"\0")
        except OSError:
            return False


class Loopback:
    """Machines at addresses of the loopback interface. A context manager."""

    address: Final = "127.0.0.1"

    def __init__(self, names: Sequence[str], shared: Sequence[str | Path] = ()) -> None:
        """Describe the machines. ``shared`` is as for ``Network``; here everything is."""
        self._names = list(names)
        self._files = Path(tempfile.mkdtemp(prefix="chy-"))
        self.machines: list[LoopbackMachine] = []

    def __enter__(self) -> Self:
        for name in self._names:
            self.add(name)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for machine in self.machines:
            machine.kill()
        shutil.rmtree(self._files, ignore_errors=True)

    def add(self, name: str) -> LoopbackMachine:
        """Put one more machine beside the others."""
        machine = LoopbackMachine(name, f"127.0.0.{len(self.machines) + 2}", self._files / name)
        self.machines.append(machine)
        return machine
