"""The record of what a stream writer has committed: a chain of objects in a store, for a target that keeps none.

``outputs/<writer>/<n>`` says who commits, what was committed last, and which epoch is being committed. Entry n is
created exclusively, after entry n - 1 was read. So anyone who creates an entry shuts out all who have not seen it.

An epoch is committed in three steps: an entry says that it begins, the writer commits, an entry says that it is done.
A writer that finds an epoch that has begun commits it once more, because nobody knows how far that commit came. So an
epoch that may have been committed is never taken for one that was not, whatever checkpoint is restored.
"""

from __future__ import annotations

import itertools
import uuid
from typing import Final
from urllib.parse import quote

import attrs

from ....storage.checkpoints.layout import OUTPUTS
from ....storage.checkpoints.manifest import EpochRecord
from ....storage.codec import to_json
from ....storage.errors import (
    ObjectExistsError,
    ObjectMissingError,
    OutcomeUnknownError,
)
from ....storage.store import Store
from ....storage.verified import read_record
from ...sinks.two_phase.contract import Position
from ...sinks.two_phase.errors import TargetUnavailableError

KEPT: Final = 20
"""The newest entries, which are kept. A life that has slept over more finds that its own is not the newest."""

_READS: Final = 20
"""How often the newest entry is looked for while others go on."""


@attrs.frozen
class BegunCommit:
    """An epoch whose commit has begun."""

    epoch: EpochRecord
    root: str
    """URI of the store with the files of the record."""


@attrs.frozen
class RecordEntry:
    """One state of the record."""

    position: Position
    """The writer, and the newest epoch that is surely committed."""
    begun: BegunCommit | None = None
    """What may be committed, too."""
    nonce: str = attrs.field(factory=lambda: uuid.uuid4().hex)
    """No two creators write the same bytes, so that each recognises its own."""


@attrs.frozen
class At:
    """An entry and its number."""

    number: int
    entry: RecordEntry


@attrs.frozen
class Record:
    """The chain of one writer."""

    store: Store
    writer: str

    def newest(self) -> At | None:
        """Read the newest entry; None if there is no entry.

        Raises:
            DamagedError: it cannot be read.
            StoreFailedError: the store cannot be read.
        """
        for attempt in itertools.count(1):
            numbers = self._numbers()
            if not numbers:
                return None
            key = self._key(numbers[-1])
            try:
                return At(numbers[-1], read_record(self.store, key, RecordEntry, "the record of a writer"))
            except ObjectMissingError:
                # Others have gone on, and have deleted it since it was listed.
                if attempt == _READS:
                    raise
        raise AssertionError("unreachable")

    def follow(self, after: At | None, entry: RecordEntry) -> At:
        """Create the entry that follows another one.

        Raises:
            ObjectExistsError: somebody else has, and the entry does not count.
            TargetUnavailableError: nobody knows whether it was created. The next reading of the record tells.
            StoreFailedError: it was not created.
        """
        made = At(0 if after is None else after.number + 1, entry)
        try:
            self.store.create(self._key(made.number), to_json(entry))
        except OutcomeUnknownError as error:
            raise TargetUnavailableError(self.store.uri, str(error), is_understood=True) from error
        numbers = self._numbers()
        if numbers and numbers[-1] > made.number:
            # What stood in this place before was deleted long ago.
            self.store.delete(self._key(made.number))
            raise ObjectExistsError(self.store.uri, self._key(made.number))
        self.store.delete_all([self._key(one) for one in numbers if one <= made.number - KEPT])
        return made

    def _numbers(self) -> list[int]:
        names = [key.removeprefix(self._folder) for key in self.store.list(self._folder)]
        return sorted(int(name) for name in names if name.isdecimal())

    @property
    def _folder(self) -> str:
        # A uid may have any character.
        return f"{OUTPUTS}{quote(self.writer, safe='')}/"

    def _key(self, number: int) -> str:
        return f"{self._folder}{number:012d}"
