"""The journal of a pipeline: what has failed in each life of its driver, and how it went on. It outlives the driver.

Each generation has an object of its own, ``journal/<g>.jsonl``, so that no two drivers write one: an entry a line, the
latest ones. Nothing depends on it but what people are shown, so it is written without locks and proofs, and a
line that cannot be read is left out. Completed checkpoints are not in it, because their manifests are there.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Final

import attrs

from ..codec import from_json_of_any_version, to_json
from ..errors import CodecError, ObjectMissingError
from ..store import Store
from ..times import to_the_second
from .layout import JOURNAL, journal_key

ENTRIES: Final = 200
"""How many entries the journal of a generation keeps: the latest."""
GENERATIONS: Final = 20
"""How many generations' journals are kept: the newest."""
_TEXT: Final = 2000
"""The most characters of an entry."""


def _cut(text: str) -> str:
    return text[:_TEXT]


@attrs.frozen(kw_only=True)
class JournalEntry:
    """Something that has happened."""

    at: float
    """Seconds since 1970, by the clock of the driver."""
    what: str
    """In two or three words, such as "checkpoint failed"."""
    says: str = attrs.field(converter=_cut)
    """Why, or how."""
    checkpoint: int | None = None
    """The checkpoint that it has happened to, or that it began from."""
    generation: int = 0
    """The life of the driver in which it has."""
    times: int = 1
    """How often it has happened in a row."""
    until: float | None = None
    """When it happened last; None if it happened once."""

    @property
    def how_often(self) -> str:
        """What has happened, and how often in a row."""
        if self.until is None:
            return self.what
        return f"{self.what}, {self.times} times until {to_the_second(self.until)}"

    def followed_by(self, other: JournalEntry) -> JournalEntry | None:
        """Return both entries as one if they tell the same; None if they do not."""
        if (self.what, self.says) != (other.what, other.says):
            return None
        return attrs.evolve(self, checkpoint=other.checkpoint, times=self.times + 1, until=other.at)


@attrs.define
class Journal:
    """The journal of one generation. One thread adds entries, any may look at them."""

    _store: Store
    generation: int
    entries: tuple[JournalEntry, ...] = attrs.field(default=(), init=False)
    """Oldest first."""

    def add(self, entry: JournalEntry) -> None:
        """Add an entry, and write the journal.

        Raises:
            StoreFailedError: the store cannot be written to. The next entry that can be written brings this one along.
        """
        is_first = not self.entries
        # What fails again and again must not push everything else out.
        again = self.entries[-1].followed_by(entry) if self.entries else None
        if again is not None:
            self.entries = (*self.entries[:-1], again)
        else:
            self.entries = (*self.entries, attrs.evolve(entry, generation=self.generation))[-ENTRIES:]
        self._store.write(
            journal_key(self.generation), b"".join(to_json(one) + b"\n" for one in self.entries)
        )
        if is_first:
            old = sorted(_generations(self._store))[:-GENERATIONS]
            self._store.delete_all([journal_key(generation) for generation in old])


def read_journal(store: Store) -> tuple[JournalEntry, ...]:
    """Return the entries of all generations, oldest first, but for those that are damaged.

    Raises:
        StoreFailedError: the store cannot be read.
    """
    return tuple(
        sorted(
            (
                entry
                for generation in sorted(_generations(store))[-GENERATIONS:]
                for entry in _read(store, generation)
            ),
            key=lambda one: (one.generation, one.at),
        )
    )


def _read(store: Store, generation: int) -> Iterator[JournalEntry]:
    try:
        data = store.read(journal_key(generation))
    except ObjectMissingError:
        # A newer generation has deleted it.
        return
    for line in data.splitlines():
        with contextlib.suppress(CodecError):
            yield from_json_of_any_version(JournalEntry, line)


def _generations(store: Store) -> set[int]:
    return {generation for key in store.list(JOURNAL) if (generation := journal_key.number(key)) is not None}
