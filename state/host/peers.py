"""What a state host needs of the others."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

from ..format.columns import Columns
from ..rpc.messages import Forward, HandOver
from ..rpc.wire import HandedOver


class Peers(Protocol):
    """The other state hosts, by their addresses."""

    def hand_over(self, address: str, request: HandOver) -> HandedOver:
        """Return what a host has of a shard."""
        ...

    def forward(self, address: str, request: Forward, changes: Mapping[int, Columns]) -> None:
        """Have the standbys on a host stage what a task has staged on their shards; return when they have."""
        ...
