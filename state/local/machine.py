"""The machine that this process runs on: its name, and an id as far as process ids reach."""

from __future__ import annotations

import os
import socket
from pathlib import Path
from typing import Final

NAME_VARIABLE: Final = "CHANDY_MACHINE"
"""Environment variable of an executor: the name of its machine, where the host name is that of a container."""
_PROC: Final = Path("/proc")


def machine_name() -> str:
    """Return what people call this machine: what fails together has one name.

    It is the host name unless ``CHANDY_MACHINE`` says otherwise. A pod on Kubernetes has a host name of its own, and
    the node that it shares with other pods has another one.
    """
    return os.environ.get(NAME_VARIABLE) or socket.gethostname()


def machine_id() -> str:
    """Return an id of this machine as far as process ids reach: on Linux its present start and the PID namespace.

    Two containers of one machine have the same boot id, and their process ids mean different processes.
    """
    try:
        boot = (_PROC / "sys/kernel/random/boot_id").read_text().strip()
        return f"{boot} {(_PROC / 'self/ns/pid').readlink()}"
    except OSError:
        return socket.gethostname()
