"""Bugs that are put into the product, by what they are in, to see that worlds or tests find them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from .bug import Bug as Bug
from .deletions import DELETIONS
from .host import HOST
from .jobs import JOBS
from .leadership import LEADERSHIP
from .protocol import PROTOCOL
from .publisher import PUBLISHER
from .requests import REQUESTS
from .rollback import ROLLBACK
from .shell import SHELL
from .told import TOLD

AREAS: Final[Mapping[str, tuple[Bug, ...]]] = {
    "told": TOLD,
    "jobs": JOBS,
    "publisher": PUBLISHER,
    "host": HOST,
    "leadership": LEADERSHIP,
    "rollback": ROLLBACK,
    "shell": SHELL,
    "requests": REQUESTS,
    "deletions": DELETIONS,
    "protocol": PROTOCOL,
}
