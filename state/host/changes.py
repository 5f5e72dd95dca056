"""The changes that one attempt at a batch makes to one shard, collected until they are staged."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, Self

from ..errors import ShardRefusedError
from ..format.columns import Columns
from .cache import Value
from .layers import ordered_keys

POSITION_KEY: Final = b"\x00chandy/position"
"""The key under which a shard stores the last batch that changed it, as decimal digits. No change may use it."""


class Changes:
    """Changes by key. A later change of a key replaces an earlier one.

    They are kept in two forms: by key for the shard's state, and as the columns in which they came for the changelog
    and the standby. To make columns of a table takes as long as either of these.
    """

    def __init__(self, shard: str) -> None:
        self._shard = shard
        self._parts: list[Columns] = []
        self.entries: dict[bytes, Value] = {}
        """None deletes the key."""
        self.ordered: list[bytes] = []
        """The keys that begin with ``layers.ORDERED``."""

    def __len__(self) -> int:
        return len(self.entries)

    @classmethod
    def of(cls, shard: str, entries: Mapping[bytes, Value]) -> Self:
        """Return changes by key; as for ``add``."""
        changes = cls(shard)
        changes.add(Columns.of(entries))
        return changes

    @property
    def columns(self) -> Columns:
        """All that was added, in its order."""
        return Columns.joined(self._parts or [Columns.of({})])

    def add(self, columns: Columns) -> None:
        """Add changes, the later ones of a key replacing the earlier.

        Raises:
            ShardRefusedError: a key is reserved for the shard; nothing was added.
        """
        entries = columns.entries()
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
        self._parts.append(columns)
