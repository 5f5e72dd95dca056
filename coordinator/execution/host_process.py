"""The process of a state host, as far as the driver can reach it."""

from __future__ import annotations

import os
import signal
from pathlib import Path

from ...state.local.machine import machine_id
from ...state.rpc.messages import HostHello

_MODULE = b"chandy.state.host.process"
_PROC = Path("/proc")


def end_host(hello: HostHello) -> bool:
    """Kill a state host at once, also one that is stopped; return whether its process is gone for sure.

    A host on another machine, or in another container, is out of reach.
    """
    if hello.pid_of != machine_id():
        return False
    try:
        # Another process may have its number by now.
        if _PROC.is_dir() and _MODULE not in (_PROC / str(hello.pid) / "cmdline").read_bytes():
            return True
        os.kill(hello.pid, signal.SIGKILL)
    except (FileNotFoundError, ProcessLookupError):
        return True
    except OSError:
        return False
    return True
