"""The changes that one attempt at a batch makes to one shard, collected until they are staged."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, Self

from ...storage import runtime
from ..errors import ShardRefusedError
from ..format.columns import Columns
from .cache import Value
from .layers import ordered_keys

POSITION_KEY: Final = b"\x00chandy/position"
"""The key under which a shard stores the last batch that changed it, as decimal digits. No change may use it."""


class Changes:
    """Changes by key. A later change of a key replaces an earlier one.

    They have two forms: a table for the shard's state, and the columns in which they came for the changelog and the
    standby, because making columns of a table again would double what these cost. A standby makes the table after it
    has answered. Once changes are staged everywhere, the table alone is kept.

    Changes are added before another thread sees them. After that, threads may unpack and read at the same time.
    """

    def __init__(self, shard: str) -> None:
        self._shard = shard
        self._rows = 0
        self._parts: list[Columns] | None = []
        """The columns. None: the table alone is kept."""
        self._unpacked = 0
        """How many parts the table has."""
        self._entries: dict[bytes, Value] = {}
        self._ordered: list[bytes] = []
        self._lock = runtime.lock()

    def __len__(self) -> int:
        """Return the number of rows. A key counts as often as it was added."""
        return self._rows

    @classmethod
    def of(cls, shard: str, entries: Mapping[bytes, Value]) -> Self:
        """Return changes by key; as for ``add``."""
        changes = cls(shard)
        changes.add(Columns.of(entries))
        return changes

    @property
    def columns(self) -> Columns:
        """All that was added, in its order; until ``keep_table``."""
        assert self._parts is not None, "the table alone was kept"
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
        entries = columns.entries()
        if POSITION_KEY in entries:
            raise ShardRefusedError(
                f"a change of shard {self._shard} uses a reserved key",
                "a key made with chandy.state.format.keyspace",
                repr(POSITION_KEY),
            )
        self.unpack()
        self.add_packed(columns)
        self._unpacked += 1
        self._put(entries)

    def add_packed(self, columns: Columns) -> None:
        """Add changes that an ``add`` elsewhere has taken, to be unpacked later."""
        assert self._parts is not None, "the table alone was kept"
        self._parts.append(columns)
        self._rows += len(columns)

    def unpack(self) -> None:
        """Make the table, as far as it is not made."""
        with self._lock:
            for part in (self._parts or [])[self._unpacked :]:
                self._put(part.entries())
                self._unpacked += 1

    def keep_table(self) -> None:
        """Give up the columns, which take as much memory as the table. Nobody may add any more."""
        self.unpack()
        self._parts = None

    def _put(self, entries: dict[bytes, Value]) -> None:
        self._ordered += [key for key in ordered_keys(entries) if key not in self._entries]
        if self._entries:
            self._entries.update(entries)
        else:
            self._entries = entries
