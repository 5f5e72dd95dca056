"""The changes that one attempt at a batch makes to one shard, collected until they are staged."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final

from ..errors import ShardRefusedError
from .cache import Value
from .layers import ordered_keys

POSITION_KEY: Final = b"\x00chandy/position"
"""The key under which a shard stores the last batch that changed it, as decimal digits. No change may use it."""


class Changes:
    """Changes by key. A later change of a key replaces an earlier one."""

    def __init__(self, shard: str) -> None:
        self._shard = shard
        self.entries: dict[bytes, Value] = {}
        """None deletes the key."""
        self.ordered: list[bytes] = []
        """The keys that begin with ``layers.ORDERED``."""

    def __len__(self) -> int:
        return len(self.entries)

    def add(self, keys: Sequence[bytes], values: Iterable[Value]) -> None:
        """Add changes, the later ones of a key replacing the earlier. None deletes the key.

        Raises:
            ShardRefusedError: a key is reserved for the shard; nothing was added.
        """
        entries = dict(zip(keys, values, strict=True))
        if POSITION_KEY in entries:
            raise ShardRefusedError(
                f"a change of shard {self._shard} uses a reserved key",
                "a key made with chandy.state.format.keyspace",
                repr(POSITION_KEY),
            )
        self.ordered += [key for key in ordered_keys(entries) if key not in self.entries]
        if self.entries:
            self.entries.update(entries)
        else:
            self.entries = entries
