"""The changes that one attempt at a batch makes to one shard, collected until they are staged."""

from __future__ import annotations

import threading
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
    and the standby. To make columns of a table takes as long as either of these. A standby needs the table only when
    the batch has committed.

    A thread may unpack while another one reads. Only one may add, before the others know of it.
    """

    def __init__(self, shard: str) -> None:
        self._shard = shard
        self._parts: list[Columns] = []
        self._unpacked = 0
        """How many parts the table has."""
        self._entries: dict[bytes, Value] = {}
        self._ordered: list[bytes] = []
        self._lock = threading.Lock()

    def __len__(self) -> int:
        """Return the number of rows. A key counts as often as it was added."""
        return sum(map(len, self._parts))

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

    @property
    def entries(self) -> dict[bytes, Value]:
        """The changes by key. None deletes the key."""
        self.unpack()
        return self._entries

    @property
    def ordered(self) -> list[bytes]:
        """The keys that begin with ``layers.ORDERED``."""
        self.unpack()
        return self._ordered

    def add(self, columns: Columns) -> None:
        """Add changes, the later ones of a key replacing the earlier.

        Raises:
            ShardRefusedError: a key is reserved for the shard; nothing was added.
        """
        self.add_packed(columns)
        try:
            self.unpack()
        except ShardRefusedError:
            self._parts.pop()
            raise

    def add_packed(self, columns: Columns) -> None:
        """Add changes that an ``add`` elsewhere has taken, to be unpacked later."""
        self._parts.append(columns)

    def unpack(self) -> None:
        """Make the table, as far as it is not made."""
        with self._lock:
            for part in self._parts[self._unpacked :]:
                self._put(part.entries())
                self._unpacked += 1

    def _put(self, entries: dict[bytes, Value]) -> None:
        if POSITION_KEY in entries:
            raise ShardRefusedError(
                f"a change of shard {self._shard} uses a reserved key",
                "a key made with chandy.state.format.keyspace",
                repr(POSITION_KEY),
            )
        self._ordered += [key for key in ordered_keys(entries) if key not in self._entries]
        if self._entries:
            self._entries.update(entries)
        else:
            self._entries = entries
