"""Chooses the kind of machines that can be made here."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from . import namespaces
from .loopback import Loopback
from .namespaces import Network

VARIABLE: Final = "CHANDY_MACHINES"
"""Environment variable: ``loopback`` makes machines that share a network also where namespaces are permitted."""


def are_isolated() -> bool:
    """Return whether machines can have networks, files and processes of their own here."""
    return os.environ.get(VARIABLE) != "loopback" and namespaces.are_permitted()


def machines(names: Sequence[str], shared: Sequence[str | Path], *, isolated: bool) -> Network | Loopback:
    """Describe machines, which are there within a ``with``.

    Args:
        names: of the machines.
        shared: directories that all of them see, each under its own path.
        isolated: whether they have networks of their own.
    """
    return Network(names, shared) if isolated else Loopback(names, shared)
