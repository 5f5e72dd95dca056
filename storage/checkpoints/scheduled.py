"""Scheduled savepoints: how they are named, which of them a pipeline has, and the deletion of those that expire.

They are ordinary savepoints, listed as such, in folders whose names nobody else may give to a savepoint. They expire by
their number alone. The ids of checkpoints tell their order, so no wrong clock makes one expire.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Final

import attrs

from .. import runtime
from ..errors import ChandyError, FencedError, ObjectMissingError
from ..ids import CheckpointId
from ..logs import logger
from ..store import Store
from ..verified import read_verified
from .layout import CHECKPOINTS, CLAIM, OWNER, checkpoint_of, dropped_key, savepoint_key
from .locate import savepoints
from .proof import FenceProof
from .savepoint import delete_savepoint, read_savepoint

_log = logger(__name__)

_NAME: Final = re.compile(r"scheduled-\d{8}T\d{6}Z-[0-9a-f]{6}")


@attrs.frozen
class ScheduledSavepoint:
    """One that a pipeline has written by its schedule, and that is still where it was written."""

    id: CheckpointId
    uri: str
    completed_at: float
    """Seconds since 1970 by the driver's clock."""


def scheduled_name(now: float) -> str:
    """Return the name of a scheduled savepoint that is taken now, in seconds since 1970."""
    return f"scheduled-{time.strftime('%Y%m%dT%H%M%SZ', time.gmtime(now))}-{runtime.token()[:6]}"


def is_scheduled(uri: str) -> bool:
    """Return whether the name of a savepoint, or the last part of its URI, is that of a scheduled one."""
    return _NAME.fullmatch(uri.partition("?")[0].rpartition("/")[2]) is not None


def scheduled(store: Store, open_store: Callable[[str], Store]) -> tuple[ScheduledSavepoint, ...]:
    """Return the scheduled savepoints of a pipeline, oldest first.

    Those that a pipeline has claimed are its own and none of these. One that cannot be read is logged and left out.

    Args:
        store: the pipeline's own store.
        open_store: opens other stores, by their URIs.
    """
    found = []
    for id, uri in savepoints(store).items():
        if not is_scheduled(uri):
            continue
        try:
            place = open_store(uri)
            manifest = read_savepoint(place)
            if manifest.id == id and OWNER not in place.list(OWNER) and _is_written_by(place, store, id):
                found.append(ScheduledSavepoint(id, uri, manifest.completed_at))
        except ObjectMissingError:
            continue
        except (OSError, ChandyError) as error:
            _log.warning("cannot read a scheduled savepoint", uri=uri, error=str(error))
    return tuple(found)


def _is_written_by(place: Store, store: Store, id: CheckpointId) -> bool:
    """Return whether a folder's claim is that of this pipeline and not of a copy of it, which has the same ids."""
    claim = read_verified(place, CLAIM, lambda data: data.decode(errors="replace"))
    return claim.startswith(f"{store.uri}, ") and claim.endswith(f", checkpoint {id}")


def expired(
    found: Sequence[ScheduledSavepoint], keep: int, in_use: Collection[str] = ()
) -> dict[CheckpointId, str]:
    """Return the URIs of those that are not among the newest ``keep`` ones, without those that are being restored."""
    return {one.id: one.uri for one in found[: max(0, len(found) - keep)] if one.uri not in in_use}


def drop(
    store: Store, open_store: Callable[[str], Store], these: Mapping[CheckpointId, str], proof: FenceProof
) -> tuple[CheckpointId, ...]:
    """Delete expired savepoints, and those whose deletion was begun before; return the ids of those that are gone.

    It may be interrupted anywhere and repeated: a mark says that a savepoint is about to be deleted, and goes last. One
    that cannot be deleted is logged, and keeps none of the others.

    Args:
        store: the pipeline's own store.
        open_store: opens other stores, by their URIs.
        these: their URIs.
        proof: a successor may run from one of them.

    Raises:
        FencedError: there is a successor.
    """
    gone = []
    for id, uri in (_begun(store) | dict(these)).items():
        proof.check_now()
        try:
            store.write(dropped_key(id), uri.encode())
            _delete(open_store(uri), store, id, proof)
            proof.check()
            store.delete_all([savepoint_key(id), dropped_key(id)])
        except FencedError:
            raise
        except (OSError, ChandyError) as error:
            _log.warning(
                "cannot delete an expired savepoint; the next look tries again", uri=uri, error=str(error)
            )
        else:
            gone.append(id)
    return tuple(gone)


def _begun(store: Store) -> dict[CheckpointId, str]:
    """Return the URIs of the savepoints that are about to be deleted."""
    keys = set(store.list(CHECKPOINTS))
    begun = {
        id for key in keys if (id := checkpoint_of(key)) and {savepoint_key(id), dropped_key(id)} <= keys
    }
    return {id: uri for id, uri in savepoints(store).items() if id in begun} if begun else {}


def _delete(place: Store, store: Store, id: CheckpointId, proof: FenceProof) -> None:
    try:
        is_own = _is_written_by(place, store, id)
    except ObjectMissingError:
        # The claim goes last.
        return
    if is_own:
        delete_savepoint(place, proof)
