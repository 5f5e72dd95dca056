"""What a program is given in place of a replica while its coordinator runs batches apart: nothing is written."""

from __future__ import annotations

from typing_extensions import override

from ..durations import Duration
from ..replica_status import ReplicaStatus
from ..replication.formats import Format
from ..replication.replica import Replica


class Unreplicated(Replica):
    """A replica that does not follow: its target stays that of the pipeline whose batches run again."""

    def __init__(self, name: str, operator: str, state: str | None, format: Format | None) -> None:
        """Take what the program says of the replica."""
        self.name = name
        self.is_stopped = True
        self._operator = operator
        self._state = state or ""
        self._format = format or "changes"

    @property
    @override
    def status(self) -> ReplicaStatus:
        return ReplicaStatus(
            name=self.name,
            operator=self._operator,
            state=self._state,
            format=self._format,
            targets=(),
            checkpoint=None,
            is_active=False,
            error=None,
        )

    @override
    def catch_up(self, timeout: Duration = "1 min") -> int:
        return 0

    @override
    def stop(self, timeout: Duration = "1 min") -> None:
        return

    @override
    def drop(self, timeout: Duration = "1 min") -> None:
        return
