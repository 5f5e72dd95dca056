"""Where shadows keep what they have found: in the pipeline's storage, apart from all that the pipeline reads."""

from __future__ import annotations

from contextlib import suppress

import attrs

from ..storage.checkpoints.layout import SHADOWS, VERDICTS, difference_key, verdict_key, verdict_of
from ..storage.codec import to_json
from ..storage.errors import DamagedError, ObjectMissingError
from ..storage.store import Store
from ..storage.verified import read_record
from .errors import ShadowReplacedError
from .verdict import ShadowVerdict


def read_verdict(store: Store, shadow: str) -> ShadowVerdict | None:
    """Return what a shadow has found; None if it has not written anything.

    Raises:
        DamagedError: it cannot be read.
        StoreFailedError: the storage does not answer.
    """
    try:
        return read_record(store, verdict_key(shadow), ShadowVerdict, "the verdict of a shadow")
    except ObjectMissingError:
        return None


def read_verdicts(store: Store) -> list[ShadowVerdict]:
    """Return what all shadows of a pipeline have found that can be read, by their names."""
    found = []
    for name in sorted(filter(None, map(verdict_of, store.list(VERDICTS)))):
        with suppress(DamagedError):
            if (verdict := read_verdict(store, name)) is not None:
                found.append(verdict)
    return found


@attrs.frozen
class ShadowStore:
    """What one shadow writes."""

    store: Store
    """The pipeline's own."""
    shadow: str
    life: str = ""
    """The folder of the life that writes; empty: it has none."""
    earlier: tuple[str, ...] = ()
    """Those of the lives that it goes on from."""

    def read(self) -> ShadowVerdict | None:
        """Return what it has found in its lives so far. What cannot be read is lost, and is found again."""
        with suppress(DamagedError):
            return read_verdict(self.store, self.shadow)
        return None

    def write(self, verdict: ShadowVerdict) -> None:
        """Keep what it has found.

        Raises:
            ShadowReplacedError: a later life has begun, which goes on with what this one had found by then.
        """
        known = self.read()
        newest = known.lives[-1] if known is not None and known.lives else self.life
        if newest not in (self.life, *self.earlier):
            raise ShadowReplacedError(
                f"shadow {self.shadow!r} cannot go on",
                "one driver that runs it",
                f"another one, whose folder is {SHADOWS}{newest}",
                "give each shadow of a pipeline a name of its own: Shadow(name=...)",
            )
        self.store.write(verdict_key(self.shadow), to_json(verdict))

    def keep(self, name: str, parquet: bytes) -> str:
        """Keep what differs in one comparison, and return its key."""
        key = difference_key(self.shadow, name)
        self.store.write(key, parquet)
        return key
