"""What tests do with a machine, whether it is one of namespaces or shares everything but a name with this one."""

from __future__ import annotations

import subprocess
from collections.abc import Mapping, Sequence
from typing import IO, Protocol


class Machine(Protocol):
    """A machine on which processes run, and to which things happen."""

    name: str
    address: str

    def start(
        self, command: Sequence[str], env: Mapping[str, str], output: IO[bytes]
    ) -> subprocess.Popen[bytes]:
        """Start a process there. ``env`` adds to this process's environment; both streams go to ``output``."""
        ...

    def run(self, *command: str) -> str:
        """Run a command there and return what it prints."""
        ...

    def kill(self) -> None:
        """Cut the power: every process there is gone at once."""
        ...

    def freeze(self) -> None:
        """Stop every process there; ``thaw`` lets them go on."""
        ...

    def thaw(self) -> None:
        """End ``freeze``."""
        ...


class SomeMachines(Protocol):
    """Several machines, and this process beside them."""

    @property
    def address(self) -> str:
        """The address of this process."""
        ...

    @property
    def machines(self) -> Sequence[Machine]:
        """All machines that there have been, in their order; those that were killed, too."""
        ...


class Machines(SomeMachines, Protocol):
    """Machines that end with their context."""

    def add(self, name: str) -> Machine:
        """Put one more machine beside the others."""
        ...
