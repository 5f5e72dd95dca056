"""Whether the batches of a pipeline are recorded, and digests of their output taken.

They are if the configuration says so, or once a shadow reads the pipeline. A shadow pins the checkpoint that it begins
behind. So each checkpoint looks for such a pin before its cut is chosen: then it has records itself, and all batches
behind its cut have digests. Nothing restarts for that. It stays so until the driver ends, whatever shadows come and go.
Whether one follows just now, only the newest look knows.
"""

from __future__ import annotations

import attrs

from ...storage.checkpoints.pins import shadows
from ...storage.errors import StorageError
from ...storage.logs import logger
from ...storage.store import Store

log = logger(__name__)


@attrs.define
class Recording:
    """Whether batches are recorded. Many threads ask; it goes on once, and never off."""

    is_on: bool = False
    store: Store | None = None
    """The pipeline's own, in which shadows leave pins; None: nobody looks for them."""
    is_followed: bool = attrs.field(default=False, init=False)
    """Whether a shadow read the pipeline at the last look: it may ask for it then, and nobody else does."""

    def look(self) -> None:
        """Look whether a shadow reads the pipeline."""
        if self.store is None:
            return
        try:
            found = shadows(self.store)
        except (OSError, StorageError) as error:
            log.warning("cannot look for shadows; the next checkpoint looks again", error=str(error))
            return
        self.is_followed = bool(found)
        if found and not self.is_on:
            self.is_on = True
            log.info("batches are recorded from now on, because a shadow follows", shadow=found[0])
