"""What a Delta table keeps of one writer: who publishes, and the newest epoch whose rows the table has."""

from __future__ import annotations

import datetime
import hashlib
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

import attrs

from ...sinks.two_phase.contract import Fence, Position
from .delta_history import NOTE, is_by, is_restore

if TYPE_CHECKING:
    from deltalake import CommitProperties, DeltaTable

Version = int | datetime.datetime
"""A version of a table, by its number or as of a time."""

_NO_EPOCH: Final = -1
"""The version that stands for no epoch: an application transaction can be set, and not be deleted."""


@attrs.frozen
class DeltaRecord:
    """The record of one writer, in application transactions, which have numbers alone."""

    fence: Fence

    @property
    def writer(self) -> str:
        """The name that the writer's commits have in their notes, and under which the table has its newest epoch."""
        return f"chandy/{self.fence.writer}"

    @property
    def _generation(self) -> str:
        return f"{self.writer}#generation"

    @property
    def _store(self) -> str:
        return f"{self.writer}#store"

    @property
    def _table(self) -> str:
        return f"{self.writer}#table"

    def position(self, table: DeltaTable, commits: Sequence[Mapping[str, Any]] = ()) -> Position | None:
        """Return the record as a version of the table has it; None if there is none.

        A table that was recreated in its place keeps application transactions, and has other rows and another id. So
        the epoch counts for the id that it was recorded with; older versions of Chandy have recorded none.

        Args:
            table: the version.
            commits: what commits of the table say about themselves. They name the store if it is another pipeline's.
        """
        generation = table.transaction_version(self._generation)
        if generation is None:
            return None
        store = table.transaction_version(self._store)
        name = self.fence.store if store == hash_of(self.fence.store) else _name_of(store, commits)
        recorded = table.transaction_version(self._table)
        epoch = table.transaction_version(self.writer)
        is_gone = epoch == _NO_EPOCH or recorded not in (None, hash_of(str(table.metadata().id)))
        return Position(name, generation, None if is_gone else epoch)

    def standing_on(
        self,
        table: DeltaTable,
        commits: Sequence[Mapping[str, Any]],
        open_at: Callable[[Version], DeltaTable],
    ) -> DeltaTable:
        """Return the version whose record is true of a version's rows: another one if that was restored.

        ``RESTORE`` takes rows back, and leaves the application transactions as they were. It conflicts with every
        commit that was begun before it, so the writer's next commit has seen it, and carries what is true since.

        Args:
            table: the version.
            commits: what commits of the table say about themselves, the newest first.
            open_at: opens another version of the table.
        """
        restored = self._restored(table.version(), commits)
        return table if restored is None else self.standing_on(open_at(restored), commits, open_at)

    def _restored(self, version: int, commits: Sequence[Mapping[str, Any]]) -> Version | None:
        """Return which version was restored after the writer's newest commit; None: none was."""
        for one in commits:
            if one["version"] > version:
                continue
            if is_restore(one):
                return _version_in(one["operationParameters"])
            if is_by(one, self.writer):
                return None
        return None

    def properties(self, position: Position, table: DeltaTable) -> CommitProperties:
        """Return what a commit has to carry. Two commits that carry one id conflict: that is the fence.

        Args:
            position: the record from now on.
            table: the version that the commit is based on.
        """
        from deltalake import CommitProperties, Transaction

        versions = {
            self._generation: position.generation,
            self._store: hash_of(position.store),
            self._table: hash_of(str(table.metadata().id)),
            self.writer: _NO_EPOCH if position.epoch is None else position.epoch,
        }
        return CommitProperties(
            custom_metadata={NOTE: {"writer": self.writer, **attrs.asdict(position)}},
            app_transactions=[Transaction(*version) for version in versions.items()],
        )


def hash_of(name: str) -> int:
    """Return a number for a store's URI or a table's id, as large as Delta's versions may be."""
    return int.from_bytes(hashlib.sha256(name.encode()).digest()[:8], "big") >> 1


def _version_in(parameters: Mapping[str, Any]) -> Version:
    """Return the version that the parameters of a ``RESTORE`` name."""
    if (version := parameters.get("version")) is not None:
        return int(version)
    if (milliseconds := parameters.get("datetime")) is not None:  # delta-rs
        return datetime.datetime.fromtimestamp(int(milliseconds) / 1000, datetime.UTC)
    # Spark's, as it was given, in the zone of its session, which nobody knows.
    found = datetime.datetime.fromisoformat(parameters["timestamp"])
    return found if found.tzinfo else found.replace(tzinfo=datetime.UTC)


def _name_of(store: int | None, commits: Sequence[Mapping[str, Any]]) -> str:
    """Return the URI of another store, which old commits may no longer tell."""
    names = [str(one[NOTE].get("store")) for one in commits if NOTE in one]
    return next((name for name in names if hash_of(name) == store), f"a place with the hash {store}")
