"""Looks from time to time at what the shadows of a pipeline have found, for those who ask its driver."""

from __future__ import annotations

from typing import Final

import attrs

from ...storage.store import Store
from ..execution.polls import Poll
from ..verdict import ShadowVerdict
from ..verdicts import read_verdicts

_LOOK_SECONDS: Final = 10.0


@attrs.define
class ShadowLook:
    """What was found when it was looked at last."""

    store: Store
    """The pipeline's own; of a shadow, its leader's."""
    known: tuple[ShadowVerdict, ...] = attrs.field(default=(), init=False)

    def looks(self) -> dict[str, Poll]:
        """Return what is to be done from time to time."""
        return {"see what shadows have found": Poll(self._look, _LOOK_SECONDS)}

    def _look(self) -> None:
        self.known = tuple(read_verdicts(self.store))
