"""Where a savepoint goes: a URI, or a plain name below the default place."""

from __future__ import annotations

import time

import attrs

from ..storage import runtime
from ..storage.backends.open import open_store
from ..storage.checkpoints.layout import SAVEPOINTS
from ..storage.checkpoints.scheduled import is_scheduled, scheduled_name
from ..storage.keys import validate_name
from ..storage.uri import checked_uri, join_uri
from .errors import ArgumentError
from .spark.reachable_places import check_reach


@attrs.frozen
class SavepointTargets:
    """The places for savepoints of one pipeline."""

    pipeline: str
    root: str
    """URI of the pipeline's own store."""
    default: str | None
    """``Savepoints.place`` of the configuration."""
    master: str
    """Spark's master: what it runs on must reach the place."""
    shared: bool
    """``CheckpointConfig.shared``."""

    def uri(self, target: str | None) -> str:
        """Return the URI of a savepoint.

        Args:
            target: as for ``CheckpointCoordinator.savepoint``.

        Raises:
            ArgumentError: there is neither a target nor a default, or the name is that of a scheduled savepoint.
            InvalidPlaceError: the target is not a URI that can be written to.
        """
        if target is None:
            if self.default is None:
                raise ArgumentError(
                    "a savepoint cannot be taken",
                    "a target, or a place for it in CheckpointConfig.savepoints",
                    "neither",
                    "call savepoint(NAME) or savepoint(URI), or set CheckpointConfig.savepoints",
                )
            target = time.strftime("%Y%m%dT%H%M%S", time.gmtime()) + f"-{runtime.token()[:6]}"
        if is_scheduled(target):
            raise ArgumentError(
                "a savepoint cannot be taken",
                "a name that no schedule gives, because scheduled savepoints expire",
                repr(target),
                "choose another name",
            )
        if "/" not in checked_uri(target):
            validate_name("savepoint", target)
            target = self._named(target)
        return self._reached(target)

    def scheduled(self, now: float) -> str:
        """Return the URI of a scheduled savepoint that is taken now, in seconds since 1970.

        Raises:
            InvalidPlaceError: the default is not a URI that can be written to.
        """
        return self._reached(self._named(scheduled_name(now)))

    def _named(self, name: str) -> str:
        return join_uri(*((self.default, self.pipeline) if self.default else (self.root, SAVEPOINTS)), name)

    def _reached(self, target: str) -> str:
        uri = open_store(target).uri
        check_reach(self.master, {"the savepoint": uri}, shared=self.shared)
        return uri
