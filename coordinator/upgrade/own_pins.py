"""The pins of one reader that runs batches of a pipeline again. They keep checkpoints, and keep them from nobody."""

from __future__ import annotations

from typing import Final

import attrs

from ...storage import runtime
from ...storage.checkpoints.manifest import Manifest
from ...storage.checkpoints.pins import Pins
from ...storage.checkpoints.proof import Unshared
from ...storage.errors import ChandyError
from ...storage.ids import CheckpointId
from ...storage.logs import logger
from ...storage.store import Store

log = logger(__name__)

_PROOF: Final = Unshared()
"""Two that have one name keep the same; the later one has ended the earlier one."""


@attrs.frozen
class OwnPins:
    """Checkpoints that are kept for one reader."""

    store: Store
    """The pipeline's."""
    reader: str
    """Its name."""

    def hold(self, checkpoint: CheckpointId) -> Manifest:
        """Keep a checkpoint, and return its manifest; raise what ``Pins.hold`` raises."""
        return self._pins.hold(checkpoint, runtime.time())

    def release_before(self, checkpoint: CheckpointId, but: CheckpointId | None = None) -> None:
        """Keep nothing before a checkpoint any more, but one perhaps."""
        self._pins.release_before(checkpoint, _PROOF, but)

    def release(self) -> None:
        """Keep nothing any more."""
        try:
            self._pins.release(_PROOF)
        except (ChandyError, OSError) as error:
            log.warning(
                "a pin of a checkpoint is left; `chandy readers` can release it",
                reader=self.reader,
                error=str(error),
            )

    @property
    def _pins(self) -> Pins:
        return Pins(self.store, self.reader)
